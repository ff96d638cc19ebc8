"""Requests whose counters live in several places: who is asked when, and what is undone.

Within one place a request is atomic. Across places its members are taken place by place, always in the same order,
and given back when a later place denies: so it never over-admits, two requests never deny each other for ever, and
what another request may meet meanwhile is a denial by a reservation that is about to be returned.

`spread` does no I/O: it yields rounds (which requests go to which place, all at once) and is sent what came of each.
A cluster's hash tags and the nodes of a sharded store are such places.
"""

from __future__ import annotations

from collections.abc import Callable, Generator, Mapping, Sequence
from typing import final

from headgate.errors import StoreError
from headgate.stores.port import Member, Op, Outcome, PartlyAnswered, Replies, Request

__all__ = ["Answers", "Round", "spread"]

Round = dict[int, list[Request]]
"""The requests for each place, in order."""

Answers = Mapping[int, Replies | StoreError]
"""What came of a round: for each place its replies, or why there are none."""


def spread(batch: Sequence[Request], place_of: Callable[[Member], int]) -> Generator[Round, Answers, Replies]:
    """Decide a batch place by place; returns its replies, or raises PartlyAnswered."""
    journeys = [_Journey(request, place_of) for request in batch]
    travelling = journeys
    while travelling:
        asked: Round = {}
        visits: list[tuple[_Journey, int, int, _Part]] = []
        for journey in travelling:
            for part in journey.next_parts():
                requests = asked.setdefault(part.place, [])
                visits.append((journey, part.place, len(requests), part))
                requests.append(Request(part.op, part.members))
        answers = yield asked
        for journey, place, position, part in visits:
            journey.heard(part, _reply(answers[place], position, len(part.members)))
        travelling = [journey for journey in travelling if not journey.over]
    replies = [journey.outcomes() for journey in journeys]
    whole = [[item for item in reply if isinstance(item, Outcome)] for reply in replies]
    if any(len(outcomes) < len(reply) for outcomes, reply in zip(whole, replies, strict=True)):
        raise PartlyAnswered(replies)
    return whole


def _reply(answer: Replies | StoreError, position: int, members: int) -> Sequence[Outcome | StoreError]:
    """What came of one request at a place."""
    if isinstance(answer, PartlyAnswered):
        return answer.replies[position]
    return [answer] * members if isinstance(answer, StoreError) else answer[position]


@final
class _Part:
    """The members of a request at one place, and what is to be done with them there."""

    def __init__(self, op: Op, place: int, positions: list[int], members: list[Member]) -> None:
        self.op = op
        self.place = place
        self.positions = positions
        self.members = members


@final
class _Journey:
    """One request on its way through its places."""

    def __init__(self, request: Request, place_of: Callable[[Member], int]) -> None:
        self.op = request.op
        self.results: list[Outcome | StoreError | None] = [None] * len(request.members)
        positions: dict[int, list[int]] = {}
        for position, member in enumerate(request.members):
            positions.setdefault(place_of(member), []).append(position)
        self.ahead = [
            _Part(request.op, place, places, [request.members[i] for i in places])
            for place, places in sorted(positions.items())
        ]
        self.taken: list[_Part] = []
        self.denied = False
        self.over = False

    def next_parts(self) -> list[_Part]:
        """What to ask for in the next round."""
        if self.op is not Op.TAKE:
            parts, self.ahead = self.ahead, []
        elif not self.denied:
            parts = [self.ahead.pop(0)]
        else:
            # Too much was asked somewhere: return what was taken before, and look at what was not asked yet.
            parts = [self._returning(part) for part in self.taken if self._charged(part)]
            parts += [_Part(Op.PEEK, part.place, part.positions, part.members) for part in self.ahead]
            self.taken, self.ahead = [], []
        return parts

    def heard(self, part: _Part, reply: Sequence[Outcome | StoreError]) -> None:
        """Take note of what a place said."""
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
                members.append(Member(member.key, member.algorithm, member.cost, True, result.tick, member.cost))
        return _Part(Op.GIVE_BACK, part.place, charged, members)
