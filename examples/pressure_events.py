"""Pressure: a counter says when it gets tight, once per change, so that you hear of it before the first denial."""

from crestgate import Limiter, PressureEvent
from crestgate.testing import FakeClock


def say(event: PressureEvent) -> None:
    print(f"  {event.key} on {event.name}: {event.before} -> {event.after} ({event.decision.remaining} left)")


clock = FakeClock(1_700_000_000)
limiter = Limiter("memory://", clock=clock, on_pressure=say)

print("11 requests at once:")
for _ in range(11):
    decision = limiter.check("user:42", "10/minute")
print(f"  the last one: allowed={decision.allowed}, state={decision.state}")

print("6 seconds later, one more:")
clock.advance(6)
limiter.check("user:42", "10/minute", cost=0)  # cost 0 consumes nothing, and shows the state

print("a minute later:")
clock.advance(60)
limiter.check("user:42", "10/minute")
