"""A client of the service, with nothing but the standard library. Start one first: `crestgate serve`.

    CRESTGATE_ADMIN_KEY=cg_… python examples/service_client.py

It makes a rule, asks four times whether user 42 may send a parcel, looks at the counter, and takes everything back.
Checks need a key only where the service says so; changes always do.
"""

import json
import os
import sys
import urllib.error
import urllib.request
from typing import Any

SERVICE = os.environ.get("CRESTGATE_URL", "http://127.0.0.1:8080")
KEY = os.environ.get("CRESTGATE_ADMIN_KEY", "")

RULE = {
    "rule_id": "parcels-per-user",
    "dimension": "user",
    "endpoint_pattern": "/parcels/*",
    "algorithm": "token_bucket",
    "limit": 3,
    "window_seconds": 60,
}
PARCEL = {"context": {"user": "42", "path": "/parcels/7", "method": "POST"}}


def call(method: str, path: str, body: object = None) -> Any:
    """Return the response. A denial is a normal response; an HTTPError means an invalid call."""
    data = None if body is None else json.dumps(body).encode()
    headers = {"Content-Type": "application/json"} | ({"Authorization": f"Bearer {KEY}"} if KEY else {})
    request = urllib.request.Request(SERVICE + path, data, headers, method=method)
    with urllib.request.urlopen(request, timeout=5) as reply:
        text = reply.read()
        return json.loads(text) if text else None


def may_send() -> bool:
    """Ask before the work is done; whoever is denied is told when to come back."""
    decision = call("POST", "/api/v1/check", PARCEL)
    if not decision["allowed"]:
        print(f"denied by {decision['rule']}, retry after {decision['retry_after']:.0f} s")
    else:
        print(f"allowed, {decision['remaining']} left")
    return bool(decision["allowed"])


def main() -> None:
    rule = call("POST", "/api/v1/rules", RULE)
    print(f"made: {rule['rule_id']}, {rule['limit']} in {rule['window_seconds']} s")
    try:
        for number in range(1, 5):
            print(f"{number}: ", end="")
            may_send()
        limits = call("GET", "/api/v1/users/42/limits")["limits"]
        (limit,) = [limit for limit in limits if limit["rule"] == rule["rule_id"]]
        print(f"used by 42: {limit['current_count']} of {limit['limit']}")
        call("POST", "/api/v1/reset", PARCEL)
    finally:
        call("DELETE", f"/api/v1/rules/{rule['rule_id']}")


if __name__ == "__main__":
    if not KEY:
        sys.exit("set CRESTGATE_ADMIN_KEY to the key that `crestgate serve` has shown")
    try:
        main()
    except urllib.error.HTTPError as error:  # its body is a problem, which says in words what was wrong
        sys.exit(f"{error.code}: {json.load(error)['detail']}")
