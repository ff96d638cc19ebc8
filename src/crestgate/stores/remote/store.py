"""Store in a Crestgate service: a batch is one call of its batch endpoint.

A StoreError means that a batch was not decided. If the response was lost it may have been: the message says so, and the
batch is not sent again. A batch that the service rejected as a whole (too large, or one invalid request) is sent again
in halves, so that only the invalid request fails.

Plans and rules of the service are placeholders: see stores/server_side_limits.py. If the service's own store fails, its
failure policy decides; that is a reason in the outcomes, like every decision.
"""

from __future__ import annotations

import json
import time
from collections.abc import Mapping, Sequence
from typing import Any, final

from crestgate.core.algorithms import Algorithm, build
from crestgate.core.algorithms.custom import CustomAlgorithm
from crestgate.core.limit import Limit
from crestgate.errors import ConfigError, StoreClosedError, StoreError
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
from crestgate.stores.server_side_limits import RejectedRequestError, placeholder
from crestgate.stores.thread_adapter import ThreadedStore

__all__ = ["ServiceStore"]

PATH = "/api/v1/check/batch"
CONNECT_SECONDS = 5.0
"""Time limit of `connect`, which no request waits for."""
MAX_ITEMS = 1000
MAX_BODY_BYTES = 1024 * 1024
"""Limits of the batch endpoint."""
RESPONSE_BYTES, BYTES_PER_ITEM, BYTES_PER_BYTE = 65_536, 16_384, 8
"""Maximum size of a response: for an error, for the counters of one item (it may match many rules), and for each byte
of the request. Together at most 24 MB."""
HEAD, TAIL = '{"exact":true,"checks":[', "]}"
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
        return not isinstance(algorithm, CustomAlgorithm)

    def plan_of(self, name: str) -> Algorithm:
        return placeholder(name)

    def rules_for(self, context: Mapping[str, str]) -> Member:
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
        copies = [Request(request.op, request.members, request.record) for request in batch]

        def on_result(result: BatchOutcomes | StoreError) -> None:
            if isinstance(result, list | PartialStoreError):
                for request, copy in zip(batch, copies, strict=True):
                    request.members = copy.members
            done(result)

        super().begin(copies, deadline, on_result)

    def close(self) -> None:
        self.closed = True
        self.connections.close()
        super().close()

    def _decide(self, batch: Sequence[Request], deadline: float) -> BatchOutcomes:
        if any(request.record is not None for request in batch):
            raise self._error("idempotency records are kept by the service itself, for its own callers")
        sent = [request for request in batch if request.members]
        outcomes: list[Outcomes] = []
        for items, requests in _pieces(sent):
            try:
                outcomes += self._post(items, requests, deadline)
            except StoreError as error:
                if not outcomes:
                    raise
                outcomes += [failed_outcomes(len(request.members), error) for request in sent[len(outcomes) :]]
                break
        if len(sent) < len(batch):
            of_sent = iter(outcomes)
            outcomes = [next(of_sent) if request.members else [] for request in batch]
        decided = [[item for item in items if isinstance(item, Outcome)] for items in outcomes]
        if any(len(some) < len(items) for some, items in zip(decided, outcomes, strict=True)):
            raise PartialStoreError(outcomes)
        return decided

    def _post(self, items: Sequence[str], requests: Sequence[Request], deadline: float) -> list[Outcomes]:
        """One call; the outcomes of each request."""
        started = time.monotonic()
        try:
            body = f"{HEAD}{','.join(items)}{TAIL}".encode("ascii")
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
            half = len(items) // 2
            first = self._post(items[:half], requests[:half], deadline)
            try:
                return first + self._post(items[half:], requests[half:], deadline)
            except StoreError as failure:
                return first + [failed_outcomes(len(request.members), failure) for request in requests[half:]]
        return self._read_error(requests, response)

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
                problem = ServiceProblemError(
                    400, "a key must be text, and this one has half of a surrogate pair in it"
                )
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


def _pieces(batch: Sequence[Request]) -> list[tuple[list[str], list[Request]]]:
    """Split a batch into pieces of one call each."""
    pieces: list[tuple[list[str], list[Request]]] = []
    size = MAX_BODY_BYTES
    for request in batch:
        item = encode_request(request)
        size += len(item) + 1
        if size > MAX_BODY_BYTES or len(pieces[-1][0]) == MAX_ITEMS:
            pieces.append(([], []))
            size = len(HEAD) + len(TAIL) + len(item) + 1
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
