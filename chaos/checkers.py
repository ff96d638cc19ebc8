"""Checks over a history. Each returns what it found, so that a run can compare it with the stated slack.

`linearizability.py` checks the counters that do not refill, with every `remaining`. Those here check what refills, what
is counted in all, how long callers waited, how soon the store decided again, and that nothing is left behind.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from itertools import accumulate

from chaos.history import DECIDED, FOREVER, POLICY, Operation

__all__ = [
    "Bound",
    "Latency",
    "bound_of",
    "chain_mismatches",
    "double_counted",
    "false_denials",
    "late_answers",
    "latency",
    "leaks",
    "over_admission",
    "policy_decisions",
    "recovery_seconds",
]

SECOND = 1_000_000_000
CLOCKS = 2_000_000
"""Nanoseconds by which a store's clock may run apart from ours while a cell runs."""
NOISE = 0.01
"""Seconds below which a wait is the scheduler's business."""
FACTOR = 10
"""A late answer is late by this many times what the control process was late by, at the same time."""
NEARBY = SECOND
"""How far around an answer the control's lateness counts."""


@dataclass(frozen=True, slots=True)
class Bound:
    """What an algorithm admits at most, for a limit of `count` per `period` (seconds) and `burst`."""

    algorithm: str
    count: int
    period: float
    burst: int

    def admits(self, seconds: float) -> float:
        """At most so many in any span of this length: the table of docs/algorithms.md."""
        if self.algorithm in ("token_bucket", "leaky_bucket", "gcra"):
            return self.burst + self.count / self.period * seconds
        spans = int(seconds / self.period) + 1
        return self.count * (spans if self.algorithm == "sliding_window_log" else spans + 1)

    def refilled(self, seconds: float) -> float:
        """What is free again for sure, so long after it was used."""
        if self.algorithm in ("token_bucket", "leaky_bucket", "gcra"):
            return self.count / self.period * seconds
        periods = 2 if self.algorithm == "sliding_window_counter" else 1
        return float("inf") if seconds > periods * self.period else 0.0


def bound_of(algorithm: str, count: int, period: float, burst: int | None = None) -> Bound:
    return Bound(algorithm, count, period, burst or count)


def over_admission(
    operations: Sequence[Operation], bound: Bound, slack: Sequence[tuple[int, int]] = ()
) -> tuple[int, int, int]:
    """The worst span: how many more were admitted in it than the algorithm allows, its start and its end.

    Only what surely lies within a span counts: what began and ended in it. So there is no excess by chance. In each of
    the intervals `slack` the counter may have been lost or refilled once.
    """
    admitted = sorted((o for o in operations if o.allowed and o.change > 0), key=lambda o: o.end)
    worst = (0, 0, 0)
    for start in sorted({operation.start for operation in admitted}):
        inside = 0
        for operation in admitted[bisect_left(admitted, start, key=lambda o: o.end) :]:
            if operation.start >= start:
                inside += operation.change
                over = inside - int(bound.admits((operation.end - start + CLOCKS) / SECOND))
                if over > worst[0]:
                    over -= bound.burst * sum(at <= operation.end and to >= start for at, to in slack)
                if over > worst[0]:
                    worst = (over, start, operation.end)
    return worst


def false_denials(
    operations: Sequence[Operation], bound: Bound, settled: Callable[[Operation], int]
) -> list[Operation]:
    """Denials that no usage explains, however early and however late the others were decided.

    `settled(operation)` is when an operation with an unknown result has surely taken effect, if it ever does.
    """
    used = [(o.end if o.known else settled(o), o) for o in operations if o.change > 0 and o.allowed is not False]
    used.sort(key=lambda pair: -pair[0])
    capacity = bound.burst
    found = []
    for denial in operations:
        if denial.allowed is not False:
            continue
        total = most = 0.0
        for end, other in used:
            if other.start >= denial.end:
                continue
            refilled = bound.refilled(max(denial.start - end - CLOCKS, 0) / SECOND)
            total += other.change
            most = max(most, total - refilled)
            if most + denial.change > capacity or refilled == float("inf"):
                break
        if most + denial.change <= capacity:
            found.append(denial)
    return found


def double_counted(operations: Sequence[Operation], used: int) -> int:
    """How far the usage that the store reports is from what the operations on it explain; 0 if it is explained.

    Admitted ones count once, unknown ones once or not at all. Positive: something was counted twice, or was counted
    without being asked for. Negative: something that was admitted is missing.
    """
    surely = sum(operation.change for operation in operations if operation.allowed)
    unknown = [operation.change for operation in operations if operation.allowed is None]
    most = surely + sum(change for change in unknown if change > 0)
    least = surely + sum(change for change in unknown if change < 0)
    return used - most if used > most else min(0, used - least)


def chain_mismatches(usages: Sequence[Sequence[int]]) -> int:
    """How many chains have limits with different usage: they are only ever charged together."""
    return sum(len(set(usage)) > 1 for usage in usages)


@dataclass(frozen=True, slots=True)
class Latency:
    """How long callers waited for an answer, in seconds."""

    calls: int
    p999: float
    longest: float


def calls_of(operations: Sequence[Operation]) -> list[Operation]:
    """One operation for each call that was answered: those of a batch share their times."""
    calls = {(o.client, o.call): o for o in operations if o.answered != FOREVER}
    return list(calls.values())


def latency(operations: Sequence[Operation]) -> Latency:
    waits = sorted((o.answered - o.start) / SECOND for o in calls_of(operations))
    if not waits:
        return Latency(0, 0.0, 0.0)
    return Latency(len(waits), waits[min(len(waits) - 1, int(len(waits) * 0.999))], waits[-1])


def late_answers(
    operations: Sequence[Operation],
    deadline: float,
    control: Sequence[tuple[int, float]],
    stalled: Mapping[int, Sequence[tuple[int, int]]],
) -> list[tuple[Operation, float]]:
    """Calls that were answered after their deadline, and by how many seconds.

    `control` are the times at which another process should have woken, and how late it did: a machine that is busy
    delays everybody. `stalled` are the intervals in which a thread of the client that only waits did not run.
    """
    times = [at for at, _ in control]
    found = []
    for call in calls_of(operations):
        stalls = sum(max(0, min(to, call.answered) - max(at, call.start)) for at, to in stalled.get(call.client, ()))
        over = (call.answered - call.start - stalls) / SECOND - deadline
        if over <= FACTOR * NOISE:
            continue
        near = control[bisect_left(times, call.start - NEARBY) : bisect_right(times, call.answered + NEARBY)]
        if over > FACTOR * max((late for _, late in near), default=0.0):
            found.append((call, over))
    return found


WINDOW = SECOND // 4
SHARE = 0.9


def recovery_seconds(operations: Sequence[Operation], ended: int, until: int) -> float | None:
    """Seconds from the end of a fault until the store decides again: the first quarter of a second in which it decides
    nine of ten operations. None if that did not come before `until`.
    """
    after = sorted((o for o in operations if ended <= o.start < until and o.reason != "lost"), key=lambda o: o.start)
    starts = [operation.start for operation in after]
    by_store = [0, *accumulate(operation.reason in DECIDED for operation in after)]
    for index, begin in enumerate(starts):
        behind = bisect_left(starts, begin + WINDOW)
        if begin + WINDOW <= until and by_store[behind] - by_store[index] >= SHARE * (behind - index):
            return (begin - ended) / SECOND
    return None


def leaks(before: Mapping[str, int], after: Mapping[str, int]) -> dict[str, int]:
    """What a client has more of after it has closed its limiter than before it opened one."""
    return {name: after[name] - count for name, count in before.items() if after[name] > count}


def policy_decisions(operations: Sequence[Operation]) -> int:
    return sum(operation.reason in POLICY for operation in operations)
