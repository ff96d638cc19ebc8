"""A client of the service over gRPC, with grpcio. Start a service first: `crestgate serve`.

    pip install grpcio grpcio-tools
    CRESTGATE_PLANS__GOLD="3/hour using fixed_window" crestgate serve
    CRESTGATE_ADMIN_KEY=cg_… python examples/grpc_client.py 127.0.0.1:8081

It sends four checks for user 42, then a batch for many users, and resets the counters.
Checks need a key only where the service says so; a reset always does.
"""

import os
import sys
from pathlib import Path

import grpc

sys.path.append(str(Path(__file__).parent.parent / "proto" / "crestgate" / "v1"))
messages, services = grpc.protos_and_services("rate_limiter.proto")  # or have them generated beforehand

SERVICE = sys.argv[1] if len(sys.argv) > 1 else "127.0.0.1:8081"
KEY = os.environ.get("CRESTGATE_ADMIN_KEY", "")
METADATA = [("authorization", f"Bearer {KEY}")] if KEY else []


def main() -> None:
    with grpc.insecure_channel(SERVICE) as channel:
        limiter = services.RateLimiterStub(channel)
        request = messages.CheckRequest(key="user:42", plans=["gold"])
        for number in range(1, 5):
            decision = limiter.CheckRateLimit(request, timeout=5, metadata=METADATA)  # one channel serves all calls
            print(f"{number}: {'allowed' if decision.allowed else 'denied'}, {decision.remaining} left")
        many = messages.CheckBatchRequest(
            checks=[messages.CheckRequest(dimension=messages.USER, identifier=str(user)) for user in range(100)]
        )
        decisions = limiter.CheckRateLimitBatch(many, timeout=5, metadata=METADATA).decisions
        print(f"in one call: {sum(decision.allowed for decision in decisions)} of {len(decisions)} allowed")
        request = messages.QuotaRequest(key="user:43", plans=["gold"])
        quota = limiter.GetRemainingQuota(request, timeout=5, metadata=METADATA)
        print(f"user:43 has {quota.remaining} of {quota.limit}")
        reset = limiter.ResetLimit(messages.ResetRequest(key="user:42", plans=["gold"]), timeout=5, metadata=METADATA)
        print(f"forgotten: {', '.join(f'{counter.rule} of {counter.key}' for counter in reset.reset)}")


if __name__ == "__main__":
    try:
        main()
    except grpc.RpcError as error:  # a denial is an answer; this is a call that was wrong, or was not answered
        sys.exit(f"{error.code().name}: {error.details()}")
