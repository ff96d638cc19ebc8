"""Requests whose counters live in several places: who is asked when, and what is undone.

Within one place a request is atomic. Across places its members are taken place by place, always in the same order,
and given back when a later place denies: so it never over-admits, two requests never deny each other for ever, and
what another request may meet meanwhile is a denial by a reservation that is about to be returned.

`spread` does no I/O: it yields rounds (which requests go to which place, all at once) and is sent what came of each.
A cluster's hash tags and the nodes of a sharded store are such places.

Requests that are decided once have a record, which lives in one place too. If all their members live there as well,
that place does it all in one step. Otherwise the record is claimed first, then the members are decided, then what came
of them is kept; who comes meanwhile finds the claim. One who dies in between leaves a claim, which is forgotten like
every record: until then nobody knows what was decided, and it is not decided again.

Where a member could not be decided nothing is kept, and the claim is released: what a failure policy answers is no
decision, and must not be repeated for minutes after the place is back. The members that were reached stay charged, as
they do without a record, because the policy may have let the request pass: to give them back would make an idempotency
key the way around every limit whose place is well. So a repeat is decided anew, and charges them a second time.
"""

from __future__ import annotations

from collections.abc import Callable, Generator, Mapping, Sequence
from typing import final

from headgate.errors import StoreError
from headgate.stores.clock import Clock
from headgate.stores.keeping import pack_kept
from headgate.stores.port import Member, Once, Op, Outcome, PartlyAnswered, Replies, Request
from headgate.stores.records import check_kept

__all__ = ["Answers", "Round", "spread", "unanswered"]

Round = dict[int, list[Request]]
"""The requests for each place, in order."""

Answers = Mapping[int, Replies | StoreError]
"""What came of a round: for each place its replies, or why there are none."""

_OF_RECORDS = (Op.CLAIM, Op.KEEP, Op.RELEASE)


def spread(
    batch: Sequence[Request], place_of: Callable[[Member], int], place_of_record: Callable[[str], int], clock: Clock
) -> Generator[Round, Answers, Replies]:
    """Decide a batch place by place; returns its replies, or raises PartlyAnswered.

    `place_of_record` says where what is kept under a name lives, and `clock` when it was decided.
    """
    check_kept(batch)
    journeys = [_Journey(request, place_of, place_of_record) for request in batch]
    travelling: list[_Journey | _Party] = _parties(journeys, place_of_record, clock)
    while travelling:
        asked: Round = {}
        visits: list[tuple[int, int, _Part]] = []
        for traveller in travelling:
            for part in traveller.next_parts():
                requests = asked.setdefault(part.place, [])
                visits.append((part.place, len(requests), part))
                requests.append(Request(part.op, part.members, part.once))
        if asked:
            answers = yield asked
            for place, position, part in visits:
                part.traveller.heard(part, _reply(answers[place], position, part))
        travelling = [traveller for traveller in travelling if not traveller.over]
    replies = [journey.outcomes() for journey in journeys]
    whole = [[item for item in reply if isinstance(item, Outcome)] for reply in replies]
    if any(len(outcomes) < len(reply) for outcomes, reply in zip(whole, replies, strict=True)):
        raise PartlyAnswered(replies)
    return whole


def unanswered(members: int, error: StoreError) -> list[StoreError]:
    """The reply to a request that a place did not answer. One without members has its error all the same: who claims
    a record must hear that it was not claimed."""
    return [error] * max(members, 1)


def _reply(answer: Replies | StoreError, position: int, part: _Part) -> Sequence[Outcome | StoreError]:
    """What came of one request at a place."""
    if isinstance(answer, PartlyAnswered):
        return answer.replies[position]
    return unanswered(len(part.members), answer) if isinstance(answer, StoreError) else answer[position]


def _parties(
    journeys: Sequence[_Journey], place_of_record: Callable[[str], int], clock: Clock
) -> list[_Journey | _Party]:
    """Who travels: each request by itself, but those that are decided once with all that carry the same record."""
    travelling: list[_Journey | _Party] = []
    parties: dict[str, _Party] = {}
    last: _Party | None = None
    for journey in journeys:
        once = journey.once
        if once is None or journey.claims:
            last = None
            if not journey.over:
                travelling.append(journey)
            continue
        if last is None or last.once is not once:
            # Repeats in one batch go one after the other, so that the second finds what came of the first.
            last = _Party(once, place_of_record(once.name), clock, parties.get(once.name))
            parties[once.name] = last
            travelling.append(last)
        last.journeys.append(journey)
    return travelling


@final
class _Part:
    """The members of a request at one place, and what is to be done with them there; who is to hear of it."""

    def __init__(
        self,
        traveller: _Journey | _Party,
        op: Op,
        place: int,
        positions: list[int],
        members: list[Member],
        once: Once | None = None,
    ) -> None:
        self.traveller = traveller
        self.op = op
        self.place = place
        self.once = once
        self.positions = positions
        self.members = members


@final
class _Journey:
    """One request on its way through its places."""

    def __init__(
        self, request: Request, place_of: Callable[[Member], int], place_of_record: Callable[[str], int]
    ) -> None:
        self.op = request.op
        self.once = request.once
        self.claims = request.op in _OF_RECORDS
        self.results: list[Outcome | StoreError | None] = [None] * len(request.members)
        positions: dict[int, list[int]] = {}
        for position, member in enumerate(request.members):
            positions.setdefault(place_of(member), []).append(position)
        self.ahead = [
            _Part(self, request.op, place, places, [request.members[i] for i in places])
            for place, places in sorted(positions.items())
        ]
        if self.claims and request.once is not None:
            self.ahead = [_Part(self, request.op, place_of_record(request.once.name), [], [], request.once)]
        self.taken: list[_Part] = []
        self.denied = False
        self.over = not self.ahead

    def next_parts(self) -> list[_Part]:
        """What to ask for in the next round."""
        if self.op is not Op.TAKE:
            parts, self.ahead = self.ahead, []
        elif not self.denied:
            parts = [self.ahead.pop(0)]
        else:
            # Too much was asked somewhere: return what was taken before, and look at what was not asked yet.
            parts = [self._returning(part) for part in self.taken if self._charged(part)]
            parts += [_Part(self, Op.PEEK, part.place, part.positions, part.members) for part in self.ahead]
            self.taken, self.ahead = [], []
        return parts

    def heard(self, part: _Part, reply: Sequence[Outcome | StoreError]) -> None:
        """Take note of what a place said."""
        if part.once is not None and len(reply) != len(part.members):
            # Decided before, under the name of its record; or a record that could not be claimed.
            self.results.extend(reply)
            self.over = True
            return
        for position, item in zip(part.positions, reply, strict=True):
            if isinstance(item, Outcome) or part.op is not Op.GIVE_BACK:
                self.results[position] = item
            # else a return that is lost: the charge stays, and so does its outcome
        if self.op is not Op.TAKE or self.denied:
            self.over = True
            return
        self.denied = any(
            member.binds and isinstance(item, Outcome) and not item.decision.allowed
            for member, item in zip(part.members, reply, strict=True)
        )
        if not self.denied:  # a place that denies has charged nothing
            self.taken.append(part)
        self.over = not (self.ahead or (self.denied and any(map(self._charged, self.taken))))

    def failed(self, error: StoreError) -> None:
        """It could not even set out."""
        self.results = list(unanswered(len(self.results), error))

    def outcomes(self) -> list[Outcome | StoreError]:
        return [result for result in self.results if result is not None]

    def _charged(self, part: _Part) -> bool:
        return bool(self._charged_positions(part))

    def _charged_positions(self, part: _Part) -> list[int]:
        """The places in the request of those members that were charged: a shadow that denied was not."""
        charged = []
        for position, member in zip(part.positions, part.members, strict=True):
            result = self.results[position]
            if isinstance(result, Outcome) and result.decision.allowed and member.cost:
                charged.append(position)
        return charged

    def _returning(self, part: _Part) -> _Part:
        charged = self._charged_positions(part)
        members = []
        for position, member in zip(part.positions, part.members, strict=True):
            result = self.results[position]
            if position in charged and isinstance(result, Outcome):
                tick, token, cost = result.tick, result.token, member.cost
                members.append(Member(member.key, member.algorithm, cost, True, tick, cost, None, token))
        return _Part(self, Op.GIVE_BACK, part.place, charged, members)


@final
class _Party:
    """Requests that are decided once, on their way together: to the record, through their places, to the record."""

    def __init__(self, once: Once, place: int, clock: Clock, before: _Party | None) -> None:
        self.once = once
        self.place = place
        self.clock = clock
        self.before = before
        self.journeys: list[_Journey] = []
        self.error: StoreError | None = None
        self.over = False
        self.stages = self.travel()

    def next_parts(self) -> list[_Part]:
        parts = next(self.stages, None)
        self.over = parts is None
        return parts or []

    def heard(self, part: _Part, reply: Sequence[Outcome | StoreError]) -> None:
        """What the record's place said. What was decided stands, whether or not it could be kept."""
        if part.op is Op.CLAIM:
            self.error = next((item for item in reply if isinstance(item, StoreError)), None)

    def travel(self) -> Generator[list[_Part], None, None]:
        """What to ask for, round by round."""
        once = self.once
        while self.before is not None and not self.before.over:
            yield []
        if {part.place for journey in self.journeys for part in journey.ahead} == {self.place}:
            yield self.parts_of_members(once)
            return
        yield [self.part_of_record(Op.CLAIM)]
        if self.error is not None:
            for journey in self.journeys:
                journey.failed(self.error)
            return
        if once.kept is not None or once.pending:
            return  # without any outcome
        while parts := self.parts_of_members(None):
            yield parts
        replies = [journey.outcomes() for journey in self.journeys]
        decided = [[item for item in reply if isinstance(item, Outcome)] for reply in replies]
        if decided != replies:
            yield [self.part_of_record(Op.RELEASE)]
        else:
            once.packed = pack_kept(once, self.clock.ticks(), decided)
            yield [self.part_of_record(Op.KEEP)]

    def part_of_record(self, op: Op) -> _Part:
        return _Part(self, op, self.place, [], [], self.once)

    def parts_of_members(self, once: Once | None) -> list[_Part]:
        parts = [part for journey in self.journeys if not journey.over for part in journey.next_parts()]
        for part in parts:
            part.once = once
        return parts
