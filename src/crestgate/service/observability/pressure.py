"""Reports pressure transitions of counters: a metric, a log line, and optionally a webhook.

The limiter reports each transition once per process. A flood of fresh keys can cause one each, so log lines are limited
per second; the metric counts all.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import TYPE_CHECKING

import structlog

from crestgate.service.observability.labels import KeyFormat, key_label, rule_label

if TYPE_CHECKING:
    from crestgate.core.pressure import PressureEvent
    from crestgate.service.observability.webhook import Webhook
    from crestgate.service.observability.worker_metrics import WorkerMetrics

__all__ = ["PressureWatch"]

LINES_PER_SECOND = 100


class PressureWatch:
    """The `on_pressure` callback of a limiter. Never blocks."""

    def __init__(
        self,
        metrics: WorkerMetrics,
        keys: KeyFormat,
        webhook: Webhook | None = None,
        now: Callable[[], float] = time.monotonic,
    ) -> None:
        self.unlogged = 0
        """Events that were not logged."""
        self._metrics = metrics
        self._keys = keys
        self._webhook = webhook
        self._now = now
        self._log = structlog.stdlib.get_logger("crestgate.pressure")
        self._second = float("-inf")
        self._lines = 0
        self._omitted = 0

    def __call__(self, event: PressureEvent) -> None:
        self._metrics.count_pressure(event.after)
        key, rule = key_label(event.key, self._keys), rule_label(event.name)
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
        """Counters for the metrics."""
        return {
            "pressure_unlogged": self.unlogged,
            "webhook_dropped": 0 if self._webhook is None else self._webhook.dropped,
        }

    def _may_log(self) -> bool:
        now = self._now()
        if now - self._second >= 1.0:
            if self._omitted:
                self._log.warning("pressure on many counters at once", not_logged=self._omitted)
            self._second, self._lines, self._omitted = now, 0, 0
        if self._lines >= LINES_PER_SECOND:
            self.unlogged += 1
            self._omitted += 1
            return False
        self._lines += 1
        return True
