"""Counters in a Headgate service: a batch of the engine's is one call of its batch endpoint.

A StoreError says that a batch was not decided. When the answer was lost it may have been: the message says so, and the
batch is not sent again. What the service has refused whole, before it asked anything (too large, or a mistake in one of
the requests), is sent again in halves, so that it is the business of one alone.

Plans and rules of the service are asked for by stand-ins: see stores/far.py. The service's own failure policy answers
where its store cannot; that comes as reasons in the outcomes, like every decision.
"""

from __future__ import annotations

import json
import time
from collections.abc import Mapping, Sequence
from typing import Any, final

from headgate.core.algorithms import Algorithm, build
from headgate.core.algorithms.registered import Registered
from headgate.core.limit import Limit
from headgate.errors import ConfigError, StoreClosed, StoreError
from headgate.stores.breaker import Breaker
from headgate.stores.clock import MachineClock, wall_minus_monotonic
from headgate.stores.far import Mistaken, stand_in
from headgate.stores.port import Done, Member, Op, Outcome, PartlyAnswered, Replies, Request
from headgate.stores.remote import DEFAULT_TIMEOUT_MS, PROBE
from headgate.stores.service.place import Answered, Broken, Connections, Place
from headgate.stores.service.wire import Malformed, Problem, item_of, outcomes_of, problem_in
from headgate.stores.spread import unanswered
from headgate.stores.threaded import ThreadedStore

__all__ = ["ServiceStore"]

PATH = "/api/v1/check/batch"
CONNECT_SECONDS = 5.0
"""The time for the first call, which no request waits for."""
MOST_ITEMS = 1000
MOST_BODY_BYTES = 1024 * 1024
"""What a service takes in one call."""
ANSWER_BYTES, BYTES_PER_ITEM, BYTES_PER_BYTE = 65_536, 16_384, 8
"""How long an answer may be: for an error, for the counters of one item (its rules may be many), and for each byte that
was asked. Together at most 24 MB."""
HEAD, TAIL = '{"exact":true,"checks":[', "]}"
TOO_MUCH = (400, 413)
"""Nothing of such a batch was decided."""

Reply = list[Outcome] | list[StoreError]


@final
class ServiceStore(ThreadedStore):
    """The counters, plans and rules of the service at a place."""

    most_members = MOST_ITEMS

    def __init__(self, place: Place, *, timeout_ms: int = DEFAULT_TIMEOUT_MS, pool_size: int | None = None) -> None:
        super().__init__(place.title)
        self.title = place.title
        self.clock = MachineClock(wall_minus_monotonic())
        self.timeout = timeout_ms / 1000
        self.lanes = pool_size or self.lanes
        self.place = place
        self.connections = Connections(place, self.lanes)
        self.breaker = Breaker()
        self.closed = False

    def breakers(self) -> dict[str, Breaker]:
        return {self.title: self.breaker}

    def supports(self, algorithm: Algorithm) -> bool:
        return not isinstance(algorithm, Registered)

    def plan_of(self, name: str) -> Algorithm:
        return stand_in(name)

    def rules_for(self, context: Mapping[str, str]) -> Member:
        return Member(json.dumps(context), stand_in(None), 1)

    def connect(self) -> None:
        """Look at a counter that nobody uses: an address or a key that is wrong shows now."""
        self._check_open()
        probe = Request(Op.PEEK, [Member(PROBE, build(Limit(1_000_000, 1), PROBE), 1)])
        (reply,) = self._ask([item_of(probe)], [probe], time.monotonic() + CONNECT_SECONDS)
        for item in reply:
            if isinstance(item, StoreError):
                raise item

    def call(self, batch: Sequence[Request], deadline: float) -> Replies:
        self._check_open()
        now = time.monotonic()
        if not self.breaker.admits(now):
            raise self._error(self.breaker.refusal())
        try:
            return self._decide(batch, deadline)
        finally:
            self.breaker.settled(now)

    def begin(self, batch: Sequence[Request], deadline: float, done: Done) -> None:
        # A thread that comes late must not change the members of requests that were answered by the failure policy.
        copies = [Request(request.op, request.members, request.once) for request in batch]

        def landed(answer: Replies | StoreError) -> None:
            if isinstance(answer, list | PartlyAnswered):
                for request, copy in zip(batch, copies, strict=True):
                    request.members = copy.members
            done(answer)

        super().begin(copies, deadline, landed)

    def close(self) -> None:
        self.closed = True
        self.connections.close()
        super().close()

    def _decide(self, batch: Sequence[Request], deadline: float) -> Replies:
        if any(request.once is not None for request in batch):
            raise self._error("what is decided once is kept by the service itself, for its own callers")
        asked = [request for request in batch if request.members]
        replies: list[Reply] = []
        for items, requests in _pieces(asked):
            try:
                replies += self._ask(items, requests, deadline)
            except StoreError as error:
                if not replies:
                    raise
                replies += [unanswered(len(request.members), error) for request in asked[len(replies) :]]
                break
        if len(asked) < len(batch):
            told = iter(replies)
            replies = [next(told) if request.members else [] for request in batch]
        whole = [[item for item in reply if isinstance(item, Outcome)] for reply in replies]
        if any(len(outcomes) < len(reply) for outcomes, reply in zip(whole, replies, strict=True)):
            raise PartlyAnswered(replies)
        return whole

    def _ask(self, items: Sequence[str], requests: Sequence[Request], deadline: float) -> list[Reply]:
        """One call; its answers in the order of the requests."""
        try:
            body = f"{HEAD}{','.join(items)}{TAIL}".encode("ascii")
            max_bytes = ANSWER_BYTES + len(items) * BYTES_PER_ITEM + len(body) * BYTES_PER_BYTE
            answered = self.connections.ask(PATH, body, deadline, max_bytes)
        except Broken as broken:
            counted = "; the requests may have been counted" if broken.sent else ""
            raise (self._error if broken.busy else self._failed)(f"{broken}{counted}") from None
        if answered.status == 200:
            return self._replies(requests, answered.body)
        if answered.status in TOO_MUCH and len(items) > 1:
            half = len(items) // 2
            first = self._ask(items[:half], requests[:half], deadline)
            try:
                return first + self._ask(items[half:], requests[half:], deadline)
            except StoreError as error:
                return first + [unanswered(len(request.members), error) for request in requests[half:]]
        return self._refused(requests, answered)

    def _replies(self, requests: Sequence[Request], body: bytes) -> list[Reply]:
        try:
            answers = json.loads(body)["decisions"]
            if not isinstance(answers, list) or len(answers) != len(requests):
                raise Malformed("as many answers as questions are missing")
            replies = [self._reply(request, answer) for request, answer in zip(requests, answers, strict=True)]
        except (ValueError, KeyError, TypeError, RecursionError, Malformed) as error:
            raise self._failed(
                f"its answer makes no sense here ({error}); the requests may have been counted"
            ) from None
        self.breaker.succeeded()
        return replies

    def _reply(self, request: Request, answer: Any) -> Reply:
        try:
            return outcomes_of(request, answer)
        except Problem as problem:
            return unanswered(len(request.members), self._mistake(problem))

    def _refused(self, requests: Sequence[Request], answered: Answered) -> list[Reply]:
        """The service is there, and does not answer these."""
        try:
            told = problem_in(json.loads(answered.body))
        except (ValueError, RecursionError):
            told = None
        if told is None:
            odd = f"it answers {answered.status}, and not as a Headgate service does: is this its address?"
            raise self._failed(odd)
        if told.status in TOO_MUCH:
            self.breaker.succeeded()
            if not all(_is_text(member.key) for request in requests for member in request.members):
                told = Problem(400, "a key must be text, and this one has half of a surrogate pair in it")
            return [unanswered(len(request.members), self._mistake(told)) for request in requests]
        if told.status == 429:  # it is well, and says how much it takes
            raise self._error(told.detail)
        raise self._failed(self._advice(told))

    def _mistake(self, problem: Problem) -> StoreError:
        """What one request is told: its own mistake, or what kept the service from deciding it."""
        if problem.status == 400:
            return Mistaken(ConfigError(f"{self.title}: {problem.detail}"))
        return self._error(self._advice(problem))

    def _advice(self, problem: Problem) -> str:
        if problem.status == 401 and self.place.key is None:
            return (
                "this needs a key: write it into the URL, headgate://:KEY@host:8080 "
                "(`headgate keys create NAME --scope check` makes one there; to reset takes the scope write)"
            )
        if problem.status in (401, 403):
            return f"{problem.detail}; that key is in the URL, headgate://:KEY@host:8080"
        return problem.detail

    def _check_open(self) -> None:
        if self.closed:
            raise StoreClosed(f"{self.title}: this store is closed")

    def _failed(self, problem: str) -> StoreError:
        self.breaker.failed(time.monotonic(), problem)
        return self._error(problem)

    def _error(self, problem: str) -> StoreError:
        return StoreError(f"{self.title}: {problem}")


def _pieces(batch: Sequence[Request]) -> list[tuple[list[str], list[Request]]]:
    """A batch in pieces that a service takes in one call each."""
    pieces: list[tuple[list[str], list[Request]]] = []
    size = MOST_BODY_BYTES
    for request in batch:
        item = item_of(request)
        size += len(item) + 1
        if size > MOST_BODY_BYTES or len(pieces[-1][0]) == MOST_ITEMS:
            pieces.append(([], []))
            size = len(HEAD) + len(TAIL) + len(item) + 1
        pieces[-1][0].append(item)
        pieces[-1][1].append(request)
    return pieces


def _is_text(key: str) -> bool:
    """Whether JSON has a way to write it: other stores take what is no text, too."""
    try:
        key.encode()
    except UnicodeEncodeError:
        return False
    return True
