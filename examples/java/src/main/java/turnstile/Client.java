package turnstile;

import com.fasterxml.jackson.databind.JsonNode;
import com.fasterxml.jackson.databind.ObjectMapper;
import java.io.IOException;
import java.nio.ByteBuffer;
import java.time.Duration;
import java.time.Instant;
import java.util.ArrayList;
import java.util.Collection;
import java.util.HashMap;
import java.util.HashSet;
import java.util.List;
import java.util.Map;
import java.util.Properties;
import java.util.UUID;
import java.util.concurrent.ExecutionException;
import java.util.function.Predicate;
import java.util.stream.IntStream;
import org.apache.kafka.clients.consumer.ConsumerRecord;
import org.apache.kafka.clients.consumer.KafkaConsumer;
import org.apache.kafka.clients.producer.KafkaProducer;
import org.apache.kafka.clients.producer.ProducerRecord;
import org.apache.kafka.common.TopicPartition;
import org.apache.kafka.common.serialization.ByteArrayDeserializer;
import org.apache.kafka.common.serialization.ByteArraySerializer;
import org.apache.kafka.common.utils.Utils;

/**
 * Charges runs of dp-turnstile. It is written from deploy/asyncapi.yaml alone.
 *
 * <p>It does not look at signatures: where workers sign what they publish, add that (the document
 * says how), or somebody else who may write to the topic of answers could admit users. One thread at
 * a time may use it.
 */
final class Client implements AutoCloseable {
  private static final int VERSION = 1;
  private static final Duration WITHIN = Duration.ofMinutes(1);

  /** Over how many partitions users are spread. */
  final int partitions;

  private final ObjectMapper json = new ObjectMapper();
  private final KafkaProducer<byte[], byte[]> producer;
  private final KafkaConsumer<byte[], byte[]> consumer;
  private final String norms;
  private final String rejects;

  Client(String brokers, String prefix) {
    norms = prefix + "norms";
    rejects = prefix + "rejects";
    producer = new KafkaProducer<>(properties(brokers, "acks", "all"), new ByteArraySerializer(),
        new ByteArraySerializer());
    consumer = new KafkaConsumer<>(
        properties(brokers, "isolation.level", "read_committed"), new ByteArrayDeserializer(),
        new ByteArrayDeserializer());
    List<TopicPartition> places = new ArrayList<>();
    for (String topic : List.of(prefix + "halts", rejects)) {
      consumer.partitionsFor(topic).forEach(p -> places.add(new TopicPartition(topic, p.partition())));
    }
    partitions = places.size() / 2;
    consumer.assign(places);
    consumer.seekToEnd(places);
    places.forEach(consumer::position); // whatever is asked later is answered behind this
  }

  /** A request was not applied, and says why. */
  static final class Refused extends IOException {
    Refused(JsonNode rejected) {
      super("refused: " + rejected.path("reason").asText() + ": " + rejected.path("detail").asText());
    }
  }

  /** Fixes the policy of a dataset everywhere; budgets are units of 2^-44. The same again is fine. */
  void createDataset(String name, String measure, long budget, long odometerStep)
      throws IOException {
    Map<String, Object> policy = Map.of("dataset", name, "partitions", partitions, "measure", measure,
        "budget", List.of(budget), "odometer_step", List.of(odometerStep), "user_ids", "integer");
    String token = UUID.randomUUID().toString();
    ask(everywhere(request("create-dataset", Map.of("request", token, "policy", policy))),
        answer -> answer.path("request").asText().equals(token));
  }

  /** Begins a run, or resumes it behind the last step that was decided everywhere. */
  Run openRun(String dataset, String name) throws IOException {
    String token = UUID.randomUUID().toString();
    Map<Integer, JsonNode> opened = new HashMap<>();
    Collection<Integer> asked = all();
    long attempt = 0; // the next one
    while (!asked.isEmpty()) {
      Map<String, Object> request = request("open-run",
          Map.of("dataset", dataset, "run", name, "attempt", attempt, "request", token));
      Map<Integer, Map<String, Object>> requests = new HashMap<>();
      asked.forEach(partition -> requests.put(partition, request));
      opened.putAll(ask(requests, answer -> answer.path("request").asText().equals(token)));
      long highest = opened.values().stream().mapToLong(a -> a.path("attempt").asLong()).max().orElseThrow();
      attempt = highest;
      asked = new ArrayList<>(); // partitions that gave a lower one are asked again
      for (var entry : opened.entrySet()) {
        if (entry.getValue().path("attempt").asLong() < highest) {
          asked.add(entry.getKey());
        }
      }
    }
    if (opened.values().stream().map(a -> a.path("policy")).distinct().count() > 1) {
      throw new IOException("dataset " + dataset + " has two policies");
    }
    long last = opened.values().stream().mapToLong(a -> a.path("last_step").asLong()).min().orElseThrow();
    return new Run(dataset, name, attempt, last + 1);
  }

  /** One attempt of a run: a newer one fences it. */
  final class Run {
    private final String dataset;
    private final String name;
    private final long attempt;

    /** The next step to charge. */
    long step;

    private Run(String dataset, String name, long attempt, long step) {
      this.dataset = dataset;
      this.name = name;
      this.attempt = attempt;
      this.step = step;
    }

    /**
     * Has one Gaussian step decided in every partition, and says who of the users is admitted.
     *
     * <p>Release the step only after that, over the admitted. After an error charge the same users
     * and norms again: it is the same step, charged once.
     */
    boolean[] charge(long[] users, double[] norms, double noise) throws IOException {
      Map<Integer, List<Integer>> places = new HashMap<>();
      all().forEach(partition -> places.put(partition, new ArrayList<>()));
      IntStream.range(0, users.length).forEach(place -> places.get(home(users[place])).add(place));
      Map<Integer, Map<String, Object>> requests = new HashMap<>();
      places.forEach((partition, here) -> requests.put(partition, request("charge", Map.of(
          "dataset", dataset, "run", name, "attempt", attempt, "step", step,
          "users", here.stream().map(place -> users[place]).toList(),
          "norms", here.stream().map(place -> norms[place]).toList(),
          "mechanism", "gaussian", "scale", noise))));
      boolean[] admitted = new boolean[users.length];
      for (var entry : ask(requests, this::isMine).entrySet()) {
        List<Integer> here = places.get(entry.getKey());
        JsonNode flags = entry.getValue().path("admitted");
        // A list, or bits in base64 for more than 1,024 users.
        byte[] bits = flags.isArray() ? null : flags.binaryValue();
        int count = flags.isArray() ? flags.size() : entry.getValue().path("users").asInt();
        if (count != here.size() || bits != null && bits.length != (count + 7) / 8) {
          throw new IOException("partition " + entry.getKey() + " decided about other users");
        }
        for (int position = 0; position < count; position++) {
          admitted[here.get(position)] = bits == null
              ? flags.get(position).asBoolean()
              : (bits[position / 8] >> position % 8 & 1) == 1;
        }
      }
      step++;
      return admitted;
    }

    /** Ends the run for good. */
    void close() throws IOException {
      String token = UUID.randomUUID().toString();
      ask(everywhere(request("close-run",
              Map.of("dataset", dataset, "run", name, "attempt", attempt, "request", token))),
          answer -> answer.path("request").asText().equals(token));
    }

    /** Whether this is a decision, or a rejection, of the step that is charged. */
    private boolean isMine(JsonNode answer) {
      return answer.path("dataset").asText().equals(dataset)
          && answer.path("run").asText().equals(name)
          && answer.path("attempt").asLong(-1) == attempt
          && answer.path("step").asLong(-1) == step
          && (answer.has("digest") || answer.has("reason"));
    }
  }

  @Override
  public void close() {
    producer.close();
    consumer.close();
  }

  /** Sends a request to each of these partitions, and waits for an answer from each. */
  private Map<Integer, JsonNode> ask(
      Map<Integer, Map<String, Object>> requests, Predicate<JsonNode> isMine) throws IOException {
    for (var request : requests.entrySet()) {
      byte[] value = json.writeValueAsBytes(request.getValue());
      try {
        producer.send(new ProducerRecord<>(norms, request.getKey(), null, value)).get();
      } catch (InterruptedException | ExecutionException error) {
        throw new IOException("the request was not published", error);
      }
    }
    Map<Integer, JsonNode> found = new HashMap<>();
    Instant deadline = Instant.now().plus(WITHIN);
    while (!found.keySet().containsAll(new HashSet<>(requests.keySet()))) {
      if (Instant.now().isAfter(deadline)) {
        throw new IOException("not all partitions answered: ask again");
      }
      for (ConsumerRecord<byte[], byte[]> record : consumer.poll(Duration.ofMillis(100))) {
        JsonNode answer;
        try {
          answer = json.readTree(record.value());
        } catch (IOException unreadable) {
          continue; // MessagePack, of another worker's setting, or no worker's record
        }
        if (!requests.containsKey(record.partition()) || !isMine.test(answer)) {
          continue;
        }
        if (record.topic().equals(rejects)) {
          throw new Refused(answer);
        }
        found.put(record.partition(), answer);
      }
    }
    return found;
  }

  /** Where a user lives: where Kafka's default partitioner puts the id. */
  private int home(long user) {
    byte[] key = ByteBuffer.allocate(Long.BYTES).putLong(user).array();
    return Utils.toPositive(Utils.murmur2(key)) % partitions;
  }

  private List<Integer> all() {
    return IntStream.range(0, partitions).boxed().toList();
  }

  private Map<Integer, Map<String, Object>> everywhere(Map<String, Object> request) {
    Map<Integer, Map<String, Object>> requests = new HashMap<>();
    all().forEach(partition -> requests.put(partition, request));
    return requests;
  }

  private static Map<String, Object> request(String type, Map<String, Object> content) {
    Map<String, Object> request = new HashMap<>(content);
    request.put("v", VERSION);
    request.put("type", type);
    return request;
  }

  private static Properties properties(String brokers, String name, String value) {
    Properties properties = new Properties();
    properties.put("bootstrap.servers", brokers);
    properties.put(name, value);
    return properties;
  }
}
