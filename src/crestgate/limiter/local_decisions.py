# mypyc: compile
"""What a limiter decides without its store: from slices of leased limits, and by denials that are known to last.

`answer` decides a single request at once, or not at all. Anything else with a leased limit takes store calls, `steps`,
which drivers with and without `await` carry out:

    1. charge slices for what those at hand do not cover, and give back those that have ended
    2. decide each request by its leased limits, all or nothing
    3. ask the store about its other limits; where they deny, the leased ones get their units back

A request with an idempotency record, a shadow limit and a cost of 0 are the store's alone.
"""

from __future__ import annotations

from collections.abc import Callable, Generator, Sequence
from typing import TypeAlias, final

from crestgate.core.decision import Decision
from crestgate.errors import StoreError
from crestgate.limiter.denial_cache import DenialCache
from crestgate.limiter.leases import Lease, LeaseTable, gives_back
from crestgate.runtime.fork_safety import fork_safe_lock, renew_after_fork
from crestgate.stores.port import BatchOutcomes, Member, Op, Outcome, PartialStoreError, Request

__all__ = ["LeaseSteps", "LocalDecisions", "run_lease_steps"]

LeaseSteps: TypeAlias = Generator[Sequence[Request], BatchOutcomes, BatchOutcomes]
"""Yields batches for the store, and returns the outcomes of the requests. A StoreError of a batch is thrown in."""
Item: TypeAlias = "Outcome | StoreError"


@final
class Refill:
    """What the requests of a batch need of one leased counter, and what the store has said."""

    __slots__ = ("amount", "claimed", "denial", "error", "granted", "lease", "needed", "tick")

    def __init__(self, lease: Lease) -> None:
        self.lease = lease
        self.claimed = 0
        """Units of the slices at hand."""
        self.needed = 0
        """Units beyond them."""
        self.amount = 0
        """What the store was asked for."""
        self.granted = 0
        """Units that it has charged just now for these requests."""
        self.tick = 0
        self.denial: Outcome | None = None
        self.error: StoreError | None = None


@final
class LeasedCheck:
    """One request of a batch, the positions of its leased limits, and their outcomes."""

    __slots__ = ("own", "positions", "request", "sent")

    def __init__(self, request: Request) -> None:
        self.request = request
        self.sent = request
        """What the store is asked after all."""
        self.positions: list[int] = []
        self.own: dict[int, Item] = {}
        """Outcomes that were decided here, by position."""

    def admitted(self) -> bool:
        """Whether its leased limits have charged it."""
        for item in self.own.values():
            if not isinstance(item, Outcome) or not item.decision.allowed:
                return False
        return bool(self.own) and self.sent.op is Op.TAKE


@final
class LocalDecisions:
    """The slices and denials of one process, for all limiters that share a backend."""

    def __init__(self, ticks: Callable[[], int], with_denials: bool) -> None:
        self.ticks = ticks
        self.lock = fork_safe_lock()
        self.table = LeaseTable()
        self.denials = DenialCache() if with_denials else None
        self.denied_locally = 0
        """Requests that were denied without the store."""
        self.leased_locally = 0
        """Requests that were decided from slices, without the store."""
        renew_after_fork(self)

    def renew(self) -> None:
        """In a forked child: the slices are the parent's."""
        self.table = LeaseTable()

    def answer(self, batch: Sequence[Request]) -> BatchOutcomes | None:
        """The outcomes of a single request, if it can be decided here at once; None, and nothing was done, if not."""
        denials = self.denials
        known = denials is not None and bool(denials.denials)
        if len(batch) != 1 or not (known or self.table.leases):
            return None
        request = batch[0]
        if request.op is not Op.TAKE or request.record is not None:
            return None
        members = request.members
        now = self.ticks()
        with self.lock:
            if known and denials is not None:
                denied = denials.answer(members, now)
                if denied is not None:
                    self.denied_locally += 1
                    return [denied]
            outcomes: list[Outcome] = []
            for member in members:
                lease = self.table.find(member) if _is_leased(member) else None
                outcome = None if lease is None else lease.take(member.cost, now)
                if outcome is None:
                    self._put_back(members[: len(outcomes)], now)
                    return None
                outcomes.append(outcome)
            self.leased_locally += 1
        return [outcomes]

    def begin(self, batch: Sequence[Request]) -> bool:
        """Before a batch is sent: end what it makes untrue. Whether it needs `steps`, because a limit is leased."""
        leased = False
        for request in batch:
            for member in request.members:
                if member.algorithm.lease:
                    leased = True
            if request.op is Op.RESET or request.op is Op.GIVE_BACK:
                self._end_denials(request)
        return leased

    def learn(self, batch: Sequence[Request], replies: BatchOutcomes, sent_at: int) -> None:
        """Note what the store has answered to a batch that was sent at this time."""
        denials = self.denials
        if denials is None:
            return
        for index, request in enumerate(batch):
            op = request.op
            if op is Op.TAKE:
                outcomes = replies[index]
                if request.record is None and len(outcomes) == len(request.members) and _is_denied(request, outcomes):
                    with self.lock:
                        denials.learn(request.members, outcomes, sent_at, self.ticks())
            elif op is Op.RESET or op is Op.GIVE_BACK:
                self._end_denials(request)

    def steps(self, batch: Sequence[Request]) -> LeaseSteps:
        """Decide requests of which some have leased limits."""
        refills: dict[tuple[str, str], Refill] = {}
        with self.lock:
            now = self.ticks()
            checks = [self._prepare(request, refills, now) for request in batch]
            returns = self.table.take_returns()
            asked = [refill for refill in refills.values() if refill.needed]
            for refill in asked:
                refill.amount = max(refill.lease.next_size(refill.needed, now), refill.needed)
                refill.lease.refilling = True
        if asked:
            sent_at = now
            takes = [
                Request(Op.TAKE, [Member(refill.lease.key, refill.lease.algorithm, refill.amount)]) for refill in asked
            ]
            answers: list[Item] = []
            try:
                replies = yield [*returns, *takes]
                answers += [replies[len(returns) + i][0] for i in range(len(takes))]
                self.learn(returns, replies[: len(returns)], sent_at)
            except PartialStoreError as error:
                answers += [error.outcomes[len(returns) + i][0] for i in range(len(takes))]
            except StoreError as error:
                answers += [error for _ in takes]
            finally:
                for refill in asked:
                    refill.lease.refilling = False
            returns = []
            with self.lock:
                for refill, answer in zip(asked, answers, strict=True):
                    self._absorb(refill, answer, sent_at)
        with self.lock:
            now = self.ticks()
            for check in checks:
                self._take(check, refills, now)
            for refill in refills.values():  # of a request that another of its limits has denied
                if refill.granted:
                    refill.lease.put_back(refill.granted, now)
        return (yield from self._ask(checks, returns))

    def _prepare(self, request: Request, refills: dict[tuple[str, str], Refill], now: int) -> LeasedCheck:
        """Count what a request needs of leased counters."""
        check = LeasedCheck(request)
        op = request.op
        if op is Op.RESET:
            for member in request.members:
                self.table.end(member.key, member.algorithm.name, was_reset=True)
        elif op is Op.GIVE_BACK:
            check.sent = self._return_to_slices(request, now)
        elif op is Op.TAKE and request.record is None:
            for position, member in enumerate(request.members):
                lease = self.table.open(member, now) if _is_leased(member) else None
                if lease is None:
                    continue
                counter = (member.key, member.algorithm.name)
                refill = refills.get(counter)
                if refill is None:
                    refill = refills[counter] = Refill(lease)
                if lease.usable(now) - refill.claimed >= member.cost:
                    refill.claimed += member.cost
                elif lease.refilling:
                    continue
                else:
                    refill.needed += member.cost
                check.positions.append(position)
        return check

    def _return_to_slices(self, request: Request, now: int) -> Request:
        """A give-back, of which buckets get back in the store what was not charged by a slice: see leases.py."""
        members: list[Member] = []
        for member in request.members:
            lease = self.table.find(member) if member.algorithm.lease else None
            if lease is not None and not lease.gives_back:
                lease.put_back(member.amount, now)
            if member.algorithm.lease and not gives_back(member.algorithm):
                member = Member(member.key, member.algorithm, member.cost, True, member.tick, 0, None, member.token)
            members.append(member)
        return Request(request.op, members, request.record, request.group)

    def _absorb(self, refill: Refill, answer: Item, sent_at: int) -> None:
        """Take note of the store's answer to a charge of a slice."""
        if not isinstance(answer, Outcome):
            refill.error = answer
            return
        decision = answer.decision
        refill.lease.learn(decision, refill.amount, sent_at)
        if decision.allowed:
            refill.granted = refill.needed
            refill.tick = answer.tick
            refill.lease.add(refill.amount, refill.needed, answer, sent_at)
        else:
            refill.denial = answer

    def _take(self, check: LeasedCheck, refills: dict[tuple[str, str], Refill], now: int) -> None:
        """Decide a request by its leased limits. What cannot be decided here is left to the store."""
        members = check.request.members
        if not check.positions:
            return
        denied = False
        for position in check.positions:
            member = members[position]
            refill = refills[member.key, member.algorithm.name]
            lease = refill.lease
            taken = lease.take(member.cost, now)
            if taken is not None:
                check.own[position] = taken
            elif refill.granted >= member.cost:
                refill.granted -= member.cost
                check.own[position] = lease.outcome(lease.usable(now), True, refill.tick, now)
            elif refill.error is not None:
                check.own[position] = refill.error
            elif refill.denial is not None and refill.amount == member.cost:
                check.own[position] = refill.denial
                denied = True
        rest = [member for position, member in enumerate(members) if position not in check.own]
        if denied:
            for position, item in check.own.items():
                if isinstance(item, Outcome) and item.decision.allowed:
                    member = members[position]
                    lease = refills[member.key, member.algorithm.name].lease
                    lease.put_back(member.cost, now)
                    check.own[position] = lease.outcome(lease.usable(now), True, 0, now)
        check.sent = Request(Op.PEEK if denied else Op.TAKE, rest)

    def _ask(self, checks: Sequence[LeasedCheck], returns: Sequence[Request]) -> LeaseSteps:
        """Ask the store for all that was not decided here, and put the outcomes together."""
        asked = [check for check in checks if check.sent.members or not check.own]
        answers: Sequence[Sequence[Item]] = []
        if asked:
            requests = [*returns, *[check.sent for check in asked]]
            sent_at = self.ticks()
            try:
                replies = yield requests
                self.learn(requests, replies, sent_at)
                answers = replies[len(returns) :]
            except PartialStoreError as error:
                answers = error.outcomes[len(returns) :]
            except BaseException:
                for check in checks:
                    if check.admitted():
                        self._put_back_own(check)
                raise
        by_check = {id(check): answer for check, answer in zip(asked, answers, strict=True)}
        merged = [self._merge(check, by_check.get(id(check), ())) for check in checks]
        for items in merged:
            for item in items:
                if not isinstance(item, Outcome):
                    raise PartialStoreError(merged)
        return [[item for item in items if isinstance(item, Outcome)] for items in merged]

    def _merge(self, check: LeasedCheck, answer: Sequence[Item]) -> list[Item]:
        """The outcomes of a request, in the order of its members."""
        request = check.request
        if not check.own:
            items = list(answer)
            if request.op is Op.PEEK:
                self._add_slices(request, items)
            return items
        for item in answer:
            if isinstance(item, Outcome) and not item.decision.allowed and check.admitted():
                self._put_back_own(check)
                break
        rest = iter(answer)
        return [check.own[i] if i in check.own else next(rest) for i in range(len(request.members))]

    def _add_slices(self, request: Request, items: list[Item]) -> None:
        """What a look at leased counters would find here."""
        with self.lock:
            now = self.ticks()
            for position, member in enumerate(request.members):
                item = items[position] if position < len(items) else None
                lease = self.table.find(member) if member.algorithm.lease else None
                usable = 0 if lease is None else lease.usable(now)
                if usable and isinstance(item, Outcome):
                    decision = item.decision
                    allowed = decision.allowed or usable >= member.cost
                    wait = 0 if allowed else decision.wait_us
                    decision = Decision(
                        member.algorithm, allowed, decision.remaining + usable, wait, decision.reset_us, None
                    )
                    items[position] = Outcome(decision, item.tick, item.token)

    def _end_denials(self, request: Request) -> None:
        denials = self.denials
        if denials is not None:
            with self.lock:
                now = self.ticks()
                for member in request.members:
                    denials.end(member.key, member.algorithm.name, now)

    def _put_back_own(self, check: LeasedCheck) -> None:
        with self.lock:
            self._put_back([check.request.members[position] for position in check.own], self.ticks())

    def _put_back(self, members: Sequence[Member], now: int) -> None:
        """Give units of requests that were not admitted after all back to their slices."""
        for member in members:
            lease = self.table.find(member)
            if lease is not None:
                lease.put_back(member.cost, now)

    def sweep(self, count: int) -> list[Request]:
        """Look at so many leases; the requests that give back what was not used in time."""
        with self.lock:
            self.table.sweep(self.ticks(), count)
            return self.table.take_returns()

    def end_all(self) -> list[Request]:
        """End all leases; the requests that give back what was not used."""
        with self.lock:
            self.table.end_all()
            return self.table.take_returns()


def run_lease_steps(steps: LeaseSteps, apply: Callable[[Sequence[Request]], BatchOutcomes]) -> BatchOutcomes:
    """Carry out the steps in this thread."""
    try:
        batch = next(steps)
        while True:
            try:
                replies = apply(batch)
            except BaseException as error:  # noqa: BLE001 - thrown in, so that slices get their units back
                batch = steps.throw(error)
            else:
                batch = steps.send(replies)
    except StopIteration as done:
        outcomes: BatchOutcomes = done.value
        return outcomes


def _is_leased(member: Member) -> bool:
    """Whether a member of a TAKE may be decided from slices."""
    algorithm = member.algorithm
    return algorithm.lease and member.binds and not member.peeks and 0 < member.cost <= algorithm.ceiling


def _is_denied(request: Request, outcomes: Sequence[Outcome]) -> bool:
    for index, member in enumerate(request.members):
        if member.binds and not outcomes[index].decision.allowed:
            return True
    return False
