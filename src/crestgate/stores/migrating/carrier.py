"""Carries counters from one store to the other, so that a counter counts in one store at a time, and nobody gets a
fresh quota by being moved.

A request is decided in the store that its counter is meant to be in, together with a READ of the gate, in one atomic
request. If the gate says HERE, that is the decision. If not, it is given back, and the counter is acquired first, as is
one that this process has not seen yet:

    1. leave    at the other store: AWAY, and the units used, in one request. Whoever takes there afterwards sees AWAY.
    2. enter    at this store, only from NONE: ENTERING, and the units used are charged, in one request.
    3. confirm  the other store is still AWAY: HERE. If not, somebody carries the counter the other way at this moment:
                BACK_OFF, and again from the start. Of two that enter both stores, at least one sees the other.
    4. clear    the counter of the other store, whose usage is here now.

Each step may be lost, done twice, or done by somebody else: units are charged before anything counts here, a gate is
HERE in one store at most, and any participant finishes what another has begun. What goes wrong leaves too much charged,
never too little.

FROM has the counters that nobody has moved, so there NONE is as good as HERE, unless TO has the counter: that is looked
up about once an hour, and if TO does not answer, it has none.

Instances may disagree about where a counter is meant to be, while a setting is rolled out. Then it is moved back and
forth, but not within `min_stay_us` of its arrival: meanwhile all follow it.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from enum import Enum
from typing import TypeAlias, final

from crestgate.core.bounds import MAX_COST
from crestgate.errors import StoreError
from crestgate.runtime.clock import Clock
from crestgate.stores.decide import give_back_members
from crestgate.stores.migrating.gate import Gates, Status, Transition
from crestgate.stores.migrating.steps import Call, Reply, Steps, outcomes_of, run_together
from crestgate.stores.port import Member, Op, Outcome, Request

__all__ = ["FROM", "MIN_STAY_US", "TO", "Carrier", "Counts"]

FROM, TO = 0, 1
MIN_STAY_US = 10_000_000
MAX_TRIES = 12
MAX_FOLLOWED = 10_000
MAX_KNOWN = 50_000
_CounterId: TypeAlias = tuple[str, str]
"""Key and name of a counter."""


class _Next(Enum):
    """What follows after trying to acquire a counter."""

    ACCEPT = "what was decided counts"
    RETRY = "decide again"


@final
class Counts:
    """What this process has carried."""

    __slots__ = ("carried", "failed", "followed")

    def __init__(self) -> None:
        self.carried = [0, 0]
        """Counters that were carried to FROM, and to TO."""
        self.failed = [0, 0]
        """Carries that failed because FROM did, or TO."""
        self.followed = 0
        """Counters that were meant to be moved, and had been moved just before."""


@final
class Carrier:
    """Decides requests whose members are all meant for one store, and carries their counters."""

    def __init__(
        self,
        desired: Callable[[Member], int],
        decide: Callable[[Request, int], Steps[list[Outcome | StoreError]]],
        clock: Clock,
        min_stay_us: int = MIN_STAY_US,
    ) -> None:
        self.desired = desired
        self.counts = Counts()
        self._decide_again = decide
        self._clock = clock
        self._min_stay_us = min_stay_us
        self._valid_seconds = (min_stay_us or MIN_STAY_US) / 2_000_000
        """How long what was read at a store that was left is used: the counter cannot be back there by then."""
        self._gates = Gates()
        self._followed: dict[_CounterId, int] = {}
        """Counters that stay where they are for now, and until when."""
        self._known: dict[_CounterId, int] = {}
        """Where this process has found counters. They may have been moved since: the gate says so."""

    def prepare(self, members: Sequence[Member]) -> Steps[dict[_CounterId, StoreError]]:
        """Acquire counters that this process does not know yet, each once, so that requests are decided in order.
        Returns the errors of those that could not be."""
        unknown = {(member.key, member.algorithm.name): member for member in members if member.algorithm.capacity}
        if self._known:
            unknown = {key: one for key, one in unknown.items() if self._known.get(key) != self.node_of(one)}
        if not unknown:
            return {}
        results = yield from run_together([self._find(member) for member in unknown.values()])
        return {key: one for key, one in zip(unknown, results, strict=True) if isinstance(one, StoreError)}

    def _find(self, member: Member) -> Steps[bool]:
        gate = self._gates.of(member.algorithm)
        for _ in range(MAX_TRIES):
            node = self.node_of(member)
            (reply,) = yield [(node, Request(Op.PEEK, [gate.member(member.key)]))]
            status = gate.status(outcomes_of(reply)[0])
            if status is Status.HERE or (yield from self._acquire(member, node, status)) is _Next.ACCEPT:
                if len(self._known) >= MAX_KNOWN:
                    self._known.clear()
                self._known[member.key, member.algorithm.name] = node
                return True
        raise _moving()

    def node_of(self, member: Member) -> int:
        """The store in which to look for a counter first."""
        desired = self.desired(member)
        if self._followed:
            until = self._followed.get((member.key, member.algorithm.name))
            if until is not None:
                if self._clock.ticks() < until:
                    return 1 - desired
                self._followed.pop((member.key, member.algorithm.name), None)
        return desired

    def take(self, node: int, op: Op, members: Sequence[Member], tries: int) -> Steps[list[Outcome | StoreError]]:
        """Decide a TAKE or PEEK."""
        counting = [i for i, member in enumerate(members) if member.algorithm.capacity]  # a limit of 0 has no state
        gates = {i: self._gates.of(members[i].algorithm) for i in counting}
        (reply,) = yield [(node, Request(op, [*members, *(gates[i].member(members[i].key) for i in counting)]))]
        outcomes = {i: item for i, item in enumerate(reply[: len(members)]) if isinstance(item, Outcome)}
        reads = zip(counting, reply[len(members) :], strict=True)
        found = {i: item for i, item in reads if isinstance(item, Outcome)}
        # A store may be several servers, of which one fails alone. What the others have decided counts.
        reached = [i for i in outcomes if i in found or i not in gates]
        if len(reached) == len(members):
            return (yield from self._finish(node, op, members, list(outcomes.values()), found, tries))
        results: list[Outcome | StoreError] = [_error_of(reply)] * len(members)
        if reached:
            finished = yield from self._finish(
                node,
                op,
                [members[i] for i in reached],
                [outcomes[i] for i in reached],
                {position: found[i] for position, i in enumerate(reached) if i in found},
                tries,
            )
            for i, result in zip(reached, finished, strict=True):
                results[i] = result
        return results

    def _finish(
        self,
        node: int,
        op: Op,
        members: Sequence[Member],
        outcomes: Sequence[Outcome],
        found: Mapping[int, Outcome],
        tries: int,
    ) -> Steps[list[Outcome | StoreError]]:
        """Accept what a store has decided, or acquire the counters and decide again. `found` are the gates."""
        status = {i: self._gates.of(members[i].algorithm).status(outcome) for i, outcome in found.items()}
        missing = [i for i, one in status.items() if one is not Status.HERE]
        if not missing:
            if op is Op.TAKE:
                yield from self._renew(node, [(members[i], outcome) for i, outcome in found.items()])
            return list(outcomes)
        for i in missing:
            self._known.pop((members[i].key, members[i].algorithm.name), None)
        undo = _undo(node, op, members, outcomes)
        may_accept = node == FROM and all(status[i] is Status.NONE for i in missing)
        if undo and not may_accept:
            yield undo
        acquired = yield from run_together([self._acquire(members[i], node, status[i]) for i in missing])
        if all(one is _Next.ACCEPT for one in acquired):
            return list(outcomes)
        if undo and may_accept:
            yield undo
        failed = {i: one for i, one in zip(missing, acquired, strict=True) if isinstance(one, StoreError)}
        reached = [member for i, member in enumerate(members) if i not in failed]
        if reached and tries >= MAX_TRIES:
            raise _moving()
        again = (yield from self._decide_again(Request(op, reached), tries + 1)) if reached else []
        rest = iter(again)
        return [failed[i] if i in failed else next(rest) for i in range(len(members))]

    def settle(self, node: int, op: Op, members: Sequence[Member]) -> Steps[list[Outcome | StoreError]]:
        """GIVE_BACK, CHARGE or RESET where the counters are now."""
        gates = [self._gates.of(member.algorithm) for member in members]
        reads = Request(Op.PEEK, [gate.member(member.key) for gate, member in zip(gates, members, strict=True)])
        replies = yield [(node, Request(op, members)), (node, reads)]
        results: list[Outcome | StoreError] = [*outcomes_of(replies[0])]
        status = [gate.status(found) for gate, found in zip(gates, outcomes_of(replies[1]), strict=True)]
        elsewhere = [i for i, one in enumerate(status) if one is not Status.HERE]
        if not elsewhere:
            return results
        other = 1 - node
        if op is not Op.RESET:
            (reply,) = yield [(other, Request(Op.PEEK, [reads.members[i] for i in elsewhere]))]
            if node == FROM and isinstance(reply[0], StoreError):
                elsewhere = [i for i in elsewhere if status[i] is not Status.NONE]
                if not elsewhere:
                    return results
            there = [gates[i].status(found) for i, found in zip(elsewhere, outcomes_of(reply), strict=True)]
            here_too = (Status.HERE, Status.NONE) if other == FROM else (Status.HERE,)
            elsewhere = [i for i, one in zip(elsewhere, there, strict=True) if one in here_too]
        if elsewhere:
            (reply,) = yield [(other, Request(op, [members[i] for i in elsewhere]))]
            for i, result in zip(elsewhere, reply, strict=True):
                unmoved = node == FROM and op is Op.RESET and status[i] is Status.NONE
                if not (unmoved and isinstance(result, StoreError)):  # if TO does not answer, it has none
                    results[i] = result
        return results

    def _acquire(self, member: Member, node: int, status: Status) -> Steps[_Next]:
        """Make a store the one that its counter lives in, or find out that it is not for now."""
        try:
            if status is Status.ENTERING:
                yield from self._confirm(member, node, None)
            elif node != self.desired(member):
                self._followed.pop((member.key, member.algorithm.name), None)
            elif node == FROM and status is Status.NONE and (yield from self._is_unmoved(member)):
                return _Next.ACCEPT
            else:
                yield from self._carry(member, node, status)
        except _CarryError as error:
            self.counts.failed[error.node] += 1
            raise error.reason from None
        return _Next.RETRY

    def _is_unmoved(self, member: Member) -> Steps[bool]:
        """Whether TO has nothing of a counter of which FROM knows nothing either."""
        gate = self._gates.of(member.algorithm)
        (reply,) = yield [(TO, Request(Op.PEEK, [_counter(member), gate.member(member.key)]))]
        if any(isinstance(item, StoreError) for item in reply):
            return True
        counter, found = outcomes_of(reply)
        if gate.status(found) is not Status.NONE or _used(counter):
            return False
        yield [(FROM, Request(Op.TAKE, [gate.member(member.key, Transition.STAY)]))]
        return True

    def _carry(self, member: Member, node: int, status: Status) -> Steps[None]:
        """Leave the other store, and enter this one with the units used there."""
        gate, key, other = self._gates.of(member.algorithm), member.key, 1 - node
        started = time.monotonic()
        leave = Request(Op.TAKE, [gate.member(key, Transition.LEAVE_UNKNOWN), _counter(member)])
        left, counter = yield from _send(other, leave)
        if not left.decision.allowed and left.decision.remaining:  # it is HERE there, or ENTERING
            stay_us = self._min_stay_us - gate.age_us(left)
            if stay_us > 0:
                self._follow(member, stay_us)
                return
            leave = Request(Op.TAKE, [gate.member(key, Transition.LEAVE), _counter(member)])
            _, counter = yield from _send(other, leave)
        before: list[Request] = []
        if status is Status.AWAY:
            (locked,) = yield from _send(node, Request(Op.TAKE, [gate.lock(key)]))
            if not locked.decision.allowed:
                return  # somebody else is at it
            before.append(Request(Op.RESET, [gate.member(key)]))
        used = _used(counter)
        # What is reset must be entered in the same call. And a TAKE cannot have a cost of more than MAX_COST.
        charge = bool(before) or used > MAX_COST
        while time.monotonic() - started <= self._valid_seconds:
            if charge:
                # First, and as a debt if there is no room for it next to what others have taken here and will give
                # back. If somebody else enters meanwhile, too much is charged.
                parts = [*[MAX_COST] * (used // MAX_COST), used % MAX_COST]
                before += [Request(Op.CHARGE, [Member(key, member.algorithm, part)]) for part in parts if part]
                used = 0
            enter = Request(Op.TAKE, [gate.member(key, Transition.ENTER), Member(key, member.algorithm, used)])
            replies: list[Reply] = yield [(node, request) for request in (*before, enter)]
            entered, charged = [_outcomes_at(node, reply) for reply in replies][-1]
            if entered.decision.allowed and charged.decision.allowed:
                self.counts.carried[node] += 1
                yield from self._confirm(member, node, started)
                return
            if not entered.decision.allowed:
                return
            before, charge = [], True

    def _confirm(self, member: Member, node: int, started: float | None) -> Steps[None]:
        """Let a counter count here, if it has left the other store. `started`: clear the counter there."""
        gate, key, other = self._gates.of(member.algorithm), member.key, 1 - node
        (found,) = yield from _send(other, Request(Op.PEEK, [gate.member(key)]))
        if gate.status(found) is not Status.AWAY:
            yield [(node, Request(Op.TAKE, [gate.member(key, Transition.BACK_OFF)]))]
            return
        (confirmed,) = yield from _send(node, Request(Op.TAKE, [gate.member(key, Transition.CONFIRM)]))
        # From now on it stays here for a while, so that what is cleared there is not needed.
        if confirmed.decision.allowed and started is not None and time.monotonic() - started <= self._valid_seconds:
            yield [(other, Request(Op.RESET, [_counter(member)]))]

    def _renew(self, node: int, found: Sequence[tuple[Member, Outcome]]) -> Steps[None]:
        """Renew gates in the second half of their life, so that a counter in use keeps its place."""
        calls: list[Call] = []
        for member, outcome in found:
            gate = self._gates.of(member.algorithm)
            if outcome.decision.reset_us * 2 < gate.life_us:
                calls.append((node, Request(Op.TAKE, [gate.member(member.key, Transition.CONFIRM)])))
                if node == TO:
                    calls.append((FROM, Request(Op.TAKE, [gate.member(member.key, Transition.REMAIN_AWAY)])))
        if calls:
            yield calls  # those that fail are sent again with the next request

    def _follow(self, member: Member, stay_us: int) -> None:
        self.counts.followed += 1
        if len(self._followed) >= MAX_FOLLOWED:
            self._followed.clear()
        self._followed[member.key, member.algorithm.name] = self._clock.ticks() + stay_us


def _moving() -> StoreError:
    return StoreError("the counter is being moved between the two stores of a migration at this moment")


class _CarryError(StoreError):
    """A step of a carry failed at this store."""

    def __init__(self, node: int, reason: StoreError) -> None:
        super().__init__(str(reason))
        self.node = node
        self.reason = reason


def _send(node: int, request: Request) -> Steps[list[Outcome]]:
    (reply,) = yield [(node, request)]
    return _outcomes_at(node, reply)


def _outcomes_at(node: int, reply: Reply) -> list[Outcome]:
    try:
        return outcomes_of(reply)
    except StoreError as error:
        raise _CarryError(node, error) from None


def _error_of(reply: Reply) -> StoreError:
    return next(item for item in reply if isinstance(item, StoreError))


def _counter(member: Member) -> Member:
    """The counter of a member, to read or to delete."""
    return Member(member.key, member.algorithm, 0)


def _used(outcome: Outcome) -> int:
    """Whole units used, rounded up, at most the capacity."""
    decision = outcome.decision
    return int(decision.algorithm.capacity) - decision.remaining


def _undo(node: int, op: Op, members: Sequence[Member], outcomes: Sequence[Outcome]) -> list[Call]:
    """The call that gives back what a TAKE has charged."""
    if op is not Op.TAKE or any(m.binds and not o.decision.allowed for m, o in zip(members, outcomes, strict=True)):
        return []
    charged = [(m, o) for m, o in zip(members, outcomes, strict=True) if m.cost and o.decision.allowed]
    if not charged:
        return []
    back = give_back_members([m for m, _ in charged], [o for _, o in charged])
    return [(node, Request(Op.GIVE_BACK, back))]
