import crestgate.http.ChecksApi;
import crestgate.http.client.ApiClient;
import crestgate.http.model.CheckRequest;
import crestgate.http.model.KeyCheck;
import crestgate.v1.RateLimiterGrpc;
import crestgate.v1.RateLimiterOuterClass;
import io.grpc.Grpc;
import io.grpc.InsecureChannelCredentials;
import io.grpc.ManagedChannel;
import java.util.concurrent.TimeUnit;

/** One check over HTTP and one over gRPC, each allowed, and then one each that is denied. */
public final class Main {
  /** A key without a policy has up to 100 units: what costs more is never allowed. */
  private static final int[] COSTS = {1, 101};

  public static void main(String[] arguments) throws Exception {
    if (arguments.length != 2) {
      throw new IllegalArgumentException("give the URL of the service, and its gRPC address as host:port");
    }
    checkOverHttp(arguments[0]);
    checkOverGrpc(arguments[1]);
  }

  private static void checkOverHttp(String url) throws Exception {
    ApiClient client = new ApiClient().setBasePath(url);
    // Where checks need a key: client.addDefaultHeader("Authorization", "Bearer " + key)
    ChecksApi api = new ChecksApi(client);
    for (int cost : COSTS) {
      CheckRequest request = new CheckRequest(new KeyCheck().key("java").cost(cost));
      System.out.println("http allowed=" + api.check(request, null, null).getAllowed());
    }
  }

  private static void checkOverGrpc(String address) throws Exception {
    ManagedChannel channel = Grpc.newChannelBuilder(address, InsecureChannelCredentials.create()).build();
    try {
      // Where checks need a key: a ClientInterceptor that adds the metadata `authorization: Bearer KEY`
      RateLimiterGrpc.RateLimiterBlockingStub stub =
          RateLimiterGrpc.newBlockingStub(channel).withDeadlineAfter(30, TimeUnit.SECONDS);
      for (int cost : COSTS) {
        RateLimiterOuterClass.CheckRequest request =
            RateLimiterOuterClass.CheckRequest.newBuilder().setKey("java").setCost(cost).build();
        System.out.println("grpc allowed=" + stub.checkRateLimit(request).getAllowed());
      }
    } finally {
      channel.shutdownNow().awaitTermination(10, TimeUnit.SECONDS);
    }
  }

  private Main() {}
}
