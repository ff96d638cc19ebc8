"""What a client makes of answers that are odd, late, torn off or refused; and what it never does: ask twice."""

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

from headgate.errors import StoreClosed, StoreError
from headgate.stores.far import Mistaken, stand_in
from headgate.stores.port import Member, Op, Outcome, PartlyAnswered, Replies, Request
from headgate.stores.service.place import Answered, Connection
from unit.stores.service.saying import Other, Say, good, http, numbers, take

PROBLEM = ("content-type: application/problem+json",)


@pytest.fixture
def other() -> Iterator[Callable[[Say], Other]]:
    with ExitStack() as stack:

        def made(say: Say) -> Other:
            one = Other(say)
            stack.callback(one.close)
            return one

        yield made


def refusal(status: int, detail: str) -> bytes:
    return http(status, json.dumps({"status": status, "title": "No", "detail": detail}).encode(), *PROBLEM)


def test_a_batch_is_one_call_on_a_connection_that_is_kept(other: Callable[[Say], Other]) -> None:
    service = other(good)
    store = service.store()
    for _ in range(3):
        replies = store.apply([take("user:1"), take("user:2", "api", "day"), take(op=Op.PEEK)])
        assert [len(reply) for reply in replies] == [1, 2, 1]
        assert replies[0][0].decision.remaining == 7
        assert replies[0][0].tick == 3
    assert (service.connections, len(service.asked)) == (1, 3)
    assert service.asked[0] == {
        "exact": True,
        "checks": [
            {"counters": [{"key": "user:1", "name": "api", "limit": "10/minute"}]},
            {"counters": [{"key": "user:2", "name": name, "limit": "10/minute"} for name in ("api", "day")]},
            {"op": "peek", "counters": [{"key": "user:42", "name": "api", "limit": "10/minute"}]},
        ],
    }
    store.close()
    with pytest.raises(StoreClosed):
        store.apply([take()])


def test_a_connection_that_was_closed_meanwhile_is_noticed(other: Callable[[Say], Other]) -> None:
    service = other(good)
    store = service.store()
    store.apply([take()])
    service.hang_up()
    store.apply([take()])
    assert (service.connections, len(service.asked)) == (2, 2)
    store.close()


def test_a_service_that_wants_no_more_is_not_kept(other: Callable[[Say], Other]) -> None:
    service = other(lambda body, _: good(body).replace(b"\r\n", b"\r\nconnection: close\r\n", 1))
    store = service.store()
    for _ in range(2):
        store.apply([take()])
    assert service.connections == 2
    store.close()


@pytest.mark.parametrize(
    ("said", "message"),
    [
        (None, "it closed the connection before its answer was there; the requests may have been counted"),
        (b"HTTP/1.1 200 OK\r\ncontent-length: 9", "may have been counted"),
        (b"220 mail.example ESMTP\r\n", "what it says is not HTTP (BadStatusLine): is this the address"),
        (http(200, b"hello"), "its answer makes no sense here"),
        (http(200, b"[]"), "its answer makes no sense here"),
        (http(200, b'{"decisions": []}'), "as many answers as questions are missing"),
        (http(200, b'{"decisions": [{"counters": []}]}'), "its answer makes no sense here"),
        (http(200, b'{"decisions": [{"counters": [{"allowed": true}]}]}'), "its answer makes no sense here"),
        (http(200, b'{"decisions": ["yes"]}'), "its answer makes no sense here"),
        (http(404, b"<h1>Not Found</h1>"), "it answers 404, and not as a Headgate service does: is this its address?"),
        (http(302, b"", "location: http://elsewhere/"), "it answers 302, and not as a Headgate service does"),
        (refusal(503, "the store is away"), "the store is away"),
        (refusal(401, "opens nothing"), "opens nothing; that key is in the URL, headgate://:KEY@host:8080"),
        (refusal(429, "too many checks"), "too many checks"),
    ],
)
def test_what_is_no_answer(other: Callable[[Say], Other], said: bytes | None, message: str) -> None:
    service = other(lambda body, number: said if number == 1 else good(body))
    if said is not None and not said.endswith(b"}") and b"\r\n\r\n" not in said:
        service.say = lambda body, number: _torn(service, said) if number == 1 else good(body)
    store = service.store()
    with pytest.raises(StoreError) as told:
        store.apply([take()])
    assert str(told.value).startswith(f"Headgate at 127.0.0.1:{service.listening.getsockname()[1]}: ")
    assert message in str(told.value)
    assert "secret" not in str(told.value)
    assert len(service.asked) == 1, "what may have been executed is not sent twice"
    assert store.apply([take()])[0][0].decision.allowed, "the next is not spoiled by it"
    store.close()


def _torn(service: Other, said: bytes) -> None:
    service.callers[-1].sendall(said)


def test_an_answer_in_chunks(other: Callable[[Say], Other]) -> None:
    def chunked(body: dict[str, Any], _: int) -> bytes:
        whole = good(body).partition(b"\r\n\r\n")[2]
        head = b"HTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\n\r\n"
        pieces = [whole[:20], whole[20:]]
        return head + b"".join(b"%x\r\n%b\r\n" % (len(piece), piece) for piece in pieces) + b"0\r\n\r\n"

    service = other(chunked)
    store = service.store()
    assert [len(store.apply([take()])) for _ in range(2)] == [1, 1]
    assert service.connections == 1
    store.close()


def test_a_service_that_fails_again_and_again_is_not_asked_for_a_moment(other: Callable[[Say], Other]) -> None:
    service = other(lambda *_: refusal(500, "something went wrong"))
    store = service.store()
    for _ in range(5):
        with pytest.raises(StoreError):
            store.apply([take()])
    assert len(service.asked) == 3
    assert store.breaker.state(time.monotonic()) == "open"
    with pytest.raises(StoreError, match=r"has failed several times in a row .* last, something went wrong"):
        store.apply([take()])
    store.close()


def test_one_mistake_is_one_callers(other: Callable[[Say], Other]) -> None:
    def pick(body: dict[str, Any], _: int) -> bytes:
        decisions: list[Any] = []
        for place, check in enumerate(body["checks"]):
            way = f"checks[{place}].counters[0].plan"
            mistake = {"error": {"status": 400, "detail": f"{way}: there is no plan 'golf'"}}
            away = {"error": {"status": 503, "detail": "the store is away"}}
            special = {"golf": mistake, "away": away}
            decisions.append(special.get(check["counters"][0]["key"], {"counters": [numbers()]}))
        return http(200, json.dumps({"decisions": decisions}).encode())

    store = other(pick).store()
    with pytest.raises(PartlyAnswered) as told:
        store.apply([take(), take("golf"), take("away"), take()])
    kinds = [[type(item) for item in reply] for reply in told.value.replies]
    assert kinds == [[Outcome], [Mistaken], [StoreError], [Outcome]]
    assert str(told.value.replies[1][0]).endswith(": there is no plan 'golf'")
    assert "checks[" not in str(told.value.replies[1][0])
    store.close()


@pytest.mark.parametrize("status", [400, 413])
def test_what_was_refused_whole_is_asked_in_halves(other: Callable[[Say], Other], status: int) -> None:
    def picky(body: dict[str, Any], _: int) -> bytes:
        poison = any(check["counters"][0]["key"] == "poison" for check in body["checks"])
        return refusal(status, "not this") if poison else good(body)

    service = other(picky)
    store = service.store()
    batch = [take("poison" if n == 5 else f"user:{n}") for n in range(8)]
    with pytest.raises(PartlyAnswered) as told:
        store.apply(batch)
    assert [isinstance(reply[0], Outcome) for reply in told.value.replies] == [n != 5 for n in range(8)]
    assert isinstance(told.value.replies[5][0], Mistaken) == (status == 400)
    sizes = [len(body["checks"]) for body in service.asked]
    assert sizes == [8, 4, 4, 2, 1, 1, 2]
    store.close()


def test_a_batch_is_sent_in_pieces_that_a_service_takes(other: Callable[[Say], Other]) -> None:
    service = other(good)
    store = service.store()
    assert len(store.apply([take(f"user:{n}") for n in range(2500)])) == 2500
    assert [len(body["checks"]) for body in service.asked] == [1000, 1000, 500]
    service.asked.clear()
    assert len(store.apply([take("\0" * 1000 + str(n)) for n in range(400)])) == 400
    sizes = [len(json.dumps(body)) for body in service.asked]
    assert len(sizes) > 2
    assert max(sizes) < 1.2 * 1024 * 1024
    store.close()


def test_pieces_that_were_answered_stay_so(other: Callable[[Say], Other]) -> None:
    service = other(lambda body, number: good(body) if number == 1 else refusal(503, "away"))
    store = service.store()
    with pytest.raises(PartlyAnswered) as told:
        store.apply([take(f"user:{n}") for n in range(1001)])
    answered = [isinstance(reply[0], Outcome) for reply in told.value.replies]
    assert answered == [True] * 1000 + [False]
    store.close()


def test_an_answer_that_comes_too_late_changes_nothing(other: Callable[[Say], Other]) -> None:
    """Whoever was answered by the failure policy may be about to settle: by the members that it was asked about."""
    given_up = threading.Event()

    def late(body: dict[str, Any], _: int) -> bytes:
        given_up.wait(30)
        described = {"key": "user:42", "name": "gold", "label": "gold", "limit": "10/minute", "binds": True}
        pair = [numbers(**described), numbers(**{**described, "name": "gold#2"})]
        return http(200, json.dumps({"decisions": [{"counters": pair}] * len(body["checks"])}).encode())

    store = other(late).store(timeout_ms=600_000)
    request = Request(Op.TAKE, [Member("user:42", stand_in("gold"), 1)])

    async def ask(seconds: float) -> Replies | StoreError:
        told: asyncio.Future[Replies | StoreError] = asyncio.get_running_loop().create_future()
        store.begin([request], time.monotonic() + seconds, told.set_result)
        return await told

    usual = Connection.ask

    def patient(self: Connection, path: str, body: bytes, _: float, max_bytes: int) -> tuple[Answered, bool]:
        return usual(self, path, body, time.monotonic() + 30, max_bytes)

    async def main() -> None:
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(Connection, "ask", patient)  # a thread that was held up, say, on its way back
            assert isinstance(await ask(0.01), StoreError)
            given_up.set()
            await asyncio.to_thread(store.threads.pool(1).shutdown)
        assert len(request.members) == 1
        store.threads.renew()
        assert isinstance(await ask(30), list)
        assert [member.algorithm.name for member in request.members] == ["gold", "gold#2"]

    asyncio.run(main())
    store.close()


def test_requests_about_nothing(other: Callable[[Say], Other]) -> None:
    service = other(good)
    store = service.store()
    empty = take()
    empty.members = []
    assert [len(reply) for reply in store.apply([empty, take(), empty])] == [0, 1, 0]
    store.close()


def test_a_forked_child_has_connections_of_its_own(other: Callable[[Say], Other]) -> None:
    service = other(good)
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
    assert (service.connections, len(service.asked)) == (2, 3)
    store.close()
