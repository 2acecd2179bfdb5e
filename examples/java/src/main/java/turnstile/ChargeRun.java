package turnstile;

import com.fasterxml.jackson.databind.ObjectMapper;
import java.io.IOException;
import java.util.Arrays;
import java.util.LinkedHashMap;
import java.util.Map;

/**
 * Charges a few steps of a run, and says who is admitted to each.
 *
 * <pre>
 * turnstile up &amp;
 * mvn --quiet compile exec:java -Dexec.args="localhost:9092"
 * </pre>
 */
public final class ChargeRun {
  private static final long UNIT = 1L << 44;

  private ChargeRun() {}

  public static void main(String[] arguments) throws IOException {
    String brokers = arguments.length > 0 ? arguments[0] : "localhost:9092";
    String prefix = arguments.length > 1 ? arguments[1] : "turnstile.";
    try (Client client = new Client(brokers, prefix)) {
      client.createDataset("from-java", "gdp", UNIT, UNIT / 8); // mu squared = 1
      Client.Run run = client.openRun("from-java", "example");
      // User k contributes k/8: at noise 1 a step costs k²/64 of mu squared.
      long[] users = {1, 2, 3, 4, 5, 6, 7, 8};
      double[] norms = Arrays.stream(users).mapToDouble(user -> user / 8.0).toArray();
      for (int turn = 0; turn < 5; turn++) {
        long step = run.step;
        boolean[] admitted = run.charge(users, norms, 1.0);
        // Only now release: the sum over the admitted, plus the noise.
        Map<String, Object> told = new LinkedHashMap<>();
        told.put("step", step);
        told.put("admitted", admitted);
        System.out.println(new ObjectMapper().writeValueAsString(told));
      }
      run.close();
    }
  }
}
