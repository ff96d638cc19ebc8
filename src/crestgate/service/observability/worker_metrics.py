# mypyc: compile
"""The metrics of one worker: plain integers in plain dicts, because this runs at every check.

Everything happens on the worker's event loop, so nothing is locked. All of it is bounded, whatever clients send:

Labels      Rule and dimension come from rules and plans, of which there may be many: after `MAX_RULE_LABELS` pairs the
            rest is counted as rule "other". Rules that were created for one key each are counted together from the
            start, so that no key becomes a label (see labels.py).
Subjects    Clients choose them. Those of the current minute are counted by name, up to `MAX_SUBJECTS`; past that the
            less active half is dropped. So a flood of fresh names never displaces a heavy user, though whoever was
            dropped once is counted from zero.
Seen        Keys and clients, with the time of their last request: see recent_names.py.
Uses        Counters of client limits, with the time of their last use: see last_uses.py.

A decision belongs to the minute that was last set by `set_time`, which costs one comparison: a request sets it once,
before its decisions.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Iterable, Mapping
from typing import Final, final

from crestgate.core.bounded_cache import BoundedCache
from crestgate.core.bounds import is_text
from crestgate.core.redaction import digest_api_key
from crestgate.history.names import top_names
from crestgate.service.observability.labels import rule_label
from crestgate.service.observability.metrics import METRICS, Labels
from crestgate.service.observability.recent_names import RecentNames, RemainingQuotas
from crestgate.service.observability.snapshot import HistogramCounts, Snapshot
from crestgate.service.observability.usage import MINUTE_US, PendingUsage, Usage, short_subject

__all__ = ["MAX_RULE_LABELS", "MAX_SUBJECTS", "OTHER", "WorkerMetrics", "counter_name"]

MAX_SKEW: Final = 86_400.0
"""Seconds. A client may send any timestamp, and the sum of all must stay meaningful."""
MAX_RULE_LABELS: Final = 1_000
MAX_CACHED_RULES: Final = 10_000
"""Rules whose counters are looked up by id. The cache is cleared when full."""
MAX_SUBJECTS: Final = 5_000
MAX_SERIES: Final = 500
"""Label sets of any other counter. They do not depend on what clients send; a bound all the same."""
OTHER: Final = "other"


@final
class Histogram:
    """Observations of one histogram."""

    def __init__(self, buckets: list[float], previous: HistogramCounts | None) -> None:
        self.buckets = buckets
        if previous is None or len(previous.counts) != len(buckets) + 1:  # other buckets cannot be continued
            previous = HistogramCounts([0] * (len(buckets) + 1))
        self.counts: list[int] = list(previous.counts)
        self.total: float = previous.total

    def observe(self, value: float) -> None:
        self.counts[bisect_left(self.buckets, value)] += 1
        self.total += value


@final
class WorkerMetrics:
    """Counts for one worker. `previous` is the last snapshot of the worker that it replaces."""

    def __init__(self, previous: Snapshot | None = None) -> None:
        previous = Snapshot() if previous is None else previous
        self.keys = RecentNames()
        self.clients = RecentNames()
        self._uses = RecentNames()
        self.remaining = RemainingQuotas()
        self._sequence = previous.sequence
        self._counters: dict[str, dict[Labels, int]] = {
            metric.name: dict(previous.counters.get(metric.name, {})) for metric in METRICS if metric.kind == "counter"
        }
        self._histograms: dict[str, Histogram] = {
            metric.name: Histogram(list(metric.buckets), previous.histograms.get(metric.name))
            for metric in METRICS
            if metric.kind == "histogram"
        }
        self.durations = self._histograms["check_duration_seconds"]
        """Seconds of checks and batches."""
        self._requests: dict[tuple[str, int], int] = {
            (labels[0], int(labels[1])): count for labels, count in self._counters["requests"].items()
        }
        # Allowed, denied, and denied by a shadow rule.
        self._decisions: dict[tuple[str, str], list[int]] = {}
        for index, name in enumerate(("allowed", "blocked", "shadow_blocked")):
            for labels, count in self._counters[name].items():
                self._decisions.setdefault((labels[0], labels[1]), [0, 0, 0])[index] = count
        self._rules: dict[tuple[str, str], list[int]] = BoundedCache(MAX_CACHED_RULES)
        """The same counters by rule id. Several rules may share one label."""
        self._minute_us = 0
        self._next_minute_us = 0
        self._recorded: dict[tuple[str, str], tuple[int, int, int]] = self._decision_counts()
        self._subjects: dict[str, list[int]] = {}
        self._pending = PendingUsage()

    def set_time(self, now_us: int) -> None:
        """What is counted next belongs to this minute."""
        if now_us >= self._next_minute_us or now_us < self._minute_us:
            self._start_minute(now_us)

    def count(self, name: str, labels: Labels = ()) -> None:
        """Increment a counter of metrics.py."""
        counts = self._counters[name]
        count = counts.get(labels)
        if count is None:
            if len(counts) >= MAX_SERIES:
                return
            count = 0
        counts[labels] = count + 1

    def observe(self, name: str, value: float) -> None:
        """Add an observation to a histogram of metrics.py."""
        self._histograms[name].observe(value)

    def count_decision(self, rule: str, dimension: str, subject: str, allowed: bool) -> None:
        """A limit allowed or denied a subject. Rule and subject are empty if no rule applied."""
        counts = self._rules.get((rule, dimension))
        if counts is None:
            counts = self._add_rule(rule, dimension)
        index = 0 if allowed else 1
        counts[index] += 1
        if subject:
            requests = self._subjects.get(subject)
            if requests is None:
                requests = self._add_subject(subject)
            requests[index] += 1

    def count_shadowed(self, rule: str, dimension: str) -> None:
        """A shadow rule would have denied."""
        counts = self._rules.get((rule, dimension))
        if counts is None:
            counts = self._add_rule(rule, dimension)
        counts[2] += 1

    def observe_batch(self, size: int) -> None:
        self.observe("batch_size", size)

    def observe_clock_skew(self, seconds: float) -> None:
        """Difference between a client's timestamp and the store's clock, in either direction."""
        self.observe("clock_skew_seconds", min(MAX_SKEW, abs(seconds)))  # in this order NaN becomes the maximum

    def count_replay(self) -> None:
        """An idempotent retry got the recorded response."""
        self.count("replayed")
        self.count("cache_hits", ("idempotency",))

    def count_fail_open(self) -> None:
        """A check was allowed because its store did not respond."""
        self.count("fail_open")

    def count_request(self, plane: str, status: int, requests: int = 1) -> None:
        """A request of the plane "data", "control", "grpc" or "resp" was answered, or several."""
        count = self._requests.get((plane, status))
        if count is None:
            if len(self._requests) >= MAX_SERIES:
                return
            count = 0
        self._requests[plane, status] = count + requests

    def count_cache_lookup(self, cache: str, hit: bool) -> None:
        self.count("cache_hits" if hit else "cache_misses", (cache,))

    def count_pressure(self, state: str) -> None:
        """A counter entered this pressure state."""
        self.count("pressure_transitions", (state,))

    def record_use(self, name: str, key: str, now_us: int) -> None:
        """A request was charged to the counter of this name and key, under a client limit."""
        self._uses.record(counter_name(name, key), now_us)

    def take_uses(self) -> dict[str, int]:
        """The counters used since the last call, and when."""
        uses = self._uses.last_us
        if uses:
            self._uses = RecentNames()
        return uses

    def set_remaining(self, rule: str, subject: str, remaining: int, now_us: int) -> None:
        """The remaining quota of a subject, where that metric is enabled."""
        self.remaining.record(rule_label(rule), subject, remaining, now_us)

    def snapshot(
        self,
        now_us: int,
        totals: Mapping[str, int],
        gauges: Mapping[str, Mapping[Labels, int]] | None = None,
        cache_hits: Mapping[str, int] | None = None,
    ) -> Snapshot:
        """The values now. `totals` are counters that other objects keep since the process started, and so are
        `cache_hits`, by the cache; `gauges` likewise are values of other objects."""
        self.set_time(now_us)
        self._sequence += 1
        counters = {name: dict(counts) for name, counts in self._counters.items()}
        for name, total in totals.items():
            counters[name][()] = counters[name].get((), 0) + total
        for cache, total in (cache_hits or {}).items():
            counters["cache_hits"][cache,] = counters["cache_hits"].get((cache,), 0) + total
        decisions = self._decisions
        counters["allowed"] = {labels: n[0] for labels, n in decisions.items() if n[0] or n[1]}
        counters["blocked"] = {labels: n[1] for labels, n in decisions.items() if n[0] or n[1]}
        counters["shadow_blocked"] = {labels: n[2] for labels, n in decisions.items() if n[2]}
        counters["requests"] = {(plane, str(status)): count for (plane, status), count in self._requests.items()}
        # Rules are a cache of the rule database, and every check reads it. A miss is a reload.
        counters["cache_hits"]["rules",] = sum(self.durations.counts)
        values = {name: {labels: (n, now_us) for labels, n in rows.items()} for name, rows in (gauges or {}).items()}
        return Snapshot(
            at_us=now_us,
            sequence=self._sequence,
            counters=counters,
            histograms={name: HistogramCounts(list(h.counts), h.total) for name, h in self._histograms.items()},
            gauges={**values, "tokens_remaining": self.remaining.rows(now_us)},
        )

    def take_usage(self, now_us: int) -> list[Usage]:
        """Usage since the last call, minute by minute, and what was put back; oldest first."""
        self._start_minute(now_us)
        return self._pending.take()

    def put_back_usage(self, usage: Iterable[Usage]) -> None:
        """Keep usage that could not be recorded until the next call of `take_usage`; the last hour of it."""
        for one in usage:
            self._pending.add(one)

    def _start_minute(self, now_us: int) -> None:
        """Move the counts of the current minute to the pending usage, and start another minute or continue it."""
        counts = self._decision_counts()
        rules: dict[str, tuple[int, int, int]] = {}
        for labels, (allowed, denied, shadowed) in counts.items():
            recorded = self._recorded.get(labels, (0, 0, 0))
            if recorded != (allowed, denied, shadowed):
                sums = rules.get(labels[0], (0, 0, 0))
                rules[labels[0]] = (
                    sums[0] + allowed - recorded[0],
                    sums[1] + denied - recorded[1],
                    sums[2] + shadowed - recorded[2],
                )
        if rules:
            counted = {name: (n[0], n[1]) for name, n in self._subjects.items()}
            top = [name for name in top_names(counted) if is_text(name)]
            subjects = {short_subject(digest_api_key(name)): counted[name] for name in top}
            minute_us = self._minute_us if self._minute_us else now_us - now_us % MINUTE_US
            self._pending.add(Usage(minute_us, rules, subjects))
            self._recorded = counts
            self._subjects = {}
        self._minute_us = now_us - now_us % MINUTE_US
        self._next_minute_us = self._minute_us + MINUTE_US

    def _decision_counts(self) -> dict[tuple[str, str], tuple[int, int, int]]:
        return {labels: (n[0], n[1], n[2]) for labels, n in self._decisions.items()}

    def _add_rule(self, rule: str, dimension: str) -> list[int]:
        """The counters of a rule that is not in the cache."""
        label = rule_label(rule)
        counts = self._decisions.get((label, dimension))
        if counts is None:
            if len(self._decisions) >= MAX_RULE_LABELS or not is_text(label):
                label = OTHER
            counts = self._decisions.setdefault((label, dimension), [0, 0, 0])
        self._rules[rule, dimension] = counts
        return counts

    def _add_subject(self, subject: str) -> list[int]:
        """The counters of a subject that is new in this minute."""
        if len(self._subjects) >= MAX_SUBJECTS:
            totals = sorted([counts[0] + counts[1] for counts in self._subjects.values()])
            median = totals[MAX_SUBJECTS // 2]
            busiest = {name: counts for name, counts in self._subjects.items() if counts[0] + counts[1] > median}
            for name, counts in self._subjects.items():
                if counts[0] + counts[1] == median and len(busiest) < MAX_SUBJECTS // 2:
                    busiest[name] = counts
            self._subjects = busiest
        counts = self._subjects[subject] = [0, 0]
        return counts


def counter_name(name: str, key: str) -> str:
    """A counter in the table of last uses. URLs and headers carry no NUL, so two counters never share a name."""
    return f"{name}\0{key}"
