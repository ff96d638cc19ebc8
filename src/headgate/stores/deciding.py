"""How a store that runs the Python steps decides a request, once it has locked the counters and read its clock.

All of it is arithmetic on cells: a cell is a counter as the store found it, and says after deciding whether and
what to write. Memory, shared memory and SQL differ only in how they find and keep cells.
"""

from __future__ import annotations

from collections.abc import Sequence

from headgate.core.algorithms.algorithm import EMPTY, Algorithm, Step
from headgate.core.decision import Decision
from headgate.core.state import ListLog, State
from headgate.core.words import i64
from headgate.stores.port import Member, Op, Outcome

__all__ = ["Cell", "carry", "decide", "decision_of", "fresh", "undoing"]


class Cell:
    """A counter within one request: its state and the algorithm that wrote it, or neither.

    A store subclasses it to say how a state is replaced and forgotten; changes to a state in place are made
    through `State.put` and its siblings, and announced by `changed`.
    """

    state: State | None
    writer: Algorithm | None

    def replace(self, state: State, algorithm: Algorithm) -> None:
        """Keep a new state, written by this algorithm."""
        raise NotImplementedError

    def changed(self) -> None:
        """The state was changed in place."""
        raise NotImplementedError

    def forget(self) -> None:
        raise NotImplementedError


def decide(op: Op, members: Sequence[Member], cells: Sequence[Cell], now: i64) -> list[Outcome]:
    """Carry out one request on its cells, which no one else can touch meanwhile."""
    if op is Op.TAKE:
        return _take(members, cells, now)
    outcomes = []
    for member, cell in zip(members, cells, strict=True):
        if op is Op.PEEK:
            outcomes.append(Outcome(_peek(member.algorithm, cell, now, member.cost), 0))
            continue
        if op is Op.RESET:
            cell.forget()
        elif op is Op.CHARGE:
            _charge(member, cell, now)
        else:
            _give_back(member, cell, now)
        outcomes.append(Outcome(_peek(member.algorithm, cell, now, 0), 0))
    return outcomes


def _take(members: Sequence[Member], cells: Sequence[Cell], now: i64) -> list[Outcome]:
    steps: list[Step | None] = []
    admitted = True
    for member, cell in zip(members, cells, strict=True):
        _rebase(cell, now)
        step = None if member.cost > member.algorithm.ceiling else _step(member.algorithm, cell, now, member.cost)
        steps.append(step)
        if member.binds and (step is None or not step[0]):
            admitted = False
    outcomes: list[Outcome] = []
    try:
        for member, cell, step in zip(members, cells, steps, strict=True):
            if not admitted or step is None or not step[0]:
                outcomes.append(Outcome(_peek(member.algorithm, cell, now, member.cost), 0))
                continue
            if member.cost:
                _write(member, cell, step)
            outcomes.append(Outcome(decision_of(member.algorithm, step), step[1]))
    except BaseException:
        # No room for one of them, or whatever it is: those written before are undone, at the same instant, so exactly.
        for undone, cell, outcome in zip(undoing(members, outcomes), cells, outcomes, strict=False):
            if admitted and outcome.decision.allowed:
                _give_back(undone, cell, now)
        raise
    return outcomes


def _rebase(cell: Cell, now: i64) -> None:
    """Bring back a counter that is more than a period ahead of the clock, and keep that."""
    state, writer = cell.state, cell.writer
    if state is not None and writer is not None and writer.rebases(state, now):
        state.rebase(now // writer.tick)
        cell.changed()


def undoing(members: Sequence[Member], outcomes: Sequence[Outcome]) -> list[Member]:
    """What gives back all that members have taken (as many of them as there are outcomes)."""
    taken = zip(members, outcomes, strict=False)
    return [Member(m.key, m.algorithm, m.cost, True, o.tick, m.cost, None, o.token) for m, o in taken]


def _write(member: Member, cell: Cell, step: Step) -> None:
    _, time, a, b, _, _, _ = step
    state = cell.state
    if state is not None and _same_shape(cell.writer, member.algorithm):
        state.put(time, a, b, member.cost)
        cell.changed()
    else:
        # A new counter, or one that another limit wrote: what the step says is all there is.
        cell.replace(_new_state(member.algorithm, time, a, b), member.algorithm)


def _charge(member: Member, cell: Cell, now: i64) -> None:
    """Charge the cost whether or not it fits. A debt is at most one full limit beyond the limit: what would go beyond
    is not charged, so that no single charge locks a counter for longer than it takes to work off twice the limit."""
    algorithm = member.algorithm
    state, writer = cell.state, cell.writer
    units = writer.used(state, now) if state is not None and writer is not None else 0
    cost = min(member.cost, 2 * algorithm.capacity - units)
    if cost <= 0:
        return
    if state is not None and _same_shape(writer, algorithm):
        time, a, b = algorithm.charge(state, now, cost)
        state.put(time, a, b, cost)
        cell.changed()
        return
    cell.replace(fresh(algorithm, now, units + cost), algorithm)


def _give_back(member: Member, cell: Cell, now: i64) -> None:
    algorithm = member.algorithm
    state = cell.state
    if state is None or not algorithm.capacity:
        return
    _rebase(cell, now)
    if not _same_shape(cell.writer, algorithm):
        return
    back, time, a, b = algorithm.give_back(state, now, member.amount, member.tick, member.cost)
    if back:
        state.put_back(time, a, b, member.tick, back)
        cell.changed()


def _peek(algorithm: Algorithm, cell: Cell, now: i64, cost: i64) -> Decision:
    """The decision a TAKE would give, with the numbers of the counter as it stands."""
    if not algorithm.capacity:
        return Decision(algorithm, False, 0, None, 0, None)
    standing = _step(algorithm, cell, now, 0)
    _, _, _, _, remaining, _, reset = standing
    if cost > algorithm.capacity:
        return Decision(algorithm, False, remaining, None, reset, None)
    step = standing if cost == 0 else _step(algorithm, cell, now, cost)
    return Decision(algorithm, step[0], remaining, step[5], reset, None)


def _step(algorithm: Algorithm, cell: Cell, now: i64, cost: i64) -> Step:
    state, writer = cell.state, cell.writer
    if state is None or writer is None:
        return algorithm.step(EMPTY, now, cost)
    if _same_shape(writer, algorithm):
        return algorithm.step(state, now, cost)
    return carry(writer, state, algorithm, now, cost)


def _same_shape(writer: Algorithm | None, algorithm: Algorithm) -> bool:
    return writer is algorithm or (writer is not None and writer.shape == algorithm.shape)


def decision_of(algorithm: Algorithm, step: Step) -> Decision:
    """The decision of a step that has been carried out (or denied)."""
    allowed, _, _, _, remaining, wait, reset = step
    return Decision(algorithm, allowed, remaining, wait, reset, None)


def carry(writer: Algorithm, state: State, algorithm: Algorithm, now: i64, cost: i64) -> Step:
    """A step on a counter that another limit wrote: the whole units used under that one count as charged now.

    Until a request is admitted nothing is written, so the units go on falling as the old limit lets them, and the
    waits say when they will have fallen far enough.
    """
    units = writer.used(state, now)
    capacity = algorithm.capacity
    if cost and units + cost > capacity:
        retry = writer.frees(state, now, capacity - cost) - now
        reset = writer.frees(state, now, 0) - now
        return False, state.time, state.a, state.b, max(capacity - units, 0), retry, reset
    new = fresh(algorithm, now, units + cost)
    reset = (algorithm.frees(new, now, 0) if cost else writer.frees(state, now, 0)) - now
    queued = fresh(algorithm, now, units).a if algorithm.queues else 0
    return True, new.time, new.a, new.b, max(capacity - units - cost, 0), queued, reset


def fresh(algorithm: Algorithm, now: i64, units: i64) -> State:
    """A new state with so many units charged now."""
    time, a, b = algorithm.charge(EMPTY, now, units)
    return _new_state(algorithm, time, a, b)


def _new_state(algorithm: Algorithm, time: i64, a: i64, b: i64) -> State:
    if not algorithm.keeps_log:
        return State(time, a, b, None)
    state = State(time, 0, 0, ListLog())
    state.put(time, a, b, a)  # a log's `a` is the cost of its entries: here all of this tick
    return state
