"""gRPC calls: authorization, request ids, metrics, logging and error statuses."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterator
from typing import Any

import pytest
import structlog

from crestgate import Limit
from crestgate.config.server import Address
from crestgate.config.settings import Logs
from crestgate.errors import ConflictError, CrestgateError, NotFoundError, ReadOnlyError, StaleVersionError, StoreError
from crestgate.protobuf import messages
from crestgate.service.context import CallContext
from crestgate.service.errors import ApiError
from crestgate.service.grpc.services import method
from crestgate.service.grpc.services.method import MAX_MESSAGE, GrpcMethod, GrpcMethods
from crestgate.service.grpc.transport.call import Method, RpcCall, RpcError, RpcStatus
from flaky_store import Flaky
from slow_store import SlowStore
from unit.service.snapshots import decision_counts
from unit.service.worker import ADMIN, Worker, bearer, status_of, unary

CHECK = b"/crestgate.v1.RateLimiter/CheckRateLimit"
RESET_LIMIT = b"/crestgate.v1.RateLimiter/ResetLimit"
RECORDS = {("rule", "r"): {"rule_id": "r", "dimension": "user", "limit": 3, "window_seconds": 60}}
REQUEST = messages.CheckRequest(dimension=1, identifier="42")
RESET = messages.ResetRequest(dimension=1, identifier="42")
BEYOND = {"grpc": Address("192.0.2.1", 8081)}
"""Where checks need a key."""


@pytest.fixture
def start() -> Iterator[Callable[..., Worker]]:
    made: list[Worker] = []

    def make(**options: Any) -> Worker:
        made.append(Worker(RECORDS, **options))
        return made[-1]

    yield make
    for worker in made:
        worker.close()


def failing_method(worker: Worker, error: Exception) -> Method:
    """A method that raises this error synchronously."""

    def raise_it(call: CallContext, message: bytes) -> bytes:
        raise error

    return GrpcMethod(GrpcMethods(worker.guard, worker.metrics, worker.http.log), "/x/y", raise_it).method()


def raised_error(method: Method) -> RpcError:
    assert method.unary is not None
    with pytest.raises(RpcError) as caught:
        method.unary(RpcCall(b"/x/y", (), None, None), b"")
    return caught.value


# -- authorization --------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("CheckRateLimit", REQUEST),
        ("CheckRateLimitBatch", messages.CheckBatchRequest(checks=[REQUEST])),
        ("GetRemainingQuota", messages.QuotaRequest(dimension=1, identifier="42")),
    ],
)
def test_checks_need_a_key_beyond_loopback(start: Callable[..., Worker], name: str, message: Any) -> None:
    worker = start(server=BEYOND)
    assert status_of(worker, name, message)[0] == "UNAUTHENTICATED"
    assert status_of(worker, name, message, bearer("cg_nothing"))[0] == "UNAUTHENTICATED"
    for scope in ("check", "read", "write"):
        worker.call(name, message, bearer(worker.key(scope)))
    worker.call(name, message, [(b"x-api-key", worker.key("check").encode())])
    start().call(name, message)


def test_reset_needs_scope_write(start: Callable[..., Worker]) -> None:
    worker = start()
    assert status_of(worker, "ResetLimit", RESET)[0] == "UNAUTHENTICATED"
    for scope in ("check", "read"):
        status, message = status_of(worker, "ResetLimit", RESET, bearer(worker.key(scope)))
        assert (status, message) == (
            "PERMISSION_DENIED",
            f"the API key '{scope}-key' has scope {scope}, and this call needs write",
        )
    assert worker.call("ResetLimit", RESET, bearer(worker.key("write"))).reset_count == 1


def test_unknown_key_is_refused_even_where_none_is_needed(start: Callable[..., Worker]) -> None:
    worker = start()
    assert status_of(worker, "CheckRateLimit", REQUEST, bearer("cg_nothing"))[0] == "UNAUTHENTICATED"
    assert worker.check(dimension=1, identifier="42").remaining == 2


def test_health_ignores_keys(start: Callable[..., Worker]) -> None:
    """Probes that send a revoked key must not make a service unready."""
    worker = start(server=BEYOND)
    method = worker.methods[b"/grpc.health.v1.Health/Check"]
    call = RpcCall(b"/grpc.health.v1.Health/Check", bearer("cg_nothing"), None, None)
    assert messages.HealthCheckResponse.FromString(worker.runner.run(unary(method, call, b""))).status == 1


def test_refused_callers_are_logged_at_intervals(start: Callable[..., Worker], monkeypatch: pytest.MonkeyPatch) -> None:
    """A proxy that is refused may let everything through unnoticed."""
    worker = start(server=BEYOND)
    times = iter([1000.0, 1000.1, 1059.9, 1060.1])
    monkeypatch.setattr(method, "monotonic", lambda: next(times))
    with structlog.testing.capture_logs() as lines:
        for _ in range(4):
            status_of(worker, "CheckRateLimit", REQUEST)
    assert [(line["event"], line["log_level"], line["path"]) for line in lines] == [
        ("unauthorized gRPC call", "warning", CHECK.decode())
    ] * 2
    assert lines[0]["problem"].startswith("API key required")


def test_resets_come_from_admin_networks(start: Callable[..., Worker]) -> None:
    worker = start(server={"admin_from": ("192.0.2.0/24",)})
    for near in ("192.0.2.7", "::ffff:192.0.2.7"):
        assert worker.call("ResetLimit", RESET, bearer(ADMIN), near).reset_count == 1
    for far in ("198.51.100.1", "::1", None):
        with pytest.raises(RpcError) as caught:
            worker.call("ResetLimit", RESET, [*bearer(ADMIN), (b"x-forwarded-for", b"192.0.2.7")], far)
        assert caught.value.status is RpcStatus.PERMISSION_DENIED


@pytest.mark.parametrize(
    ("limits", "name", "message", "token"),
    [
        ({"checks": Limit(2, 60)}, "CheckRateLimit", REQUEST, None),
        ({"checks": Limit(2, 60)}, "GetRemainingQuota", messages.QuotaRequest(dimension=1, identifier="42"), None),
        ({"writes": Limit(2, 60)}, "ResetLimit", RESET, ADMIN),
    ],
)
def test_rate_limited_caller_gets_retry_after(
    start: Callable[..., Worker], limits: dict[str, Limit], name: str, message: Any, token: str | None
) -> None:
    worker = start(limits=limits)
    metadata = [] if token is None else bearer(token)
    for _ in range(2):
        worker.call(name, message, metadata)
    with pytest.raises(RpcError) as caught:
        worker.call(name, message, metadata)
    assert caught.value.status is RpcStatus.RESOURCE_EXHAUSTED
    assert list(caught.value.trailers) == [(b"retry-after", b"30")]
    worker.clock.advance(30)
    worker.call(name, message, metadata)


def test_failed_logins_are_counted_by_address(start: Callable[..., Worker]) -> None:
    worker = start(limits={"failed_logins": Limit(1, 60)})
    assert status_of(worker, "CheckRateLimit", REQUEST, bearer("cg_nothing"))[0] == "UNAUTHENTICATED"
    assert status_of(worker, "CheckRateLimit", REQUEST, bearer("cg_nothing"))[0] == "RESOURCE_EXHAUSTED"
    worker.call("CheckRateLimit", REQUEST, bearer(ADMIN))


# -- ids, metrics and the log ---------------------------------------------------------------------------------------


def test_request_id_is_returned_or_generated(start: Callable[..., Worker]) -> None:
    worker = start()
    worker.check([(b"x-request-id", b"mine-1")], dimension=1, identifier="42")
    assert worker.response_headers == {b"x-request-id": b"mine-1"}
    made = set()
    for metadata in [[], [(b"x-request-id", b"not one")], [(b"x-request-id", b"x" * 129)]]:
        worker.check(metadata, dimension=1, identifier="42")
        made.add(worker.response_headers[b"x-request-id"])
    assert len(made) == 3
    assert not any(name.startswith((b"not", b"x")) for name in made)
    status_of(worker, "CheckRateLimit", b"\xff", [(b"x-request-id", b"mine-2")])
    assert worker.response_headers == {b"x-request-id": b"mine-2"}


def test_cached_metadata_belongs_to_its_call(start: Callable[..., Worker]) -> None:
    worker = start(server=BEYOND)
    good, bad = bearer(ADMIN), bearer("cg_nothing")
    for _ in range(2):
        worker.call("GetRemainingQuota", messages.QuotaRequest(key="a"), good)
        assert status_of(worker, "GetRemainingQuota", messages.QuotaRequest(key="a"), bad)[0] == "UNAUTHENTICATED"


def test_calls_are_counted_by_status(start: Callable[..., Worker]) -> None:
    worker = start()
    for _ in range(4):
        worker.check(dimension=1, identifier="42")  # the fourth is denied, with status OK
    worker.call("GetRemainingQuota", messages.QuotaRequest(key="a"))
    status_of(worker, "CheckRateLimit", messages.CheckRequest())
    status_of(worker, "ResetLimit", RESET)
    assert worker.requests() == {0: 5, 3: 1, 16: 1}
    snapshot = worker.metrics.snapshot(worker.clock.ticks(), {})
    assert decision_counts(snapshot) == {("r", "user"): (3, 1, 0)}
    assert sum(snapshot.histograms["check_duration_seconds"].counts) == 4


def test_request_log_has_a_line_per_call_if_configured(start: Callable[..., Worker]) -> None:
    worker = start(logs=Logs(requests="all"))
    request_id = (b"x-request-id", b"mine")
    with structlog.testing.capture_logs() as lines:
        worker.check([request_id], dimension=1, identifier="42")
        status_of(worker, "ResetLimit", RESET, [request_id])
    lines = [line for line in lines if line["event"] == "check"]
    for line in lines:
        assert line.pop("seconds") >= 0
        assert line.pop("request_id") == "mine"
    rest = {"event": "check", "log_level": "info", "method": "POST"}
    assert [{name: line[name] for name in line if name != "key"} for line in lines] == [
        {**rest, "path": CHECK.decode(), "status": 0, "allowed": True},
        {**rest, "path": "/crestgate.v1.RateLimiter/ResetLimit", "status": 16},
    ]
    with structlog.testing.capture_logs() as lines:
        start().check(dimension=1, identifier="42")
    assert lines == []


# -- errors ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", ["CheckRateLimit", "CheckRateLimitBatch", "GetRemainingQuota", "ResetLimit"])
@pytest.mark.parametrize("message", [b"\xff", b"\x0a\x05ab", b"\x0a\x02\xff\xfe"], ids=["tag", "length", "no UTF-8"])
def test_malformed_message_is_invalid_argument(start: Callable[..., Worker], name: str, message: bytes) -> None:
    worker = start()
    status, detail = status_of(worker, name, message, bearer(ADMIN))
    assert (status, detail.split(":")[0]) == (
        "INVALID_ARGUMENT",
        "the message cannot be read as what this method takes",
    )


@pytest.mark.parametrize(
    ("error", "status"),
    [
        (ApiError(400, "no"), RpcStatus.INVALID_ARGUMENT),
        (ApiError(401, "no"), RpcStatus.UNAUTHENTICATED),
        (ApiError(403, "no"), RpcStatus.PERMISSION_DENIED),
        (ApiError(404, "no"), RpcStatus.NOT_FOUND),
        (ApiError(409, "no"), RpcStatus.ABORTED),
        (ApiError(413, "no"), RpcStatus.RESOURCE_EXHAUSTED),
        (ApiError(422, "no"), RpcStatus.INVALID_ARGUMENT),
        (ApiError(429, "no"), RpcStatus.RESOURCE_EXHAUSTED),
        (ApiError(503, "no"), RpcStatus.UNAVAILABLE),
        (RpcError(RpcStatus.NOT_FOUND, "no"), RpcStatus.NOT_FOUND),
        (StoreError("no"), RpcStatus.UNAVAILABLE),
        (NotFoundError("no"), RpcStatus.NOT_FOUND),
        (ConflictError("no"), RpcStatus.ABORTED),
        (ReadOnlyError("no"), RpcStatus.ABORTED),
        (StaleVersionError("no"), RpcStatus.FAILED_PRECONDITION),
    ],
    ids=repr,
)
def test_errors_map_to_grpc_statuses(start: Callable[..., Worker], error: Exception, status: RpcStatus) -> None:
    worker = start()
    with structlog.testing.capture_logs() as lines:
        raised = raised_error(failing_method(worker, error))
    assert (raised.status, raised.message, list(raised.trailers)) == (status, "no", [])
    assert [line["event"] for line in lines] == (["request failed"] if isinstance(error, CrestgateError) else [])
    assert worker.requests() == {int(status): 1}


def test_internal_error_is_logged_and_not_revealed(start: Callable[..., Worker]) -> None:
    worker = start()
    with structlog.testing.capture_logs() as lines:
        error = raised_error(failing_method(worker, ZeroDivisionError("secret")))
    assert (error.status, error.message) == (
        RpcStatus.INTERNAL,
        "internal error: the log has it under this request id",
    )
    assert [(line["event"], repr(line["exc_info"])) for line in lines] == [
        ("unhandled error in request", "ZeroDivisionError('secret')")
    ]


def test_status_message_is_one_short_line(start: Callable[..., Worker]) -> None:
    worker = start()
    assert raised_error(failing_method(worker, ApiError(400, "one\ntwo\r\nthree"))).message == "one two three"
    message = raised_error(failing_method(worker, ApiError(400, "\N{GRINNING FACE}\n" * 100_000))).message
    assert (len(message), message.splitlines()) == (MAX_MESSAGE + 1, [message])
    request = messages.CheckRequest(key="a", plans=["\N{GRINNING FACE}\n" * 100_000])
    message = status_of(worker, "CheckRateLimit", request)[1]
    assert len(message) <= MAX_MESSAGE
    assert message.splitlines() == [message]


def test_errors_have_only_retry_after_as_trailer(start: Callable[..., Worker]) -> None:
    headers = [(b"www-authenticate", b"Bearer"), (b"retry-after", b"7")]
    assert list(raised_error(failing_method(start(), ApiError(401, "no", headers))).trailers) == [
        (b"retry-after", b"7")
    ]


def test_unreachable_store_is_unavailable(start: Callable[..., Worker]) -> None:
    store = Flaky()
    worker = start(store=store)
    store.broken = True
    assert worker.check(dimension=1, identifier="42").reason == "fail_open"
    assert status_of(worker, "ResetLimit", RESET, bearer(ADMIN))[0] == "UNAVAILABLE"


@pytest.mark.parametrize(("deadline", "status"), [(0.0, RpcStatus.DEADLINE_EXCEEDED), (None, RpcStatus.CANCELLED)])
def test_cancelled_call_is_counted(start: Callable[..., Worker], deadline: float | None, status: RpcStatus) -> None:
    store = SlowStore()
    worker = start(store=store)

    async def cancel_call() -> None:
        task = asyncio.ensure_future(
            unary(worker.methods[CHECK], RpcCall(CHECK, (), None, deadline), REQUEST.SerializeToString())
        )
        while not store.held:
            await asyncio.sleep(0)
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
        await store.answer_all()

    worker.runner.run(cancel_call())
    assert worker.requests() == {int(status): 1}


@pytest.mark.parametrize(("deadline", "status"), [(0.0, RpcStatus.DEADLINE_EXCEEDED), (None, RpcStatus.CANCELLED)])
def test_call_that_ends_before_it_is_awaited_is_counted(
    start: Callable[..., Worker], deadline: float | None, status: RpcStatus
) -> None:
    """A deadline may pass, or the client reset the stream, before the task of the call has started."""
    worker = start(store=SlowStore())

    async def close_unstarted() -> None:
        unary_handler = worker.methods[RESET_LIMIT].unary
        assert unary_handler is not None
        rpc = RpcCall(RESET_LIMIT, bearer(ADMIN), None, deadline)
        pending = unary_handler(rpc, RESET.SerializeToString())
        assert not isinstance(pending, bytes)
        pending.close()
        pending.close()

    worker.runner.run(close_unstarted())
    assert worker.requests() == {int(status): 1}
