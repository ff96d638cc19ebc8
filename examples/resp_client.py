"""Checks with a Redis client (`pip install redis`). Start a service first: `crestgate serve --resp 6380`.

    python examples/resp_client.py 127.0.0.1:6380

It calls CL.THROTTLE as for redis-cell, then RL.CHECK in a pipeline: the service decides all of it in one batch. Where
checks need a key, it is the password: set CRESTGATE_KEY.
"""

import os
import sys
from typing import Any

import redis

ADDRESS = sys.argv[1] if len(sys.argv) > 1 else "127.0.0.1:6380"


def main() -> None:
    host, _, port = ADDRESS.rpartition(":")
    key = os.environ.get("CRESTGATE_KEY")
    client: Any = redis.Redis(host, int(port), password=key, decode_responses=True, protocol=2)

    limited, limit, remaining, retry_after, _ = client.execute_command("CL.THROTTLE", "resp:42", 15, 30, 60)
    print(f"CL.THROTTLE: limited={limited}, {remaining} of {limit} left, retry_after={retry_after}")

    pipeline = client.pipeline(transaction=False)
    for _ in range(4):
        pipeline.execute_command("RL.CHECK", "resp:42", "3/minute; 100/day")
    for allowed, _, remaining, retry_after_ms, *_ in pipeline.execute():
        wait = "" if allowed else f", retry within {-(-retry_after_ms // 1000)} s"
        print(f"RL.CHECK: {'allowed' if allowed else 'denied'}, {remaining} left{wait}")


main()
