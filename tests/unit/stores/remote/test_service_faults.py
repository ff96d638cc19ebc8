"""The service client with odd, late, truncated or rejected responses; it never sends a batch twice."""

from __future__ import annotations

import asyncio
import json
import os
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from typing import Any

import pytest

from crestgate.errors import StoreClosedError, StoreError
from crestgate.stores.port import BatchOutcomes, Member, Op, Outcome, PartialStoreError, Request
from crestgate.stores.remote.http_connection import ServiceConnection, ServiceResponse
from crestgate.stores.server_side_limits import RejectedRequestError, placeholder
from unit.stores.remote.fake_service import FakeService, Responder, good, http, numbers, take

PROBLEM = ("content-type: application/problem+json",)


@pytest.fixture
def fake_service() -> Iterator[Callable[[Responder], FakeService]]:
    with ExitStack() as stack:

        def made(respond: Responder) -> FakeService:
            one = FakeService(respond)
            stack.callback(one.close)
            return one

        yield made


def refusal(status: int, detail: str) -> bytes:
    return http(status, json.dumps({"status": status, "title": "No", "detail": detail}).encode(), *PROBLEM)


def test_batch_is_one_call_on_a_keep_alive_connection(fake_service: Callable[[Responder], FakeService]) -> None:
    service = fake_service(good)
    store = service.store()
    for _ in range(3):
        replies = store.apply([take("user:1"), take("user:2", "api", "day"), take(op=Op.PEEK)])
        assert [len(reply) for reply in replies] == [1, 2, 1]
        assert replies[0][0].decision.remaining == 7
        assert replies[0][0].tick == 3
    assert (service.connections, len(service.bodies)) == (1, 3)
    assert service.bodies[0] == {
        "exact": True,
        "checks": [
            {"counters": [{"key": "user:1", "name": "api", "limit": "10/minute"}]},
            {"counters": [{"key": "user:2", "name": name, "limit": "10/minute"} for name in ("api", "day")]},
            {"op": "peek", "counters": [{"key": "user:42", "name": "api", "limit": "10/minute"}]},
        ],
    }
    store.close()
    with pytest.raises(StoreClosedError):
        store.apply([take()])


def test_closed_idle_connection_is_detected(fake_service: Callable[[Responder], FakeService]) -> None:
    service = fake_service(good)
    store = service.store()
    store.apply([take()])
    service.hang_up()
    store.apply([take()])
    assert (service.connections, len(service.bodies)) == (2, 2)
    store.close()


def test_connection_close_is_obeyed(fake_service: Callable[[Responder], FakeService]) -> None:
    service = fake_service(lambda body, _: good(body).replace(b"\r\n", b"\r\nconnection: close\r\n", 1))
    store = service.store()
    for _ in range(2):
        store.apply([take()])
    assert service.connections == 2
    store.close()


@pytest.mark.parametrize(
    ("response", "message"),
    [
        (None, "it closed the connection before its answer was there; the requests may have been counted"),
        (b"HTTP/1.1 200 OK\r\ncontent-length: 9", "may have been counted"),
        (b"220 mail.example ESMTP\r\n", "what it says is not HTTP (BadStatusLine): is this the address"),
        (http(200, b"hello"), "its response is not valid"),
        (http(200, b"[]"), "its response is not valid"),
        (http(200, b'{"decisions": []}'), "it needs one decision for each request"),
        (http(200, b'{"decisions": [{"counters": []}]}'), "its response is not valid"),
        (http(200, b'{"decisions": [{"counters": [{"allowed": true}]}]}'), "its response is not valid"),
        (http(200, b'{"decisions": ["yes"]}'), "its response is not valid"),
        (http(404, b"<h1>Not Found</h1>"), "it answers 404, and not as a Crestgate service does: is this its address?"),
        (http(302, b"", "location: http://elsewhere/"), "it answers 302, and not as a Crestgate service does"),
        (refusal(503, "the store is away"), "the store is away"),
        (refusal(401, "unknown API key"), "unknown API key; that key is in the URL, crestgate://:KEY@host:8080"),
        (refusal(429, "too many checks"), "too many checks"),
    ],
)
def test_invalid_responses(
    fake_service: Callable[[Responder], FakeService], response: bytes | None, message: str
) -> None:
    service = fake_service(lambda body, number: response if number == 1 else good(body))
    if response is not None and not response.endswith(b"}") and b"\r\n\r\n" not in response:
        service.respond = lambda body, number: _torn(service, response) if number == 1 else good(body)
    store = service.store()
    with pytest.raises(StoreError) as raised:
        store.apply([take()])
    assert str(raised.value).startswith(f"Crestgate at 127.0.0.1:{service.listening.getsockname()[1]}: ")
    assert message in str(raised.value)
    assert "secret" not in str(raised.value)
    assert len(service.bodies) == 1, "a batch that may have been executed is not sent twice"
    assert store.apply([take()])[0][0].decision.allowed, "the next call is not affected"
    store.close()


def _torn(service: FakeService, response: bytes) -> None:
    service.callers[-1].sendall(response)


def test_chunked_response(fake_service: Callable[[Responder], FakeService]) -> None:
    def chunked(body: dict[str, Any], _: int) -> bytes:
        whole = good(body).partition(b"\r\n\r\n")[2]
        head = b"HTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\n\r\n"
        pieces = [whole[:20], whole[20:]]
        return head + b"".join(b"%x\r\n%b\r\n" % (len(piece), piece) for piece in pieces) + b"0\r\n\r\n"

    service = fake_service(chunked)
    store = service.store()
    assert [len(store.apply([take()])) for _ in range(2)] == [1, 1]
    assert service.connections == 1
    store.close()


def test_breaker_opens_after_repeated_failures(fake_service: Callable[[Responder], FakeService]) -> None:
    service = fake_service(lambda *_: refusal(500, "something went wrong"))
    store = service.store()
    for _ in range(5):
        with pytest.raises(StoreError):
            store.apply([take()])
    assert len(service.bodies) == 3
    assert store.breaker.state(time.monotonic()) == "open"
    with pytest.raises(StoreError, match=r"has failed several times in a row .* last, something went wrong"):
        store.apply([take()])
    store.close()


def test_invalid_request_fails_alone(fake_service: Callable[[Responder], FakeService]) -> None:
    def pick(body: dict[str, Any], _: int) -> bytes:
        decisions: list[Any] = []
        for index, check in enumerate(body["checks"]):
            path = f"checks[{index}].counters[0].plan"
            mistake = {"error": {"status": 400, "detail": f"{path}: there is no plan 'golf'"}}
            away = {"error": {"status": 503, "detail": "the store is away"}}
            special = {"golf": mistake, "away": away}
            decisions.append(special.get(check["counters"][0]["key"], {"counters": [numbers()]}))
        return http(200, json.dumps({"decisions": decisions}).encode())

    store = fake_service(pick).store()
    with pytest.raises(PartialStoreError) as raised:
        store.apply([take(), take("golf"), take("away"), take()])
    kinds = [[type(item) for item in reply] for reply in raised.value.outcomes]
    assert kinds == [[Outcome], [RejectedRequestError], [StoreError], [Outcome]]
    assert str(raised.value.outcomes[1][0]).endswith(": there is no plan 'golf'")
    assert "checks[" not in str(raised.value.outcomes[1][0])
    store.close()


@pytest.mark.parametrize("status", [400, 413])
def test_rejected_batch_is_sent_in_halves(fake_service: Callable[[Responder], FakeService], status: int) -> None:
    def picky(body: dict[str, Any], _: int) -> bytes:
        poison = any(check["counters"][0]["key"] == "poison" for check in body["checks"])
        return refusal(status, "not this") if poison else good(body)

    service = fake_service(picky)
    store = service.store()
    batch = [take("poison" if n == 5 else f"user:{n}") for n in range(8)]
    with pytest.raises(PartialStoreError) as raised:
        store.apply(batch)
    assert [isinstance(reply[0], Outcome) for reply in raised.value.outcomes] == [n != 5 for n in range(8)]
    assert isinstance(raised.value.outcomes[5][0], RejectedRequestError) == (status == 400)
    sizes = [len(body["checks"]) for body in service.bodies]
    assert sizes == [8, 4, 4, 2, 1, 1, 2]
    store.close()


def test_large_batch_is_split(fake_service: Callable[[Responder], FakeService]) -> None:
    service = fake_service(good)
    store = service.store()
    assert len(store.apply([take(f"user:{n}") for n in range(2500)])) == 2500
    assert [len(body["checks"]) for body in service.bodies] == [1000, 1000, 500]
    service.bodies.clear()
    assert len(store.apply([take("\0" * 1000 + str(n)) for n in range(400)])) == 400
    sizes = [len(json.dumps(body)) for body in service.bodies]
    assert len(sizes) > 2
    assert max(sizes) < 1.2 * 1024 * 1024
    store.close()


def group_of(*requests: Request) -> list[Request]:
    group = object()
    for request in requests:
        request.group = group
    return list(requests)


def test_requests_of_one_group_are_marked(fake_service: Callable[[Responder], FakeService]) -> None:
    service = fake_service(good)
    store = service.store()
    batch = [take("a"), *group_of(take("b"), take("c")), *group_of(take("d")), *group_of(take("e"), take("f"))]
    assert len(store.apply(batch)) == 6
    assert [body.get("together") for body in service.bodies] == [[[1, 3], [4, 6]]]
    service.bodies.clear()
    store.apply(group_of(take("a")))
    assert "together" not in service.bodies[0]
    store.close()


def without_golf(max_checks: int) -> Responder:
    """A service that has no plan 'golf', and accepts batches of so many checks."""

    def respond(body: dict[str, Any], *_: object) -> bytes:
        if len(body["checks"]) > max_checks:
            return refusal(413, "too large")
        decisions: list[Any] = []
        for check in body["checks"]:
            unknown = any(counter["name"] == "golf" for counter in check["counters"])
            error = {"error": {"status": 400, "detail": "there is no plan 'golf'"}}
            decisions.append(
                error if unknown else {"counters": [numbers(at=at) for at in range(len(check["counters"]))]}
            )
        return http(200, json.dumps({"decisions": decisions}).encode())

    return respond


@pytest.mark.parametrize("max_checks", [1000, 700], ids=["several calls", "rejected as too large"])
def test_large_group_is_validated_before_it_is_sent(
    fake_service: Callable[[Responder], FakeService], max_checks: int
) -> None:
    """The limits of a group that needs several calls are peeked at first: nothing is charged if one is unknown."""
    service = fake_service(without_golf(max_checks))
    store = service.store()
    others = [take(f"other:{n}") for n in range(20)]
    size = max_checks + 200
    invalid = group_of(*[take(f"user:{n}", "golf" if n == size - 1 else "api") for n in range(size)])
    with pytest.raises(PartialStoreError) as raised:
        store.apply([*others, *invalid])
    answered = [isinstance(reply[0], Outcome) for reply in raised.value.outcomes]
    assert answered == [True] * 20 + [False] * size, "the others are decided"
    assert all(isinstance(reply[0], RejectedRequestError) for reply in raised.value.outcomes[20:])
    taken = [
        check["counters"][0]["key"]
        for body in service.bodies
        if len(body["checks"]) <= max_checks
        for check in body["checks"]
        if "op" not in check
    ]
    assert taken == [f"other:{n}" for n in range(20)], "nothing of the group was charged"

    service.bodies.clear()
    assert len(store.apply(group_of(*[take(f"user:{n}") for n in range(size)]))) == size
    assert sum(check.get("op") == "peek" for body in service.bodies for check in body["checks"]) == 1
    store.close()


def test_key_that_is_not_text_rejects_its_group(fake_service: Callable[[Responder], FakeService]) -> None:
    def strict(body: dict[str, Any], *_: object) -> bytes:
        surrogate = any("\ud800" in check["counters"][0]["key"] for check in body["checks"])
        return refusal(400, "not valid JSON") if surrogate else good(body)

    service = fake_service(strict)
    store = service.store()
    with pytest.raises(PartialStoreError) as raised:
        store.apply([take("a"), *group_of(take("b"), take("\ud800")), *group_of(take("c"), take("d"))])
    answered = [isinstance(reply[0], Outcome) for reply in raised.value.outcomes]
    assert answered == [True, False, False, True, True]
    assert "half of a surrogate pair" in str(raised.value.outcomes[1][0])
    store.close()


def test_decided_pieces_stand_if_a_later_one_fails(fake_service: Callable[[Responder], FakeService]) -> None:
    service = fake_service(lambda body, number: good(body) if number == 1 else refusal(503, "away"))
    store = service.store()
    with pytest.raises(PartialStoreError) as raised:
        store.apply([take(f"user:{n}") for n in range(1001)])
    answered = [isinstance(reply[0], Outcome) for reply in raised.value.outcomes]
    assert answered == [True] * 1000 + [False]
    store.close()


def test_late_response_changes_nothing(fake_service: Callable[[Responder], FakeService]) -> None:
    """A caller answered by the failure policy may be about to settle, with the members of its request."""
    given_up = threading.Event()

    def late(body: dict[str, Any], _: int) -> bytes:
        given_up.wait(30)
        described = {"key": "user:42", "name": "gold", "label": "gold", "limit": "10/minute", "binds": True}
        pair = [numbers(**described), numbers(**{**described, "name": "gold#2"})]
        return http(200, json.dumps({"decisions": [{"counters": pair}] * len(body["checks"])}).encode())

    store = fake_service(late).store(timeout_ms=600_000)
    request = Request(Op.TAKE, [Member("user:42", placeholder("gold"), 1)])

    async def ask(seconds: float) -> BatchOutcomes | StoreError:
        raised: asyncio.Future[BatchOutcomes | StoreError] = asyncio.get_running_loop().create_future()
        store.begin([request], time.monotonic() + seconds, raised.set_result)
        return await raised

    post = ServiceConnection.post

    def patient(
        self: ServiceConnection, path: str, body: bytes, _: float, max_bytes: int
    ) -> tuple[ServiceResponse, bool]:
        return post(self, path, body, time.monotonic() + 30, max_bytes)

    async def main() -> None:
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(ServiceConnection, "post", patient)  # such as a thread that was delayed on its return
            assert isinstance(await ask(0.01), StoreError)
            given_up.set()
            await asyncio.to_thread(store.threads.pool(1).shutdown)
        assert len(request.members) == 1
        store.threads.renew()
        assert isinstance(await ask(30), list)
        assert [member.algorithm.name for member in request.members] == ["gold", "gold#2"]

    asyncio.run(main())
    store.close()


def test_requests_without_members(fake_service: Callable[[Responder], FakeService]) -> None:
    service = fake_service(good)
    store = service.store()
    empty = take()
    empty.members = []
    assert [len(reply) for reply in store.apply([empty, take(), empty])] == [0, 1, 0]
    store.close()


def test_forked_child_opens_its_own_connections(fake_service: Callable[[Responder], FakeService]) -> None:
    service = fake_service(good)
    store = service.store()
    store.apply([take()])
    child = os.fork()
    if not child:
        try:
            store.apply([take()])
            os._exit(0)
        except BaseException:  # noqa: BLE001 - a child must not run on into the tests
            os._exit(1)
    _, status = os.waitpid(child, 0)
    assert os.waitstatus_to_exitcode(status) == 0
    store.apply([take()])
    assert (service.connections, len(service.bodies)) == (2, 3)
    store.close()
