"""An observer of your own: a subclass of Observer that overrides what it needs."""

from collections import Counter

from crestgate import Limiter, LimiterCall, Observer


class Denials(Observer):
    """Counts denials by limit."""

    def __init__(self) -> None:
        self.counts: Counter[str] = Counter()

    def called(self, call: LimiterCall) -> None:
        if call.operation == "check":
            self.counts.update(check.decision.name for check in call.checks if not check.decision.allowed)


denials = Denials()
limiter = Limiter("memory://", observer=denials)
for _ in range(5):
    limiter.check("user:42", "3/minute")
print(dict(denials.counts))
