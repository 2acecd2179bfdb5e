package turnstile;

import com.fasterxml.jackson.databind.JsonNode;
import com.fasterxml.jackson.databind.ObjectMapper;
import java.io.IOException;
import java.io.UncheckedIOException;
import java.util.Properties;
import java.util.Set;
import org.apache.kafka.common.serialization.Deserializer;
import org.apache.kafka.common.serialization.Serde;
import org.apache.kafka.common.serialization.Serdes;
import org.apache.kafka.common.serialization.Serializer;
import org.apache.kafka.common.utils.Bytes;
import org.apache.kafka.streams.KafkaStreams;
import org.apache.kafka.streams.StreamsBuilder;
import org.apache.kafka.streams.StreamsConfig;
import org.apache.kafka.streams.kstream.Consumed;
import org.apache.kafka.streams.kstream.Grouped;
import org.apache.kafka.streams.processor.api.Processor;
import org.apache.kafka.streams.processor.api.ProcessorContext;
import org.apache.kafka.streams.processor.api.Record;
import org.apache.kafka.streams.state.KeyValueStore;
import org.apache.kafka.streams.state.Stores;

/**
 * Counts the HALT events of each dataset with Kafka Streams, each event once.
 *
 * <pre>
 * mvn --quiet compile exec:java -Dexec.mainClass=turnstile.CountHalts -Dexec.args="localhost:9092"
 * </pre>
 */
public final class CountHalts {
  private static final String SEEN = "seen";

  private CountHalts() {}

  public static void main(String[] arguments) {
    String prefix = arguments.length > 1 ? arguments[1] : "turnstile.";
    Properties settings = new Properties();
    settings.put(StreamsConfig.APPLICATION_ID_CONFIG, prefix + "count-halts");
    settings.put(StreamsConfig.BOOTSTRAP_SERVERS_CONFIG,
        arguments.length > 0 ? arguments[0] : "localhost:9092");
    settings.put(StreamsConfig.PROCESSING_GUARANTEE_CONFIG, StreamsConfig.EXACTLY_ONCE_V2);
    settings.put(StreamsConfig.STATESTORE_CACHE_MAX_BYTES_CONFIG, 0); // print every count

    StreamsBuilder builder = new StreamsBuilder();
    builder.addStateStore(Stores.keyValueStoreBuilder(
        Stores.inMemoryKeyValueStore(SEEN), Serdes.Integer(), new JsonSerde()));
    builder.stream(prefix + "halts", Consumed.with(Serdes.Bytes(), new JsonSerde()))
        .filter((key, answer) -> answer != null
            && Set.of("decision", "halted").contains(answer.path("type").asText()))
        .process(OnlyNew::new, SEEN)
        .flatMapValues(answer ->
            answer.path(answer.path("type").asText().equals("halted") ? "users" : "halted"))
        .groupByKey(Grouped.with(Serdes.String(), new JsonSerde()))
        .count()
        .toStream()
        .foreach((dataset, count) -> System.out.println(dataset + " " + count));

    KafkaStreams streams = new KafkaStreams(builder.build(), settings);
    Runtime.getRuntime().addShutdownHook(new Thread(streams::close));
    streams.start();
  }

  /**
   * Forwards an answer under its dataset, unless it was read before.
   *
   * <p>A worker that takes over a partition publishes some answers again, with the same offsets. An
   * answer is new if its offset is above the last one of its partition, or if it is a further part of
   * the same step.
   */
  private static final class OnlyNew implements Processor<Bytes, JsonNode, String, JsonNode> {
    private ProcessorContext<String, JsonNode> context;
    private KeyValueStore<Integer, JsonNode> seen;

    @Override
    public void init(ProcessorContext<String, JsonNode> context) {
      this.context = context;
      seen = context.getStateStore(SEEN);
    }

    @Override
    public void process(Record<Bytes, JsonNode> record) {
      JsonNode answer = record.value();
      if ("roster-decision".equals(answer.path("type").asText())) {
        return; // its HALT events follow as records of the type halted, with parts of their own
      }
      int partition = context.recordMetadata().orElseThrow().partition();
      JsonNode last = seen.get(partition);
      if (last != null && !isAfter(answer, last)) {
        return;
      }
      seen.put(partition, new ObjectMapper().createObjectNode()
          .put("offset", answer.path("offset").asLong())
          .put("part", part(answer)));
      context.forward(record.withKey(answer.path("dataset").asText()).withValue(answer));
    }

    private static boolean isAfter(JsonNode answer, JsonNode last) {
      long offset = answer.path("offset").asLong();
      long previous = last.path("offset").asLong();
      return offset > previous || offset == previous && part(answer) > part(last);
    }

    private static int part(JsonNode answer) {
      return answer.path("part").asInt(-1);
    }
  }

  /** JSON; null for a record in MessagePack, of another setting. */
  private static final class JsonSerde implements Serde<JsonNode> {
    private static final ObjectMapper JSON = new ObjectMapper();

    @Override
    public Serializer<JsonNode> serializer() {
      return (topic, node) -> {
        try {
          return node == null ? null : JSON.writeValueAsBytes(node);
        } catch (IOException error) {
          throw new UncheckedIOException(error);
        }
      };
    }

    @Override
    public Deserializer<JsonNode> deserializer() {
      return (topic, bytes) -> {
        try {
          return bytes == null || bytes.length == 0 || bytes[0] != '{' ? null : JSON.readTree(bytes);
        } catch (IOException error) {
          throw new UncheckedIOException(error);
        }
      };
    }
  }
}
