"""What the service does when a counter gets tight, or has room again: a metric, a line in the log, perhaps a webhook.

The limiter says each transition once in each process. A flood of fresh keys can make a transition of each of them, so
of log lines there are only so many a second; the metric counts all.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import TYPE_CHECKING

import structlog

from headgate.service.observe.shown import Keys, shown_key, shown_rule

if TYPE_CHECKING:
    from headgate.core.pressure import PressureEvent
    from headgate.service.observe.tally import Tally
    from headgate.service.observe.webhook import Webhook

__all__ = ["PressureWatch"]

LINES_A_SECOND = 100


class PressureWatch:
    """A limiter's `on_pressure`. It never waits."""

    def __init__(
        self,
        tally: Tally,
        keys: Keys,
        webhook: Webhook | None = None,
        now: Callable[[], float] = time.monotonic,
    ) -> None:
        self.unlogged = 0
        """How many events had no line in the log."""
        self._tally = tally
        self._keys = keys
        self._webhook = webhook
        self._now = now
        self._log = structlog.stdlib.get_logger("headgate.pressure")
        self._second = float("-inf")
        self._lines = 0
        self._untold = 0

    def __call__(self, event: PressureEvent) -> None:
        self._tally.pressed(event.after)
        key, rule = shown_key(event.key, self._keys), shown_rule(event.name)
        if self._webhook is not None:
            self._webhook.send(
                {
                    "event": "pressure",
                    "key": key,
                    "rule": rule,
                    "before": event.before,
                    "after": event.after,
                    "limit": event.decision.limit,
                    "remaining": event.decision.remaining,
                    "retry_after": event.decision.retry_after,
                }
            )
        if self._may_log():
            self._log.info("pressure", key=key, rule=rule, before=event.before, after=event.after)

    def totals(self) -> dict[str, int]:
        """What it counts, for the metrics."""
        return {
            "pressure_unlogged": self.unlogged,
            "webhook_dropped": 0 if self._webhook is None else self._webhook.dropped,
        }

    def _may_log(self) -> bool:
        now = self._now()
        if now - self._second >= 1.0:
            if self._untold:
                self._log.warning("pressure on many counters at once", not_logged=self._untold)
            self._second, self._lines, self._untold = now, 0, 0
        if self._lines >= LINES_A_SECOND:
            self.unlogged += 1
            self._untold += 1
            return False
        self._lines += 1
        return True
