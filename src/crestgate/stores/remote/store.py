"""Store in a Crestgate service: a batch is one call of its batch endpoint.

A StoreError means that a batch was not decided. If the response was lost it may have been: the message says so, and the
batch is not sent again. A batch that the service rejected as a whole (too large, or one invalid request) is sent again
in halves, so that only the invalid request fails. Requests of one group (`Request.group`) are decided only if all of
them are valid: the service rejects them together, and where they need several calls, their limits are peeked at first.

Plans and rules of the service are placeholders: see stores/server_side_limits.py. If the service's own store fails, its
failure policy decides; that is a reason in the outcomes, like every decision.
"""

from __future__ import annotations

import json
import re
import time
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, final

from crestgate.core.algorithms import Algorithm, build
from crestgate.core.algorithms.custom import CustomAlgorithm
from crestgate.core.limit import Limit
from crestgate.errors import (
    ConfigError,
    CrestgateError,
    ReservationClosedError,
    StoreClosedError,
    StoreError,
    UnknownReservationError,
)
from crestgate.runtime.clock import MachineClock, wall_minus_monotonic
from crestgate.stores.breaker import Breaker
from crestgate.stores.multi_node import failed_outcomes
from crestgate.stores.port import BatchCallback, BatchOutcomes, Member, Op, Outcome, PartialStoreError, Request
from crestgate.stores.remote.codec import (
    MalformedResponseError,
    ServiceProblemError,
    decode_outcomes,
    encode_request,
    parse_problem,
)
from crestgate.stores.remote.http_connection import ConnectionPool, RequestError, ServiceAddress, ServiceResponse
from crestgate.stores.remote_store import DEFAULT_TIMEOUT_MS, PROBE
from crestgate.stores.server_side_limits import RejectedRequestError, is_server_side, placeholder
from crestgate.stores.thread_adapter import ThreadedStore

__all__ = ["ServiceStore"]

PATH = "/api/v1/check/batch"
RESERVATIONS = "/api/v1/reservations"
MIN_RESERVATION_SECONDS = 1.0
"""A reservation is written to a book as well, which takes longer than a check."""
RESERVATION_BYTES = 1024 * 1024
"""Maximum size of a response: 100 limits with their keys."""
_RESERVATION_ID = re.compile(r"[A-Za-z0-9_-]{1,64}")
_RESERVATION_ERRORS: dict[int, type[CrestgateError]] = {
    400: ConfigError,
    404: UnknownReservationError,
    409: ReservationClosedError,
}
CONNECT_SECONDS = 5.0
"""Time limit of `connect`, which no request waits for."""
MAX_ITEMS = 1000
MAX_BODY_BYTES = 1024 * 1024
"""Limits of the batch endpoint."""
RESPONSE_BYTES, BYTES_PER_ITEM, BYTES_PER_BYTE = 65_536, 16_384, 8
"""Maximum size of a response: for an error, for the counters of one item (it may match many rules), and for each byte
of the request. Together at most 24 MB."""
HEAD, TAIL = '{"exact":true,"checks":[', "]}"
RANGE_BYTES = len("[1000,1000],")
NOT_TEXT = "a key must be text, and this one has half of a surrogate pair in it"
REJECTED = (400, 413)
"""Statuses of a batch of which nothing was decided."""

Outcomes = list[Outcome] | list[StoreError]


@final
class ServiceStore(ThreadedStore):
    """The counters, plans and rules of a service."""

    max_members = MAX_ITEMS
    min_shared_batch = 100  # the service decides one batch while the next is encoded

    def __init__(
        self, address: ServiceAddress, *, timeout_ms: int = DEFAULT_TIMEOUT_MS, pool_size: int | None = None
    ) -> None:
        super().__init__(address.title)
        self.title = address.title
        self.clock = MachineClock(wall_minus_monotonic())
        self.timeout = timeout_ms / 1000
        self.max_concurrent_batches = pool_size or self.max_concurrent_batches
        self.address = address
        self.connections = ConnectionPool(address, self.max_concurrent_batches)
        self.breaker = Breaker()
        self.closed = False

    def breakers(self) -> dict[str, Breaker]:
        return {self.title: self.breaker}

    def supports(self, algorithm: Algorithm) -> bool:
        return not isinstance(algorithm, CustomAlgorithm) and not algorithm.holds

    def plan_of(self, name: str) -> Algorithm:
        return placeholder(name)

    def rules_for(self, context: Mapping[str, Any]) -> Member:
        return Member(json.dumps(context), placeholder(None), 1)

    def connect(self) -> None:
        """Peek at a probe counter: a wrong address or key is an error now."""
        self._check_open()
        probe = Request(Op.PEEK, [Member(PROBE, build(Limit(1_000_000, 1), PROBE), 1)])
        (outcomes,) = self._post([encode_request(probe)], [probe], time.monotonic() + CONNECT_SECONDS)
        for item in outcomes:
            if isinstance(item, StoreError):
                raise item

    def call(self, batch: Sequence[Request], deadline: float) -> BatchOutcomes:
        self._check_open()
        now = time.monotonic()
        if not self.breaker.admits(now):
            raise self._error(self.breaker.refusal())
        try:
            return self._decide(batch, deadline)
        finally:
            self.breaker.settled(now)

    def begin(self, batch: Sequence[Request], deadline: float, done: BatchCallback) -> None:
        # A late thread must not change the members of requests that the failure policy has answered.
        copies = [Request(request.op, request.members, request.record, request.group) for request in batch]

        def on_result(result: BatchOutcomes | StoreError) -> None:
            if isinstance(result, list | PartialStoreError):
                for request, copy in zip(batch, copies, strict=True):
                    request.members = copy.members
            done(result)

        super().begin(copies, deadline, on_result)

    def reserve(self, request: Request, terms: Mapping[str, Any]) -> tuple[Mapping[str, Any], list[Outcome]]:
        body = json.loads(encode_request(Request(Op.TAKE, request.members)))
        response = self._call_json(RESERVATIONS, {**body, **terms, "exact": True})
        try:
            return response, decode_outcomes(request, response)
        except MalformedResponseError as error:
            raise self._failed(f"its response is not valid ({error}); it may have reserved") from None

    def call_reservation(self, reservation_id: str, action: str, body: Mapping[str, Any]) -> Mapping[str, Any]:
        if not _RESERVATION_ID.fullmatch(reservation_id):
            raise UnknownReservationError("there is no such reservation")
        return self._call_json(f"{RESERVATIONS}/{reservation_id}/{action}", body)

    def _call_json(self, path: str, body: Mapping[str, Any]) -> Mapping[str, Any]:
        """One call of a reservation: not part of a batch, and not sent again."""
        self._check_open()
        now = time.monotonic()
        if not self.breaker.admits(now):
            raise self._error(self.breaker.refusal())
        deadline = now + max(self.timeout, MIN_RESERVATION_SECONDS)
        try:
            response = self.connections.post(path, json.dumps(body).encode(), deadline, RESERVATION_BYTES)
            document = json.loads(response.body)
            if not isinstance(document, dict):
                raise ValueError("it is not an object")
        except RequestError as error:
            raise self._failed(str(error), now if error.timed_out else None) from None
        except (ValueError, RecursionError) as error:
            raise self._failed(f"its response is not valid ({error})") from None
        finally:
            self.breaker.settled(now)
        if response.status >= 500:
            problem = parse_problem(document)
            raise self._failed("it failed" if problem is None else problem.detail)
        self.breaker.succeeded()
        if response.status in (200, 201):
            return document
        problem = parse_problem(document) or ServiceProblemError(response.status, "it does not say why")
        kind = _RESERVATION_ERRORS.get(response.status)
        raise self._error(self._advice(problem)) if kind is None else kind(f"{self.title}: {problem.detail}")

    def close(self) -> None:
        self.closed = True
        self.connections.close()
        super().close()

    def _decide(self, batch: Sequence[Request], deadline: float) -> BatchOutcomes:
        if any(request.record is not None for request in batch):
            raise self._error("idempotency records are kept by the service itself, for its own callers")
        sent = [request for request in batch if request.members]
        pieces = _pieces(sent)
        if len(pieces) > 1:
            invalid = self._invalid_groups(sent, deadline)
            if invalid:
                valid = [request for request in sent if id(request.group) not in invalid]
                return _joined(batch, invalid, self._send(_pieces(valid), deadline))
        return _joined(batch, {}, self._send(pieces, deadline))

    def _send(self, pieces: Sequence[tuple[list[str], list[Request]]], deadline: float) -> list[Outcomes]:
        """One call for each piece; the outcomes of each request."""
        outcomes: list[Outcomes] = []
        for items, requests in pieces:
            try:
                outcomes += self._post(items, requests, deadline)
            except StoreError as error:
                if not outcomes:
                    raise
                left = [request for _, some in pieces for request in some][len(outcomes) :]
                outcomes += [failed_outcomes(len(request.members), error) for request in left]
                break
        return outcomes

    def _post(
        self, items: Sequence[str], requests: Sequence[Request], deadline: float, validated: bool = False
    ) -> list[Outcomes]:
        """One call; the outcomes of each request. `validated`: no group has an invalid request."""
        started = time.monotonic()
        try:
            body = f"{HEAD}{','.join(items)}{_tail(requests)}".encode("ascii")
            max_bytes = RESPONSE_BYTES + len(items) * BYTES_PER_ITEM + len(body) * BYTES_PER_BYTE
            response = self.connections.post(PATH, body, deadline, max_bytes)
        except RequestError as error:
            counted = "; the requests may have been counted" if error.sent else ""
            if error.busy or (error.timed_out and deadline - started < self.timeout / 2):  # there was too little time
                raise self._error(f"{error}{counted}") from None
            raise self._failed(f"{error}{counted}", started if error.timed_out else None) from None
        if response.status == 200:
            return self._decode(requests, response.body)
        if response.status in REJECTED and len(items) > 1:
            if not validated:
                invalid = self._invalid_groups(requests, deadline)
                if invalid:
                    valid = [at for at, request in enumerate(requests) if id(request.group) not in invalid]
                    left = ([items[at] for at in valid], [requests[at] for at in valid])
                    replies = iter(self._post(*left, deadline, True) if valid else [])
                    return [_outcomes_of(request, invalid, replies) for request in requests]
            half = len(items) // 2
            first = self._post(items[:half], requests[:half], deadline, True)
            try:
                return first + self._post(items[half:], requests[half:], deadline, True)
            except StoreError as failure:
                return first + [failed_outcomes(len(request.members), failure) for request in requests[half:]]
        return self._read_error(requests, response)

    def _invalid_groups(self, requests: Sequence[Request], deadline: float) -> dict[int, StoreError]:
        """The error of each group with a request that the service rejects, by the group's identity. Peeks at each limit
        of a group once; charges nothing."""
        invalid: dict[int, StoreError] = {}
        peeks: list[Request] = []
        for first, behind in _ranges(requests):
            group = requests[first].group
            members = [member for request in requests[first:behind] for member in request.members]
            if not all(_is_text(member.key) for member in members):
                invalid[id(group)] = self._error_of(ServiceProblemError(400, NOT_TEXT))
                continue
            limits = {(is_server_side(m.algorithm), m.algorithm.name, m.algorithm.limit): m for m in reversed(members)}
            peeks += [Request(Op.PEEK, [Member(m.key, m.algorithm, 0)], None, group) for m in limits.values()]
        # Each for itself: which group they are of is only needed here.
        pieces = _pieces([Request(Op.PEEK, peek.members) for peek in peeks])
        for peek, items in zip(peeks, self._send(pieces, deadline), strict=True):
            for item in items:
                if isinstance(item, RejectedRequestError):
                    invalid.setdefault(id(peek.group), item)
                elif isinstance(item, StoreError):
                    raise item
        return invalid

    def _decode(self, requests: Sequence[Request], body: bytes) -> list[Outcomes]:
        try:
            decisions = json.loads(body)["decisions"]
            if not isinstance(decisions, list) or len(decisions) != len(requests):
                raise MalformedResponseError("it needs one decision for each request")
            outcomes = [self._outcomes(request, one) for request, one in zip(requests, decisions, strict=True)]
        except (ValueError, KeyError, TypeError, RecursionError, MalformedResponseError) as error:
            raise self._failed(f"its response is not valid ({error}); the requests may have been counted") from None
        self.breaker.succeeded()
        return outcomes

    def _outcomes(self, request: Request, decision: Any) -> Outcomes:
        try:
            return decode_outcomes(request, decision)
        except ServiceProblemError as problem:
            return failed_outcomes(len(request.members), self._error_of(problem))

    def _read_error(self, requests: Sequence[Request], response: ServiceResponse) -> list[Outcomes]:
        """A response that is not 200: rejected requests, or a StoreError."""
        try:
            problem = parse_problem(json.loads(response.body))
        except (ValueError, RecursionError):
            problem = None
        if problem is None:
            raise self._failed(
                f"it answers {response.status}, and not as a Crestgate service does: is this its address?"
            )
        if problem.status in REJECTED:
            self.breaker.succeeded()
            if not all(_is_text(member.key) for request in requests for member in request.members):
                problem = ServiceProblemError(400, NOT_TEXT)
            return [failed_outcomes(len(request.members), self._error_of(problem)) for request in requests]
        if problem.status == 429:  # the service is up, and limits its callers
            raise self._error(problem.detail)
        raise self._failed(self._advice(problem))

    def _error_of(self, problem: ServiceProblemError) -> StoreError:
        """The error of one request: rejected as invalid, or not decided."""
        if problem.status == 400:
            return RejectedRequestError(ConfigError(f"{self.title}: {problem.detail}"))
        return self._error(self._advice(problem))

    def _advice(self, problem: ServiceProblemError) -> str:
        if problem.status == 401 and self.address.key is None:
            return (
                "this needs a key: write it into the URL, crestgate://:KEY@host:8080 "
                "(`crestgate keys create NAME --scope check` makes one there; to reset takes the scope write)"
            )
        if problem.status in (401, 403):
            return f"{problem.detail}; that key is in the URL, crestgate://:KEY@host:8080"
        return problem.detail

    def _check_open(self) -> None:
        if self.closed:
            raise StoreClosedError(f"{self.title}: this store is closed")

    def _failed(self, reason: str, started: float | None = None) -> StoreError:
        self.breaker.failed(time.monotonic(), reason, started)
        return self._error(reason)

    def _error(self, reason: str) -> StoreError:
        return StoreError(f"{self.title}: {reason}")


def _joined(batch: Sequence[Request], invalid: Mapping[int, StoreError], outcomes: Sequence[Outcomes]) -> BatchOutcomes:
    """The outcomes of a batch; PartialStoreError if some requests failed."""
    replies = iter(outcomes)
    joined = [_outcomes_of(request, invalid, replies) if request.members else [] for request in batch]
    decided = [[item for item in items if isinstance(item, Outcome)] for items in joined]
    if any(len(some) < len(items) for some, items in zip(decided, joined, strict=True)):
        raise PartialStoreError(joined)
    return decided


def _outcomes_of(request: Request, invalid: Mapping[int, StoreError], replies: Iterator[Outcomes]) -> Outcomes:
    """The error of its group, else the next of the replies."""
    error = invalid.get(id(request.group)) if request.group is not None else None
    return next(replies) if error is None else failed_outcomes(len(request.members), error)


def _ranges(requests: Sequence[Request]) -> list[tuple[int, int]]:
    """Where the requests of each group are: the first, and the one after the last."""
    ranges: list[tuple[int, int]] = []
    start = 0
    for at in range(1, len(requests) + 1):
        group = requests[start].group
        if at < len(requests) and group is not None and requests[at].group is group:
            continue
        if at - start > 1:
            ranges.append((start, at))
        start = at
    return ranges


def _tail(requests: Sequence[Request]) -> str:
    ranges = _ranges(requests)
    if not ranges:
        return TAIL
    return f'],"together":[{",".join([f"[{first},{behind}]" for first, behind in ranges])}]}}'


def _pieces(batch: Sequence[Request]) -> list[tuple[list[str], list[Request]]]:
    """Split a batch into pieces of one call each."""
    pieces: list[tuple[list[str], list[Request]]] = []
    size = MAX_BODY_BYTES
    for request in batch:
        item = encode_request(request)
        size += len(item) + 1 if request.group is None else len(item) + 1 + RANGE_BYTES
        if size > MAX_BODY_BYTES or len(pieces[-1][0]) == MAX_ITEMS:
            pieces.append(([], []))
            size = len(HEAD) + len(TAIL) + len('"together":[],') + len(item) + 1 + RANGE_BYTES
        pieces[-1][0].append(item)
        pieces[-1][1].append(request)
    return pieces


def _is_text(key: str) -> bool:
    """Whether JSON can represent it; other stores accept lone surrogates, too."""
    try:
        key.encode()
    except UnicodeEncodeError:
        return False
    return True
