"""Decides batches whose counters are on several nodes, without I/O.

Within one node a request is atomic. Across nodes its members are taken node by node, always in the same order, and
given back when a later node denies: so it never over-admits, two requests never deny each other for ever, and the worst
that a concurrent request sees is a denial by a charge that is about to be given back.

`decide_by_node` yields rounds (the requests for each node, to be sent concurrently) and is sent their results. Nodes
are the hash tags of a cluster or the stores of a sharded store.

An idempotency record is on one node, too. If all members of its requests are there, that node does it all in one step.
Otherwise the record is claimed first, then the members are decided, then the result is saved; concurrent repeats find
the claim. A caller that dies in between leaves a claim, which expires like every record: until then its result is
unknown, and it is not decided again.

If a member could not be decided nothing is saved, and the claim is released: the answer of a failure policy is no
decision, and must not be replayed for minutes after the node is back. The members that were reached stay charged, as
without a record, because the policy may have allowed the request: to give them back would let an idempotency key
bypass every limit whose node is up. So a repeat is decided again, and charges them a second time.
"""

from __future__ import annotations

from collections.abc import Callable, Generator, Mapping, Sequence
from typing import final

from crestgate.errors import StoreError
from crestgate.runtime.clock import Clock
from crestgate.stores.idempotency import check_record_size
from crestgate.stores.idempotency_codec import encode_record
from crestgate.stores.port import BatchOutcomes, IdempotencyRecord, Member, Op, Outcome, PartialStoreError, Request

__all__ = ["Round", "RoundResults", "decide_by_node", "failed_outcomes"]

Round = dict[int, list[Request]]
"""The requests for each node, in order."""

RoundResults = Mapping[int, BatchOutcomes | StoreError]
"""The results of a round, by node."""

_RECORD_OPS = (Op.CLAIM, Op.SAVE, Op.RELEASE)


def decide_by_node(
    batch: Sequence[Request], node_of: Callable[[Member], int], node_of_record: Callable[[str], int], clock: Clock
) -> Generator[Round, RoundResults, BatchOutcomes]:
    """Decide a batch; returns its outcomes, or raises PartialStoreError.

    `node_of_record` maps the name of an idempotency record to its node; `clock` is the time of the decision.
    """
    check_record_size(batch)
    pending = [_PendingRequest(request, node_of, node_of_record) for request in batch]
    active: list[_PendingRequest | _IdempotentGroup] = _grouped(pending, node_of_record, clock)
    while active:
        round_: Round = {}
        sent: list[tuple[int, int, _Part]] = []
        for one in active:
            for part in one.next_parts():
                requests = round_.setdefault(part.node, [])
                sent.append((part.node, len(requests), part))
                requests.append(Request(part.op, part.members, part.record))
        if round_:
            results = yield round_
            for node, position, part in sent:
                part.owner.receive(part, _outcomes_at(results[node], position, part))
        active = [one for one in active if not one.finished]
    outcomes = [one.outcomes() for one in pending]
    decided = [[item for item in items if isinstance(item, Outcome)] for items in outcomes]
    if any(len(some) < len(items) for some, items in zip(decided, outcomes, strict=True)):
        raise PartialStoreError(outcomes)
    return decided


def failed_outcomes(members: int, error: StoreError) -> list[StoreError]:
    """The error for each member of a request that failed; one for a request without members, such as a CLAIM."""
    return [error] * max(members, 1)


def _outcomes_at(result: BatchOutcomes | StoreError, position: int, part: _Part) -> Sequence[Outcome | StoreError]:
    """The outcomes of one request of a node."""
    if isinstance(result, PartialStoreError):
        return result.outcomes[position]
    return failed_outcomes(len(part.members), result) if isinstance(result, StoreError) else result[position]


def _grouped(
    pending: Sequence[_PendingRequest], node_of_record: Callable[[str], int], clock: Clock
) -> list[_PendingRequest | _IdempotentGroup]:
    """Requests without a record by themselves, and those with one in a group with all that carry the same record."""
    active: list[_PendingRequest | _IdempotentGroup] = []
    groups: dict[str, _IdempotentGroup] = {}
    last: _IdempotentGroup | None = None
    for request in pending:
        record = request.record
        if record is None or request.is_record_op:
            last = None
            if not request.finished:
                active.append(request)
            continue
        if last is None or last.record is not record:
            # Repeats in one batch run one after the other, so that the second finds the result of the first.
            last = _IdempotentGroup(record, node_of_record(record.name), clock, groups.get(record.name))
            groups[record.name] = last
            active.append(last)
        last.requests.append(request)
    return active


@final
class _Part:
    """The members of a request on one node, with their operation and the owner of the result."""

    def __init__(
        self,
        owner: _PendingRequest | _IdempotentGroup,
        op: Op,
        node: int,
        positions: list[int],
        members: list[Member],
        record: IdempotencyRecord | None = None,
    ) -> None:
        self.owner = owner
        self.op = op
        self.node = node
        self.record = record
        self.positions = positions
        self.members = members


@final
class _PendingRequest:
    """One request, and its results so far."""

    def __init__(
        self, request: Request, node_of: Callable[[Member], int], node_of_record: Callable[[str], int]
    ) -> None:
        self.op = request.op
        self.record = request.record
        self.is_record_op = request.op in _RECORD_OPS
        self.results: list[Outcome | StoreError | None] = [None] * len(request.members)
        positions: dict[int, list[int]] = {}
        for position, member in enumerate(request.members):
            positions.setdefault(node_of(member), []).append(position)
        self.ahead = [
            _Part(self, request.op, node, indices, [request.members[i] for i in indices])
            for node, indices in sorted(positions.items())
        ]
        if self.is_record_op and request.record is not None:
            self.ahead = [_Part(self, request.op, node_of_record(request.record.name), [], [], request.record)]
        self.taken: list[_Part] = []
        self.denied = False
        self.finished = not self.ahead

    def next_parts(self) -> list[_Part]:
        """The parts to send in the next round."""
        if self.op is not Op.TAKE:
            parts, self.ahead = self.ahead, []
        elif not self.denied:
            parts = [self.ahead.pop(0)]
        else:
            # Denied by a node: give back what others charged before, and peek at those that were not asked yet.
            parts = [self._give_back(part) for part in self.taken if self._charged(part)]
            parts += [_Part(self, Op.PEEK, part.node, part.positions, part.members) for part in self.ahead]
            self.taken, self.ahead = [], []
        return parts

    def receive(self, part: _Part, outcomes: Sequence[Outcome | StoreError]) -> None:
        """The outcomes of one node."""
        if part.record is not None and len(outcomes) != len(part.members):
            # The record has a stored result; or it could not be claimed.
            self.results.extend(outcomes)
            self.finished = True
            return
        for position, item in zip(part.positions, outcomes, strict=True):
            if isinstance(item, Outcome) or part.op is not Op.GIVE_BACK or self.op is Op.GIVE_BACK:
                self.results[position] = item
            # else a give-back after a denial failed: the charge stays, and so does its outcome
        if self.op is not Op.TAKE or self.denied:
            self.finished = True
            return
        self.denied = any(
            member.binds and isinstance(item, Outcome) and not item.decision.allowed
            for member, item in zip(part.members, outcomes, strict=True)
        )
        if not self.denied:  # a node that denies has charged nothing
            self.taken.append(part)
        self.finished = not (self.ahead or (self.denied and any(map(self._charged, self.taken))))

    def fail(self, error: StoreError) -> None:
        """The record could not be claimed, so nothing was sent."""
        self.results = list(failed_outcomes(len(self.results), error))

    def outcomes(self) -> list[Outcome | StoreError]:
        return [result for result in self.results if result is not None]

    def _charged(self, part: _Part) -> bool:
        return bool(self._charged_positions(part))

    def _charged_positions(self, part: _Part) -> list[int]:
        """The positions of the members that were charged, and get that back: a non-binding member that denied was not
        charged. A charge that stays is left in its outcome, for the slices of leases."""
        charged = []
        for position, member in zip(part.positions, part.members, strict=True):
            result = self.results[position]
            if member.algorithm.keeps_charges:
                continue
            if isinstance(result, Outcome) and result.decision.allowed and member.cost and not member.peeks:
                charged.append(position)
        return charged

    def _give_back(self, part: _Part) -> _Part:
        charged = self._charged_positions(part)
        members = []
        for position, member in zip(part.positions, part.members, strict=True):
            result = self.results[position]
            if position in charged and isinstance(result, Outcome):
                tick, token, cost = result.tick, result.token, member.cost
                members.append(Member(member.key, member.algorithm, cost, True, tick, cost, None, token))
        return _Part(self, Op.GIVE_BACK, part.node, charged, members)


@final
class _IdempotentGroup:
    """Requests with one record: claim it, decide on all nodes, save the result."""

    def __init__(self, record: IdempotencyRecord, node: int, clock: Clock, before: _IdempotentGroup | None) -> None:
        self.record = record
        self.node = node
        self.clock = clock
        self.before = before
        self.requests: list[_PendingRequest] = []
        self.error: StoreError | None = None
        self.finished = False
        self.stages = self.run()

    def next_parts(self) -> list[_Part]:
        parts = next(self.stages, None)
        self.finished = parts is None
        return parts or []

    def receive(self, part: _Part, outcomes: Sequence[Outcome | StoreError]) -> None:
        """The outcome of an operation on the record. Decisions stand even if they could not be saved."""
        if part.op is Op.CLAIM:
            self.error = next((item for item in outcomes if isinstance(item, StoreError)), None)

    def run(self) -> Generator[list[_Part], None, None]:
        """The parts to send, round by round."""
        record = self.record
        while self.before is not None and not self.before.finished:
            yield []
        if {part.node for request in self.requests for part in request.ahead} == {self.node}:
            yield self.parts_of_members(record)
            return
        yield [self.part_of_record(Op.CLAIM)]
        if self.error is not None:
            for request in self.requests:
                request.fail(self.error)
            return
        if record.replay is not None or record.pending:
            return  # without outcomes
        while parts := self.parts_of_members(None):
            yield parts
        outcomes = [request.outcomes() for request in self.requests]
        decided = [[item for item in items if isinstance(item, Outcome)] for items in outcomes]
        if decided != outcomes:
            yield [self.part_of_record(Op.RELEASE)]
        else:
            record.encoded = encode_record(record, self.clock.ticks(), decided)
            yield [self.part_of_record(Op.SAVE)]

    def part_of_record(self, op: Op) -> _Part:
        return _Part(self, op, self.node, [], [], self.record)

    def parts_of_members(self, record: IdempotencyRecord | None) -> list[_Part]:
        parts = [part for request in self.requests if not request.finished for part in request.next_parts()]
        for part in parts:
            part.record = record
        return parts
