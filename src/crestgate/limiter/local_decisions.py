# mypyc: compile
"""What a limiter decides without its store: from slices of leased limits, and by denials that are known to last.

`prepare` decides a batch here as a whole, or says what to ask the store, in one call:

    1. give-backs of slices that the store must know of, to decide exactly
    2. the requests themselves, as they are: the store's answer is exact, whatever is known here
    3. charges of new slices, for the requests that come next

A request is decided from slices if all of its limits are leased. Where one of them is not, the store must be asked
anyway, and decides them all. The same holds for a request with an idempotency record or a shadow limit, and for cost 0.

A caller that fails, or is cancelled, loses nothing but what the store may have charged: that is never used here.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Final, final

from crestgate.core.decision import Decision
from crestgate.errors import StoreError
from crestgate.limiter.denial_cache import DenialCache
from crestgate.limiter.leases import Lease, LeaseTable
from crestgate.runtime.fork_safety import Renewal, fork_safe_lock
from crestgate.stores.port import BatchOutcomes, Member, Op, Outcome, PartialStoreError, Request

__all__ = ["LocalDecisions", "StoreCall"]


@final
class Refill:
    """A charge of a new slice."""

    __slots__ = ("amount", "lease")

    def __init__(self, lease: Lease, amount: int) -> None:
        self.lease = lease
        self.amount = amount


@final
class Answer:
    """What a call has charged to a leased counter, and what the store said last."""

    __slots__ = ("charged", "decision", "lease")

    def __init__(self, lease: Lease, charged: int, decision: Decision) -> None:
        self.lease = lease
        self.charged = charged
        self.decision = decision


@final
class StoreCall:
    """A batch that the store decides, wholly; or that was decided, if it has `replies`."""

    __slots__ = ("batch", "first", "leased", "refills", "replies", "requests", "sent_at")

    def __init__(self, batch: Sequence[Request], sent_at: int, replies: BatchOutcomes | None) -> None:
        self.batch = batch
        self.sent_at = sent_at
        self.replies = replies
        self.requests = batch
        """What the store is asked."""
        self.first = 0
        """The position of the batch in it."""
        self.refills: list[Refill] = []
        """What follows the batch."""
        self.leased = False
        """Whether anything in it is leased."""


@final
class LocalDecisions:
    """The slices and denials of one process, for all limiters that share a backend."""

    def __init__(self, ticks: Callable[[], int], carries_returns: bool) -> None:
        self.ticks = ticks
        self.carries_returns = carries_returns
        """Whether calls take all give-backs with them, because no thread sends them."""
        self.lock = fork_safe_lock()
        self.table = LeaseTable()
        self.denials = DenialCache()
        self.leases = False
        """Whether there are leased limits."""
        self.caches_denials = False
        self.denied_locally = 0
        """Requests that were denied without the store."""
        self.leased_locally = 0
        """Requests that were decided from slices, without the store."""
        self.start_sweeper: Callable[[], None] = _do_nothing
        """Called when there is something that may have to be given back."""
        self.renewal = Renewal(self.renew)

    def renew(self) -> None:
        """In a forked child: the slices are the parent's."""
        self.table = LeaseTable()

    def knows_any(self) -> bool:
        """Whether there is anything that could be decided here."""
        return bool(self.denials.denials) or bool(self.table.leases)

    def answer(self, batch: Sequence[Request]) -> BatchOutcomes | None:
        """The outcomes of a batch that can be decided here; None, and nothing was done, if it cannot."""
        if not self.knows_any():
            return None
        with self.lock:
            return self._answer(batch, self.ticks())

    def is_leased(self, batch: Sequence[Request]) -> bool:
        """Whether a batch has leased limits."""
        if self.leases:
            for request in batch:
                for member in request.members:
                    if member.algorithm.lease:
                        return True
        return False

    def _answer(self, batch: Sequence[Request], now: int) -> BatchOutcomes | None:
        denials = self.denials
        known = bool(denials.denials)
        outcomes: list[list[Outcome]] = []
        taken = 0
        for request in batch:
            if request.op is not Op.TAKE or request.record is not None:
                return None
            denied = denials.answer(request.members, now) if known else None
            if denied is None:
                if not self.leases:
                    return None
                taken += 1
                denied = []
            outcomes.append(denied)
        if taken and not self._take(batch, outcomes, now):
            return None
        self.leased_locally += taken
        self.denied_locally += len(outcomes) - taken
        return outcomes

    def _take(self, batch: Sequence[Request], outcomes: list[list[Outcome]], now: int) -> bool:
        """Take from slices what requests without outcomes cost, all or nothing."""
        find = self.table.find
        if len(batch) == 1 and len(batch[0].members) == 1:
            member = batch[0].members[0]
            lease = find(member) if _is_leased(member) else None
            if lease is None or lease.usable(now) < member.cost:
                return False
            outcomes[0] = [lease.take(member.cost, now)]
            return True
        needed: dict[tuple[str, str], int] = {}
        for index, request in enumerate(batch):
            if outcomes[index]:
                continue
            for member in request.members:
                lease = find(member) if _is_leased(member) else None
                if lease is None:
                    return False
                counter = (member.key, member.algorithm.name)
                cost = needed.get(counter, 0) + member.cost
                if lease.usable(now) < cost:
                    return False
                needed[counter] = cost
        for index, request in enumerate(batch):
            if not outcomes[index]:
                for member in request.members:
                    lease = find(member)
                    assert lease is not None  # found just before, under the same lock
                    outcomes[index].append(lease.take(member.cost, now))
        return True

    def begin(self, batch: Sequence[Request]) -> int:
        """The time, if a batch is one request of which nothing is known or leased, so that it is sent as it is; else
        -1. Pass that time to `end`. For the most common requests, which pay no more than this."""
        if len(batch) != 1 or self.leases:
            return -1
        request = batch[0]
        if request.op is not Op.TAKE or request.record is not None:
            return -1
        known = self.denials.denials
        if known:
            for member in request.members:
                if (member.key, member.algorithm.name) in known:
                    return -1
        return self.ticks()

    def end(self, batch: Sequence[Request], replies: BatchOutcomes, sent_at: int) -> None:
        """Note the store's answer to what has begun at this time."""
        outcomes = replies[0]
        for outcome in outcomes:
            if not outcome.decision.allowed:
                if is_denied(batch[0], outcomes):
                    with self.lock:
                        self.denials.learn(batch[0].members, outcomes, sent_at, self.ticks())
                return

    def prepare(self, batch: Sequence[Request]) -> StoreCall:
        """Decide a batch, or say what to ask the store. Pass its answer to `finish`, or its error to `fail`."""
        if not self.leases:
            now = self.ticks()
            if self.denials.denials:
                with self.lock:
                    replies = self._answer(batch, now)
                if replies is not None:
                    return StoreCall(batch, now, replies)
            self.end_denials(batch)
            return StoreCall(batch, now, None)
        self.end_denials(batch)
        with self.lock:
            now = self.ticks()
            replies = self._answer(batch, now)
            call = StoreCall(batch, now, replies)
            if replies is None:
                self._add_leases(call, now)
        if call.refills:
            self.start_sweeper()
        return call

    def _add_leases(self, call: StoreCall, now: int) -> None:
        """Add to a call what leased limits need."""
        returns: list[Request] = []
        for request in call.batch:
            op = request.op
            decided_here = op is Op.TAKE and request.record is None
            for member in request.members:
                if not _is_leased(member):
                    decided_here = False
            for member in request.members:
                if not member.algorithm.lease:
                    continue
                call.leased = True
                if op is Op.RESET:
                    self.table.end(member.key, member.algorithm.name, was_reset=True)
                elif op is Op.GIVE_BACK and request.record is None:  # with one it may be a repeat
                    lease = self.table.find(member)
                    if lease is not None:
                        lease.give_back(member, now)
                elif op is Op.TAKE and member.cost:
                    lease = self.table.open(member, now) if decided_here else self.table.find(member)
                    if lease is not None:
                        self._refill(call, lease, member.cost, decided_here, returns, now)
        if self.carries_returns:
            returns += self.table.take_returns()
        if returns or call.refills:
            takes = [
                Request(Op.TAKE, [Member(refill.lease.key, refill.lease.algorithm, refill.amount)])
                for refill in call.refills
            ]
            call.first = len(returns)
            call.requests = [*returns, *call.batch, *takes]

    def _refill(
        self, call: StoreCall, lease: Lease, cost: int, decided_here: bool, returns: list[Request], now: int
    ) -> None:
        """Before the store decides on a leased counter: let it know what is left here, if that matters, and charge what
        is needed next."""
        lease.touched_at = now
        usable = lease.usable(now)
        near = not decided_here or lease.remaining <= usable + cost
        ended = lease.end_slices(_FOREVER if usable and near and not lease.drains else now)
        if ended is not None:
            returns.append(ended)
        if decided_here and usable < cost and not lease.refilling:
            amount = lease.next_size(now)
            if amount > 0:
                lease.refilling = True
                call.refills.append(Refill(lease, amount))

    def finish(self, call: StoreCall, replies: BatchOutcomes) -> BatchOutcomes:
        """Note the store's answer to a call; the outcomes of its batch."""
        batch = call.batch
        own = replies
        if call.leased:
            own = replies[call.first : call.first + len(batch)]
            with self.lock:
                self._note(call, replies)
        if self.caches_denials:
            for index, request in enumerate(batch):
                if request.op is not Op.TAKE:
                    self.end_denials(batch)
                    break
                if request.record is None and is_denied(request, own[index]):
                    with self.lock:
                        self.denials.learn(request.members, own[index], call.sent_at, self.ticks())
        return own

    def fail(self, call: StoreCall, error: BaseException) -> BatchOutcomes:
        """The store has not decided a call: the outcomes of its batch if only something else failed, else the error."""
        self.end_denials(call.batch)
        if not call.leased:
            raise error
        if not isinstance(error, PartialStoreError):
            with self.lock:
                for refill in call.refills:
                    refill.lease.refilling = False
            raise error
        with self.lock:
            self._note(call, error.outcomes)
        parts = error.outcomes[call.first : call.first + len(call.batch)]
        decided = [[item for item in part if isinstance(item, Outcome)] for part in parts]
        for index, part in enumerate(parts):
            if len(decided[index]) < len(part):
                partial = PartialStoreError(parts)
                partial.deadline = error.deadline
                raise partial from error
        return decided

    def _note(self, call: StoreCall, replies: Sequence[Sequence[Outcome | StoreError]]) -> None:
        """Keep what the store has charged for slices, and what it has said of leased counters."""
        answers: dict[tuple[str, str], Answer] = {}
        for index, request in enumerate(call.batch):
            reply = replies[call.first + index]
            if len(reply) == len(request.members):  # else it is a replay
                self._note_request(request, reply, call.sent_at, answers)
        for index, refill in enumerate(call.refills):
            lease = refill.lease
            lease.refilling = False
            item = replies[call.first + len(call.batch) + index][0]
            if not isinstance(item, Outcome) or not self.table.knows(lease):
                continue  # or it was reset meanwhile
            taken = refill.amount if item.tick else 0
            if taken:
                lease.size = taken
                lease.add(taken, item, call.sent_at)
            _add_answer(answers, lease, taken, item.decision)
        now = self.ticks()
        for answer in answers.values():
            answer.lease.learn(answer.decision, answer.charged, call.sent_at, now)

    def _note_request(
        self,
        request: Request,
        reply: Sequence[Outcome | StoreError],
        sent_at: int,
        answers: dict[tuple[str, str], Answer],
    ) -> None:
        denied = is_denied(request, reply)
        for position, member in enumerate(request.members):
            item = reply[position]
            if not member.algorithm.lease or not isinstance(item, Outcome):
                continue
            if request.op is Op.RESET:
                self.table.end(member.key, member.algorithm.name, was_reset=True)
                continue
            taken = member.cost if request.op is Op.TAKE and item.tick else 0
            stays = denied and taken > 0 and member.algorithm.keeps_charges
            lease = self.table.open(member, sent_at) if stays else self.table.find(member)
            if lease is None:
                continue
            if (request.op is Op.PEEK or not member.cost) and isinstance(reply, list):
                reply[position] = _with_slices(member, item, lease, self.ticks())
            elif request.op is Op.TAKE:
                if taken:
                    lease.note_time(item.tick, sent_at)
                if not denied:
                    lease.used += taken
                elif stays:
                    # Charged by a node before another one denied: nobody has used it, and it cannot be given back.
                    lease.add(taken, item, sent_at)
                _add_answer(answers, lease, taken, item.decision)

    def end_denials(self, batch: Sequence[Request]) -> None:
        """End what a batch makes untrue, before and after the store has done it."""
        for request in batch:
            op = request.op
            if op is not Op.TAKE and op is not Op.PEEK and self.caches_denials:
                with self.lock:
                    now = self.ticks()
                    for member in request.members:
                        self.denials.end(member.key, member.algorithm.name, now)

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


def is_denied(request: Request, outcomes: Sequence[Outcome | StoreError]) -> bool:
    """Whether a request was denied by one of its outcomes, if it has all of them."""
    if len(outcomes) != len(request.members):
        return False
    for index, member in enumerate(request.members):
        item = outcomes[index]
        if member.binds and isinstance(item, Outcome) and not item.decision.allowed:
            return True
    return False


def _add_answer(answers: dict[tuple[str, str], Answer], lease: Lease, charged: int, decision: Decision) -> None:
    counter = (lease.key, lease.algorithm.name)
    before = answers.get(counter)
    answers[counter] = Answer(lease, charged + (0 if before is None else before.charged), decision)


def _is_leased(member: Member) -> bool:
    """Whether a member of a TAKE may be decided from slices."""
    algorithm = member.algorithm
    return algorithm.lease and member.binds and not member.peeks and 0 < member.cost <= algorithm.ceiling


def _with_slices(member: Member, item: Outcome, lease: Lease, now: int) -> Outcome:
    """What a look at a leased counter finds, with what is left here. A window's rest is given back before the store
    decides, so it counts together with what the store has left; that of others only by itself."""
    decision = item.decision
    usable = lease.usable(now)
    if not usable:
        return item
    enough = usable + (0 if lease.drains else decision.remaining) >= member.cost
    allowed = decision.allowed or (enough and 0 < member.cost <= member.algorithm.ceiling)
    remaining = min(decision.remaining + usable, member.algorithm.capacity)
    wait = 0 if allowed else decision.wait_us
    return Outcome(Decision(member.algorithm, allowed, remaining, wait, decision.reset_us, None), 0)


def _do_nothing() -> None:
    """There is no sweeper."""


_FOREVER: Final = 2**62
