"""Compares the history of a cell with the stated slack."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, dataclass, field
from typing import Any

from chaos.checkers import (
    FACTOR,
    SECOND,
    chain_mismatches,
    double_counted,
    false_denials,
    late_answers,
    latency,
    leaks,
    over_admission,
    policy_decisions,
    recovery_seconds,
)
from chaos.history import DECIDED, Operation, by_key
from chaos.linearizability import Jump, Verdict, check_counter
from chaos.slack import Slack
from chaos.traffic import capacity_of, flow_bound

__all__ = ["Evidence", "Result", "judge"]

MAX_VIOLATIONS = 12
FAILING_OVER = 2 * SECOND
"""A failover is over for the clients only some time after it is for the servers."""
DECIDES_MEANWHILE = ("none", "dropped-10-percent")
MIN_DECIDED = 0.1
"""Share of the calls that the store decides during these."""


@dataclass
class Result:
    """One cell of the table."""

    store: str
    fault: str
    seed: int
    seconds: float
    skipped: str = ""
    decisions: int = 0
    by_policy: int = 0
    counters: int = 0
    faults: int = 0
    violations: list[str] = field(default_factory=list)
    """Of what was decided, and whether clients ended as they should."""
    slow: list[str] = field(default_factory=list)
    """Answers after the deadline, and late recoveries: violations as well, but a busy machine can cause them."""
    over: int = 0
    over_bound: int = 0
    p999: float = 0.0
    longest: float = 0.0
    recovery: float | None = None
    control: float = 0.0
    notes: list[str] = field(default_factory=list)

    def as_dict(self) -> dict[str, Any]:
        return asdict(self)


@dataclass
class Evidence:
    """What a run recorded."""

    operations: list[Operation]
    reads: list[Operation]
    """The usage of every counter that does not refill, read at the end."""
    chains: list[list[int]]
    """The usage of each limit of every chain."""
    windows: list[tuple[int, int]]
    """When a fault began and ended."""
    events: list[tuple[int, int]]
    """When counters may have been refilled by a step of the clock."""
    control: list[tuple[int, float]]
    stalls: dict[int, list[tuple[int, int]]]
    """By client: when it did not run, stopped or for want of a core."""
    reports: list[dict[str, Any]]
    finished: int
    capacity: int
    stored: int | None = None


def judge(result: Result, evidence: Evidence, slack: Slack) -> Result:
    """Fill in the figures, and everything that is beyond the slack."""
    excess = slack.excess_of(result.store, result.fault)
    operations = evidence.operations
    result.decisions = sum(operation.reason != "lost" for operation in operations)
    result.by_policy = policy_decisions(operations)
    result.faults = len(evidence.windows)
    found = result.violations
    keys = by_key(operations + evidence.reads)
    for key, history in sorted(keys.items()):
        if "flow:" in key:
            _judge_flow(key, history, evidence, excess, found)
        else:
            result.counters += 1
            _judge_line(key, history, evidence, excess, slack, result)
    if excess not in ("all", "split", "lag") and (mixed := chain_mismatches(evidence.chains)):
        found.append(f"{mixed} chains were charged in part")
    if result.fault == "none" and result.by_policy:
        result.notes.append(f"{result.by_policy} decided by the policy of a healthy store")
    _judge_waits(result, evidence, slack)
    _judge_recovery(result, evidence, slack)
    _judge_share(result, evidence)
    for report in evidence.reports:
        found += [f"a client raised: {error[-400:]}" for error in report["errors"]]
        if report["stuck"]:
            found.append(f"{report['stuck']} callers never came back")
        if more := leaks(report["before"], report["after"]):
            found.append(f"a client has more than before: {more}")
    if evidence.stored is not None and evidence.stored > len(keys) + 64:
        found.append(f"{evidence.stored} counters are stored for {len(keys)} that were used")
    del found[MAX_VIOLATIONS:]
    return result


def _judge_line(
    key: str, history: list[Operation], evidence: Evidence, excess: str, slack: Slack, result: Result
) -> None:
    """A counter that does not refill: linearizable, but for what the fault may do to it."""
    capacity = capacity_of(key, evidence.capacity)
    first, last = history[0].start, max(operation.start for operation in history)
    windows = [(at, to) for at, to in evidence.windows if to + FAILING_OVER >= first and at <= last]
    jumps, bound = _jumps(history, windows, excess, slack, capacity)
    split = excess == "split" and windows  # two servers decided: there is no one order
    verdict = Verdict.LINEARIZABLE if split else check_counter(history, capacity, jumps)
    if verdict is not Verdict.LINEARIZABLE:
        result.violations.append(f"{key}: {verdict.value}, {len(history)} operations")
    # A give-back without an answer may have made room.
    over = sum(o.change for o in history if o.allowed or (not o.known and o.change < 0)) - capacity
    if over - bound > result.over - result.over_bound or over > result.over:
        result.over, result.over_bound = max(over, 0), bound
    if over > bound:
        result.violations.append(f"{key}: {over} beyond its limit, and at most {bound} were stated")
    read = [operation for operation in history if operation.change == 0 and operation.remaining is not None]
    if read and not jumps:
        used = capacity - (read[-1].remaining or 0)
        if wrong := double_counted(history, used):
            result.violations.append(f"{key}: {abs(wrong)} {'counted twice' if wrong > 0 else 'lost'}")


def _jumps(
    history: Sequence[Operation], windows: Sequence[tuple[int, int]], excess: str, slack: Slack, capacity: int
) -> tuple[list[Jump], int]:
    """What the faults may have done to this counter, and how much more it may admit because of that."""
    if excess in ("all", "split"):
        return [Jump(at, to + FAILING_OVER) for at, to in windows], capacity * len(windows)
    if excess != "lag":
        return [], 0
    jumps, lost = [], 0
    for at, to in windows:
        since = at - int(slack.lag_seconds * SECOND)
        kept = sum(o.change for o in history if o.allowed and o.end < since)
        seen = sum(o.change for o in history if o.change > 0 and o.allowed is not False and o.start <= to)
        jumps.append(Jump(at, to + FAILING_OVER, max(0, kept - lost)))
        lost += seen - kept
    return jumps, lost


def _judge_flow(key: str, history: list[Operation], evidence: Evidence, excess: str, found: list[str]) -> None:
    """A counter that refills: never more than its algorithm allows, and nothing is denied without usage."""
    bound = flow_bound(key)
    events = list(evidence.events)
    if excess in ("all", "split", "lag"):
        events += [(at, to + FAILING_OVER) for at, to in evidence.windows]
    over, start, end = over_admission(history, bound, events)
    if over:
        found.append(f"{key}: {over} more than allowed within {(end - start) / SECOND:.3f} s")
    longest = max((to - at for at, to in evidence.windows), default=0) + 2 * SECOND
    denials = false_denials(history, bound, lambda operation: operation.start + longest)
    if evidence.events:  # the clock went back: time does not pass for a counter that is ahead, for a period at most
        denials = [d for d in denials if not any(at <= d.start <= to + 2 * SECOND for at, to in evidence.events)]
    if denials:
        found.append(f"{key}: {len(denials)} denied below the limit")


def _judge_waits(result: Result, evidence: Evidence, slack: Slack) -> None:
    waits = latency(evidence.operations)
    result.p999, result.longest = waits.p999, waits.longest
    result.control = max((late for _, late in evidence.control), default=0.0)
    late = late_answers(evidence.operations, slack.deadline_seconds, evidence.control, evidence.stalls)
    if late:
        worst = max(over for _, over in late)
        result.slow.append(f"{len(late)} answers after the deadline, the worst by {worst * 1000:.0f} ms")


def _judge_recovery(result: Result, evidence: Evidence, slack: Slack) -> None:
    ends = [to for _, to in evidence.windows]
    begins = [at for at, _ in evidence.windows[1:]] + [evidence.finished]
    for end, until in zip(ends, begins, strict=True):
        took = recovery_seconds(evidence.operations, end, until)
        late = max((late for at, late in evidence.control if end <= at <= until), default=0.0)
        allowed = slack.recovery_seconds + FACTOR * late
        if took is None and until - end < allowed * SECOND:
            continue  # the next fault came too early to tell
        if took is None or took > allowed:
            result.slow.append(
                "the store did not decide again" if took is None else f"the store decided again only after {took:.1f} s"
            )
        if took is not None:
            result.recovery = max(result.recovery or 0.0, took)
    if evidence.windows and result.recovery is None and not result.slow:
        result.slow.append("the store did not decide again after any fault")


def _judge_share(result: Result, evidence: Evidence) -> None:
    """Faults during which the store goes on deciding: a history of the policy alone would prove nothing."""
    during = [o for o in evidence.operations if any(at <= o.start <= to for at, to in evidence.windows)]
    decided = sum(operation.reason in DECIDED for operation in during)
    if result.fault in DECIDES_MEANWHILE and decided < MIN_DECIDED * len(during):
        result.violations.append(f"the store decided only {decided} of {len(during)} calls")
