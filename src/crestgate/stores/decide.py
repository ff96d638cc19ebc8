# mypyc: compile
"""Decision logic of every store that runs the Python algorithms: memory, shared memory and SQL.

Pure arithmetic on counters that the store has locked and read; the stores differ only in how they load and write them.
"""

from __future__ import annotations

from collections.abc import Sequence

from crestgate.core.algorithms.algorithm import EMPTY, Algorithm, Step
from crestgate.core.decision import Decision
from crestgate.core.mypyc_types import i64
from crestgate.core.state import ListLog, State
from crestgate.stores.port import Member, Op, Outcome

__all__ = [
    "StoredCounter",
    "decide",
    "decision_of",
    "give_back_members",
    "new_state_with_usage",
    "step_after_limit_change",
]


class StoredCounter:
    """A counter within one request: its state and the algorithm that wrote it, or neither.

    Each store has a subclass that replaces and deletes states. A state is changed in place through `State.put` and
    similar methods, followed by `changed`.
    """

    state: State | None
    writer: Algorithm | None

    @property
    def is_shared(self) -> bool:
        """Whether other processes may have slices of it."""
        return True

    def replace(self, state: State, algorithm: Algorithm) -> None:
        """Write a new state, of this algorithm."""
        raise NotImplementedError

    def changed(self) -> None:
        """The state was changed in place."""
        raise NotImplementedError

    def forget(self) -> None:
        raise NotImplementedError


def decide(op: Op, members: Sequence[Member], counters: Sequence[StoredCounter], now: i64) -> list[Outcome]:
    """Decide one request on its counters, which nobody else can change meanwhile."""
    if op is Op.TAKE:
        return _take(members, counters, now)
    outcomes = []
    for member, counter in zip(members, counters, strict=True):
        if op is Op.PEEK:
            outcomes.append(Outcome(_peek(member.algorithm, counter, now, member.cost), 0))
            continue
        if op is Op.RESET:
            counter.forget()
        elif op is Op.RENEW:
            outcomes.append(_renew(member, counter, now))
            continue
        elif op is Op.CHARGE:
            _charge(member, counter, now)
        else:
            _give_back(member, counter, now)
        outcomes.append(Outcome(_peek(member.algorithm, counter, now, 0), 0))
    return outcomes


def _take(members: Sequence[Member], counters: Sequence[StoredCounter], now: i64) -> list[Outcome]:
    steps: list[Step | None] = []
    admitted = True
    for member, counter in zip(members, counters, strict=True):
        algorithm, cost = member.algorithm, member.cost
        if counter.state is not None:
            _rebase(counter, algorithm, now)
        step = None if cost > algorithm.ceiling else _step(algorithm, counter, now, cost)
        steps.append(step)
        if member.binds and (step is None or not step[0]):
            admitted = False
    outcomes: list[Outcome] = []
    try:
        for member, counter, step in zip(members, counters, steps, strict=True):
            if not admitted and step is not None:
                outcomes.append(Outcome(_not_written(member.algorithm, counter, now, step), 0))
                continue
            if step is None or not step[0] or member.peeks:
                outcomes.append(Outcome(_peek(member.algorithm, counter, now, member.cost), 0))
                continue
            if member.cost:
                _write(member, counter, step)
            outcomes.append(Outcome(decision_of(member.algorithm, step), step[1]))
    except BaseException:
        # No room for one of them, or any other error: those written before are undone exactly, at the same instant.
        for undone, counter, outcome in zip(give_back_members(members, outcomes), counters, outcomes, strict=False):
            if admitted and outcome.decision.allowed:
                _give_back(undone, counter, now)
        raise
    return outcomes


def _rebase(counter: StoredCounter, algorithm: Algorithm, now: i64) -> None:
    """Rebase a counter that is more than a period ahead of the clock, and write that."""
    state, writer = counter.state, counter.writer
    if state is not None and writer is not None and writer.needs_rebase(state, now):
        if _same_shape(writer, algorithm):
            algorithm.rebase(state, now)
        else:
            writer.rebase_under_other_limit(state, now)
        counter.changed()


def give_back_members(members: Sequence[Member], outcomes: Sequence[Outcome]) -> list[Member]:
    """Members of a GIVE_BACK that undoes these outcomes of a TAKE."""
    taken = zip(members, outcomes, strict=False)
    return [Member(m.key, m.algorithm, m.cost, True, o.tick, 0 if m.peeks else m.cost, None, o.token) for m, o in taken]


def _write(member: Member, counter: StoredCounter, step: Step) -> None:
    _, time, a, b, _, _, _ = step
    state = counter.state
    if state is not None and _same_shape(counter.writer, member.algorithm):
        state.put(time, a, b, member.cost)
        counter.changed()
    else:
        # A new counter, or one that another limit wrote: the step has the whole state.
        counter.replace(_new_state(member.algorithm, time, a, b), member.algorithm)


def _charge(member: Member, counter: StoredCounter, now: i64) -> None:
    """Charge the cost whether or not it fits, up to a debt of at most one full limit beyond the limit: so no charge
    blocks a counter for longer than twice the limit takes to recover."""
    algorithm = member.algorithm
    state, writer = counter.state, counter.writer
    units = writer.used(state, now) if state is not None and writer is not None else 0
    capacity, amount = algorithm.capacity, member.amount
    cost = min(member.cost, capacity + (amount if 0 < amount < capacity else capacity) - units)
    if cost <= 0:
        return
    if state is not None and _same_shape(writer, algorithm):
        time, a, b = algorithm.charge(state, now, cost)
        state.put(time, a, b, cost)
        counter.changed()
        return
    counter.replace(new_state_with_usage(algorithm, now, units + cost), algorithm)


def _give_back(member: Member, counter: StoredCounter, now: i64) -> None:
    algorithm = member.algorithm
    state = counter.state
    if state is None or not algorithm.capacity or (algorithm.keeps_charges and counter.is_shared):
        return
    _rebase(counter, algorithm, now)
    if not _same_shape(counter.writer, algorithm):
        return
    back, time, a, b = algorithm.give_back(state, now, member.amount, member.tick, member.cost)
    if back:
        state.put_back(time, a, b, member.tick, back)
        counter.changed()


def _renew(member: Member, counter: StoredCounter, now: i64) -> Outcome:
    """Move the cost of an entry of a log to now. The new entry is written before the old one is removed: whoever is
    killed in between leaves one too many, never one too few."""
    algorithm, cost, tick = member.algorithm, member.cost, member.tick
    state = counter.state
    if state is None or not algorithm.capacity:
        return _gone(algorithm, counter, now)
    _rebase(counter, algorithm, now)
    log = state.log
    if log is None or not _same_shape(counter.writer, algorithm):
        return _gone(algorithm, counter, now)
    at = algorithm.instant(state, now)
    if tick <= at - algorithm.period or log.cost_at(tick) < cost:
        return _gone(algorithm, counter, now)
    if tick != at and cost:
        time, a, b = algorithm.charge(state, now, cost)
        state.put(time, a, b, cost)
        counter.changed()
        state.put_back(time, a - cost, b, tick, cost)
        counter.changed()
    return Outcome(_peek(algorithm, counter, now, 0), at)


def _gone(algorithm: Algorithm, counter: StoredCounter, now: i64) -> Outcome:
    standing = _peek(algorithm, counter, now, 0)
    return Outcome(Decision(algorithm, False, standing.remaining, None, standing.reset_us, None), 0)


def _peek(algorithm: Algorithm, counter: StoredCounter, now: i64, cost: i64) -> Decision:
    """The decision that a TAKE would give, with the current numbers of the counter."""
    if not algorithm.capacity:
        return Decision(algorithm, False, 0, None, 0, None)
    standing = _step(algorithm, counter, now, 0)
    _, _, _, _, remaining, _, reset = standing
    if cost > algorithm.capacity:
        return Decision(algorithm, False, remaining, None, reset, None)
    step = standing if cost == 0 else _step(algorithm, counter, now, cost)
    return Decision(algorithm, step[0], remaining, step[5], reset, None)


def _not_written(algorithm: Algorithm, counter: StoredCounter, now: i64, step: Step) -> Decision:
    """The same, of a step that was taken and is not written, because the request is denied."""
    _, _, _, _, remaining, _, reset = _step(algorithm, counter, now, 0)
    return Decision(algorithm, step[0], remaining, step[5], reset, None)


def _step(algorithm: Algorithm, counter: StoredCounter, now: i64, cost: i64) -> Step:
    state, writer = counter.state, counter.writer
    if state is None or writer is None:
        return algorithm.step(EMPTY, now, cost)
    if writer is algorithm or writer.shape == algorithm.shape:
        return algorithm.step(state, now, cost)
    return step_after_limit_change(writer, state, algorithm, now, cost)


def _same_shape(writer: Algorithm | None, algorithm: Algorithm) -> bool:
    return writer is algorithm or (writer is not None and writer.shape == algorithm.shape)


def decision_of(algorithm: Algorithm, step: Step) -> Decision:
    """The decision of a step that was written (or denied)."""
    allowed, _, _, _, remaining, wait, reset = step
    return Decision(algorithm, allowed, remaining, wait, reset, None)


def step_after_limit_change(writer: Algorithm, state: State, algorithm: Algorithm, now: i64, cost: i64) -> Step:
    """A step on a counter that another limit wrote: the whole units used under that limit count as charged now.

    Nothing is written until a request is admitted, so the units continue to recover under the old limit, and the waits
    are computed from it.
    """
    units = writer.used(state, now)
    capacity = algorithm.capacity
    if cost and units + cost > capacity:
        retry = writer.available_at(state, now, capacity - cost) - now
        reset = writer.available_at(state, now, 0) - now
        return False, state.time, state.a, state.b, max(capacity - units, 0), retry, reset
    new = new_state_with_usage(algorithm, now, units + cost)
    reset = (algorithm.available_at(new, now, 0) if cost else writer.available_at(state, now, 0)) - now
    queued = new_state_with_usage(algorithm, now, units).a if algorithm.queues else 0
    return True, new.time, new.a, new.b, max(capacity - units - cost, 0), queued, reset


def new_state_with_usage(algorithm: Algorithm, now: i64, units: i64) -> State:
    """A new state with `units` charged now."""
    time, a, b = algorithm.charge(EMPTY, now, units)
    return _new_state(algorithm, time, a, b)


def _new_state(algorithm: Algorithm, time: i64, a: i64, b: i64) -> State:
    if not algorithm.keeps_log:
        return State(time, a, b, None)
    state = State(time, 0, 0, ListLog())
    state.put(time, a, b, a)  # a log's `a` is the cost of its entries: here all of this tick
    return state
