"""Who may call over gRPC, under which id, what is counted and logged, and what is told when something is wrong."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Iterator
from typing import Any

import pytest
import structlog

from flaky_store import Flaky
from headgate import Limit
from headgate.config.server import Address
from headgate.config.settings import Logs
from headgate.errors import Conflict, HeadgateError, NotFound, ReadOnly, Stale, StoreError
from headgate.service.asgi import BadRequest, Call
from headgate.service.rpc import entry, messages
from headgate.service.rpc.call import Method, RpcCall, RpcError, Status
from headgate.service.rpc.entry import LONGEST_TOLD, Door, Entry
from slow_store import SlowStore
from unit.service.rpc.worker import ADMIN, Worker, bearer, status_of

CHECK = b"/headgate.v1.RateLimiter/CheckRateLimit"
RECORDS = {("rule", "r"): {"rule_id": "r", "dimension": "user", "limit": 3, "window_seconds": 60}}
ASKED = messages.CheckRequest(dimension=1, identifier="42")
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


def answering(worker: Worker, error: Exception) -> Method:
    """A method that raises this, at once."""

    def raise_it(call: Call, message: bytes) -> bytes:
        raise error

    async def never(call: Call, message: bytes) -> bytes:
        raise AssertionError

    return Entry(Door(worker.guard, worker.tally, worker.http.log), "/x/y", None, never, raise_it).method()


def raised(method: Method) -> RpcError:
    assert method.at_once is not None
    with pytest.raises(RpcError) as caught:
        method.at_once(RpcCall(b"/x/y", (), None, None), b"")
    return caught.value


# -- who may --------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("name", "asked"),
    [
        ("CheckRateLimit", ASKED),
        ("CheckRateLimitBatch", messages.CheckBatchRequest(checks=[ASKED])),
        ("GetRemainingQuota", messages.QuotaRequest(dimension=1, identifier="42")),
    ],
)
def test_checks_need_a_key_beyond_loopback(start: Callable[..., Worker], name: str, asked: Any) -> None:
    worker = start(server=BEYOND)
    assert status_of(worker, name, asked)[0] == "UNAUTHENTICATED"
    assert status_of(worker, name, asked, bearer("hg_nothing"))[0] == "UNAUTHENTICATED"
    for scope in ("check", "read", "write"):
        worker.call(name, asked, bearer(worker.key(scope)))
    worker.call(name, asked, [(b"x-api-key", worker.key("check").encode())])
    start().call(name, asked)


def test_a_reset_needs_the_scope_write(start: Callable[..., Worker]) -> None:
    worker = start()
    assert status_of(worker, "ResetLimit", RESET)[0] == "UNAUTHENTICATED"
    for scope in ("check", "read"):
        status, told = status_of(worker, "ResetLimit", RESET, bearer(worker.key(scope)))
        assert (status, told) == (
            "PERMISSION_DENIED",
            f"the key '{scope}-key' has the scope {scope}, and this needs write",
        )
    assert worker.call("ResetLimit", RESET, bearer(worker.key("write"))).reset_count == 1


def test_a_wrong_key_is_told_also_where_none_is_needed(start: Callable[..., Worker]) -> None:
    worker = start()
    assert status_of(worker, "CheckRateLimit", ASKED, bearer("hg_nothing"))[0] == "UNAUTHENTICATED"
    assert worker.check(dimension=1, identifier="42").remaining == 2


def test_how_the_service_is_and_what_it_has_is_told_whatever_key_is_sent(start: Callable[..., Worker]) -> None:
    """Probes that send a key which was revoked must not take a service out of its place."""
    worker = start(server=BEYOND)
    method = worker.methods[b"/grpc.health.v1.Health/Check"].in_time
    assert method is not None
    call = RpcCall(b"/grpc.health.v1.Health/Check", bearer("hg_nothing"), None, None)
    assert messages.HealthCheckResponse.FromString(worker.runner.run(_of(method(call, b"")))).status == 1


async def _of(answer: Awaitable[bytes]) -> bytes:
    return await answer


def test_who_is_turned_away_is_in_the_log_now_and_then(
    start: Callable[..., Worker], monkeypatch: pytest.MonkeyPatch
) -> None:
    """A proxy that is refused may let everything through, and nobody would notice."""
    worker = start(server=BEYOND)
    moments = iter([1000.0, 1000.1, 1059.9, 1060.1])
    monkeypatch.setattr(entry, "monotonic", lambda: next(moments))
    with structlog.testing.capture_logs() as lines:
        for _ in range(4):
            status_of(worker, "CheckRateLimit", ASKED)
    assert [(line["event"], line["log_level"], line["path"]) for line in lines] == [
        ("calls over gRPC are refused", "warning", CHECK.decode())
    ] * 2
    assert lines[0]["problem"].startswith("this needs a key")


def test_resets_come_from_where_admins_are(start: Callable[..., Worker]) -> None:
    worker = start(server={"admin_from": ("192.0.2.0/24",)})
    for near in ("192.0.2.7", "::ffff:192.0.2.7"):
        assert worker.call("ResetLimit", RESET, bearer(ADMIN), near).reset_count == 1
    for far in ("198.51.100.1", "::1", None):
        with pytest.raises(RpcError) as caught:
            worker.call("ResetLimit", RESET, [*bearer(ADMIN), (b"x-forwarded-for", b"192.0.2.7")], far)
        assert caught.value.status is Status.PERMISSION_DENIED


@pytest.mark.parametrize(
    ("limits", "name", "asked", "token"),
    [
        ({"checks": Limit(2, 60)}, "CheckRateLimit", ASKED, None),
        ({"checks": Limit(2, 60)}, "GetRemainingQuota", messages.QuotaRequest(dimension=1, identifier="42"), None),
        ({"writes": Limit(2, 60)}, "ResetLimit", RESET, ADMIN),
    ],
)
def test_who_asks_too_often_is_told_when_to_come_back(
    start: Callable[..., Worker], limits: dict[str, Limit], name: str, asked: Any, token: str | None
) -> None:
    worker = start(limits=limits)
    metadata = [] if token is None else bearer(token)
    for _ in range(2):
        worker.call(name, asked, metadata)
    with pytest.raises(RpcError) as caught:
        worker.call(name, asked, metadata)
    assert caught.value.status is Status.RESOURCE_EXHAUSTED
    assert list(caught.value.trailers) == [(b"retry-after", b"30")]
    worker.clock.advance(30)
    worker.call(name, asked, metadata)


def test_keys_that_open_nothing_are_counted_by_address(start: Callable[..., Worker]) -> None:
    worker = start(limits={"failed_logins": Limit(1, 60)})
    assert status_of(worker, "CheckRateLimit", ASKED, bearer("hg_nothing"))[0] == "UNAUTHENTICATED"
    assert status_of(worker, "CheckRateLimit", ASKED, bearer("hg_nothing"))[0] == "RESOURCE_EXHAUSTED"
    worker.call("CheckRateLimit", ASKED, bearer(ADMIN))


# -- ids, numbers and the log ---------------------------------------------------------------------------------------


def test_a_request_id_is_said_back_and_made_where_there_is_none(start: Callable[..., Worker]) -> None:
    worker = start()
    worker.check([(b"x-request-id", b"mine-1")], dimension=1, identifier="42")
    assert worker.said == {b"x-request-id": b"mine-1"}
    made = set()
    for metadata in [[], [(b"x-request-id", b"not one")], [(b"x-request-id", b"x" * 129)]]:
        worker.check(metadata, dimension=1, identifier="42")
        made.add(worker.said[b"x-request-id"])
    assert len(made) == 3
    assert not any(name.startswith((b"not", b"x")) for name in made)
    status_of(worker, "CheckRateLimit", b"\xff", [(b"x-request-id", b"mine-2")])
    assert worker.said == {b"x-request-id": b"mine-2"}


def test_metadata_that_is_sent_again_is_the_same_and_other_metadata_is_not(start: Callable[..., Worker]) -> None:
    worker = start(server=BEYOND)
    good, bad = bearer(ADMIN), bearer("hg_nothing")
    for _ in range(2):
        worker.call("GetRemainingQuota", messages.QuotaRequest(key="a"), good)
        assert status_of(worker, "GetRemainingQuota", messages.QuotaRequest(key="a"), bad)[0] == "UNAUTHENTICATED"


def test_calls_are_counted_by_status(start: Callable[..., Worker]) -> None:
    worker = start()
    for _ in range(4):
        worker.check(dimension=1, identifier="42")  # the fourth is denied, which is an answer
    worker.call("GetRemainingQuota", messages.QuotaRequest(key="a"))
    status_of(worker, "CheckRateLimit", messages.CheckRequest())
    status_of(worker, "ResetLimit", RESET)
    assert worker.requests() == {0: 5, 3: 1, 16: 1}
    snapshot = worker.tally.snapshot(worker.clock.ticks(), {})
    assert snapshot.decisions == [("r", "user", 3, 1, 0)]
    assert snapshot.durations is not None
    assert sum(snapshot.durations.counts) == 4


def test_the_log_has_a_line_for_each_call_where_that_is_asked_for(start: Callable[..., Worker]) -> None:
    worker = start(logs=Logs(requests="all"))
    once = (b"x-request-id", b"mine")
    with structlog.testing.capture_logs() as lines:
        worker.check([once], dimension=1, identifier="42")
        status_of(worker, "ResetLimit", RESET, [once])
    lines = [line for line in lines if line["event"] == "check"]
    for line in lines:
        assert line.pop("seconds") >= 0
        assert line.pop("request_id") == "mine"
    rest = {"event": "check", "log_level": "info", "method": "POST"}
    assert [{name: line[name] for name in line if name != "key"} for line in lines] == [
        {**rest, "path": CHECK.decode(), "status": 0, "allowed": True},
        {**rest, "path": "/headgate.v1.RateLimiter/ResetLimit", "status": 16},
    ]
    with structlog.testing.capture_logs() as lines:
        start().check(dimension=1, identifier="42")
    assert lines == []


# -- what is wrong --------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", ["CheckRateLimit", "CheckRateLimitBatch", "GetRemainingQuota", "ResetLimit"])
@pytest.mark.parametrize("message", [b"\xff", b"\x0a\x05ab", b"\x0a\x02\xff\xfe"], ids=["tag", "length", "no UTF-8"])
def test_a_message_that_cannot_be_read_is_told_so(start: Callable[..., Worker], name: str, message: bytes) -> None:
    worker = start()
    status, told = status_of(worker, name, message, bearer(ADMIN))
    assert (status, told.split(":")[0]) == (
        "INVALID_ARGUMENT",
        "the message cannot be read as what this method takes",
    )


@pytest.mark.parametrize(
    ("error", "status"),
    [
        (BadRequest(400, "no"), Status.INVALID_ARGUMENT),
        (BadRequest(401, "no"), Status.UNAUTHENTICATED),
        (BadRequest(403, "no"), Status.PERMISSION_DENIED),
        (BadRequest(404, "no"), Status.NOT_FOUND),
        (BadRequest(409, "no"), Status.ABORTED),
        (BadRequest(413, "no"), Status.RESOURCE_EXHAUSTED),
        (BadRequest(422, "no"), Status.INVALID_ARGUMENT),
        (BadRequest(429, "no"), Status.RESOURCE_EXHAUSTED),
        (BadRequest(503, "no"), Status.UNAVAILABLE),
        (RpcError(Status.NOT_FOUND, "no"), Status.NOT_FOUND),
        (StoreError("no"), Status.UNAVAILABLE),
        (NotFound("no"), Status.NOT_FOUND),
        (Conflict("no"), Status.ABORTED),
        (ReadOnly("no"), Status.ABORTED),
        (Stale("no"), Status.FAILED_PRECONDITION),
    ],
    ids=repr,
)
def test_what_came_up_has_a_status_of_its_own(start: Callable[..., Worker], error: Exception, status: Status) -> None:
    worker = start()
    with structlog.testing.capture_logs() as lines:
        told = raised(answering(worker, error))
    assert (told.status, told.message, list(told.trailers)) == (status, "no", [])
    assert [line["event"] for line in lines] == (["request failed"] if isinstance(error, HeadgateError) else [])
    assert worker.requests() == {int(status): 1}


def test_a_mistake_of_ours_is_told_as_one_and_is_in_the_log(start: Callable[..., Worker]) -> None:
    worker = start()
    with structlog.testing.capture_logs() as lines:
        told = raised(answering(worker, ZeroDivisionError("secret")))
    assert (told.status, told.message) == (
        Status.INTERNAL,
        "something went wrong here: the log says what, under this request id",
    )
    assert [(line["event"], repr(line["exc_info"])) for line in lines] == [
        ("request failed unforeseen", "ZeroDivisionError('secret')")
    ]


def test_what_is_told_is_one_line_and_fits_into_a_header(start: Callable[..., Worker]) -> None:
    worker = start()
    assert raised(answering(worker, BadRequest(400, "one\ntwo\r\nthree"))).message == "one two three"
    told = raised(answering(worker, BadRequest(400, "\N{GRINNING FACE}\n" * 100_000))).message
    assert (len(told), told.splitlines()) == (LONGEST_TOLD + 1, [told])
    asked = messages.CheckRequest(key="a", plans=["\N{GRINNING FACE}\n" * 100_000])
    told = status_of(worker, "CheckRateLimit", asked)[1]
    assert len(told) <= LONGEST_TOLD
    assert told.splitlines() == [told]


def test_only_when_to_come_back_goes_along_with_an_error(start: Callable[..., Worker]) -> None:
    headers = [(b"www-authenticate", b"Bearer"), (b"retry-after", b"7")]
    assert list(raised(answering(start(), BadRequest(401, "no", headers))).trailers) == [(b"retry-after", b"7")]


def test_a_store_that_is_away_is_unavailable_where_nothing_else_is_said(start: Callable[..., Worker]) -> None:
    store = Flaky()
    worker = start(store=store)
    store.broken = True
    assert worker.check(dimension=1, identifier="42").reason == "fail_open"
    assert status_of(worker, "ResetLimit", RESET, bearer(ADMIN))[0] == "UNAVAILABLE"


@pytest.mark.parametrize(("deadline", "status"), [(0.0, Status.DEADLINE_EXCEEDED), (None, Status.CANCELLED)])
def test_a_call_that_is_cut_off_is_counted_too(
    start: Callable[..., Worker], deadline: float | None, status: Status
) -> None:
    store = SlowStore()
    worker = start(store=store)
    method = worker.methods[CHECK].in_time
    assert method is not None

    async def cut_off() -> None:
        task = asyncio.ensure_future(method(RpcCall(CHECK, (), None, deadline), ASKED.SerializeToString()))
        while not store.held:
            await asyncio.sleep(0)
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
        await store.answer_all()

    worker.runner.run(cut_off())
    assert worker.requests() == {int(status): 1}
