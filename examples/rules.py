"""Limits in a file: rules say who may do how much, and `check_request` finds those that apply to a request.

    pip install '.[config]'
    python examples/rules.py

The file is crestgate.yaml in this folder. Change a limit in it while a program runs, and the next second goes by it.
"""

from pathlib import Path

from crestgate import Limiter, RequestContext
from crestgate.testing import FakeClock

CONFIG = Path(__file__).with_name("crestgate.yaml")


def order(limiter: Limiter, user: str) -> None:
    request = RequestContext(user=user, ip="10.0.0.7", path="/api/v1/orders", method="POST")
    decision = limiter.check_request(request)
    left = ", ".join(f"{part.name} {part.remaining}" for part in decision.parts)
    print(f"{user}: {'allowed' if decision else f'denied by {decision.name}'}; left: {left}")


with Limiter.from_config(CONFIG, environ={}, clock=FakeClock(1_700_000_000)) as limiter:
    for _ in range(4):
        order(limiter, "bob")  # one request, two rules: the user's and the address's; denied, it is charged to neither
    for _ in range(3):
        order(limiter, "alice")  # the tier has more room, but the address is the same

    # The counter belongs to the slot: whoever is raised to another tier keeps what was used.
    raised = limiter.peek_request(RequestContext(user="bob", tier="premium", path="/api/v1/orders"))
    print(f"bob, raised: {raised.remaining} of {raised.limit} left by {raised.name}")

    print("would have been denied:", dict(limiter.shadow_denials))
    print(limiter.check_request(RequestContext(path="/health")).reason)
