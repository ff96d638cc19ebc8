"""Retrying and pacing over real sockets, with every client, on virtual time: nobody sleeps."""

from __future__ import annotations

import asyncio
import io
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from threading import Event, Lock
from typing import Any

import httpx
import pytest
import requests

from crestgate import Limiter
from crestgate.http.header_options import HeaderStyle
from crestgate.http.headers import rate_limit_headers
from crestgate.retry import Outbound, Retry
from crestgate.retry.httpx import AsyncRetryTransport, PacedTransport, PacingTimeoutError, RetryTransport
from crestgate.retry.requests import PacedAdapter
from crestgate.testing import FakeClock
from integration.scripted_server import (
    BREAK,
    CALLERS,
    NO_WAIT,
    Answer,
    ByRequests,
    Caller,
    Got,
    Server,
    Told,
    serving,
)

START = 1_800_000_000.0  # Fri, 15 Jan 2027 08:00:00 GMT
EXACT = Retry(jitter=0.0)
BUSY = Answer(429, {"Retry-After": "17"}, b"busy")
DONE = Told(200, b"done")
Make = Callable[..., Caller]


@pytest.fixture
def clock() -> FakeClock:
    return FakeClock(START)


@pytest.fixture(params=CALLERS, ids=lambda kind: kind.__name__)
def make(request: pytest.FixtureRequest, clock: FakeClock) -> Iterator[Make]:
    """Makes a client of each kind."""
    made: list[Caller] = []

    def one(retry: Retry = EXACT, **options: Any) -> Caller:
        made.append(request.param(retry, clock, **options))
        return made[-1]

    yield one
    for caller in made:
        caller.close()


# -- waits --------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("headers", "wait"),
    [
        ({"Retry-After": "17"}, 17.0),
        ({"Retry-After": "Fri, 15 Jan 2027 08:00:20 GMT"}, 20.0),
        ({"Retry-After": "Fri, 15 Jan 2027 09:00:20 GMT", "Date": "Fri, 15 Jan 2027 09:00:00 GMT"}, 20.0),
        ({"Retry-After": "Fri, 15 Jan 2027 07:00:00 GMT"}, 0.0),
        ({"RateLimit": '"per-user";r=0;t=17, "per-day";r=0;t=40, "other";r=3;t=50'}, 40.0),
        ({"X-RateLimit-Remaining": "0", "X-RateLimit-Reset": "1800000009"}, 9.0),
    ],
)
def test_what_a_server_says_is_waited_for_to_the_second(
    make: Make, clock: FakeClock, headers: dict[str, str], wait: float
) -> None:
    with serving(Server(Answer(429, headers, b"busy"))) as server:
        assert make().call("GET", server.url) == DONE
    assert clock.now() == START + wait
    assert len(server.got) == 2


def test_where_it_says_nothing_the_wait_is_below_what_doubles(make: Make, clock: FakeClock) -> None:
    with serving(Server(*[Answer(503)] * 3)) as server:
        assert make(Retry(attempts=4, backoff=1.0)).call("GET", server.url) == DONE
    assert START < clock.now() <= START + 1 + 2 + 4


def test_jitter_only_adds(make: Make, clock: FakeClock) -> None:
    with serving(Server(BUSY)) as server:
        make(Retry(jitter=1.0)).call("GET", server.url)
    assert START + 17 <= clock.now() <= START + 34


def test_the_last_answer_is_handed_on_when_the_attempts_are_used_up(make: Make, clock: FakeClock) -> None:
    with serving(Server(*[BUSY] * 9)) as server:
        assert make(Retry(attempts=3, jitter=0.0)).call("GET", server.url) == (429, b"busy")
    assert len(server.got) == 3
    assert clock.now() == START + 2 * 17


@pytest.mark.parametrize("retry", [Retry(max_wait=16.9), Retry(deadline=16.9)])
def test_a_wait_that_is_too_long_is_not_begun(make: Make, clock: FakeClock, retry: Retry) -> None:
    with serving(Server(BUSY)) as server:
        assert make(retry).call("GET", server.url) == (429, b"busy")
    assert (clock.now(), len(server.got)) == (START, 1)


def test_the_deadline_is_for_all_attempts_together(make: Make, clock: FakeClock) -> None:
    with serving(Server(*[BUSY] * 9)) as server:
        assert make(Retry(deadline=40.0, jitter=0.0)).call("GET", server.url).status == 429
    assert (clock.now(), len(server.got)) == (START + 34, 3)


# -- methods and errors -------------------------------------------------------------------------------------------


@pytest.mark.parametrize("method", ["GET", "POST", "PUT", "DELETE"])
def test_a_429_is_repeated_for_every_method(make: Make, method: str) -> None:
    with serving(Server(BUSY)) as server:
        assert make().call(method, server.url + "/x") == DONE
    assert server.got == [Got(method, "/x", b"")] * 2


@pytest.mark.parametrize(("method", "sent"), [("GET", 2), ("PUT", 2), ("POST", 1)])
def test_a_503_is_repeated_where_that_does_no_harm(make: Make, method: str, sent: int) -> None:
    with serving(Server(Answer(503, {"Retry-After": "1"}, b"down"))) as server:
        assert make().call(method, server.url) == (DONE if sent == 2 else (503, b"down"))
        assert make(Retry(methods=["POST"])).call("POST", server.url) == DONE
    assert len(server.got) == sent + 1


def test_a_connection_that_breaks_is_made_anew(make: Make, clock: FakeClock) -> None:
    with serving(Server(BREAK, BREAK)) as server:
        assert make().call("GET", server.url) == DONE
    assert len(server.got) == 3
    assert clock.now() <= START + 0.5 + 1.0


def test_a_connection_that_breaks_under_a_post_is_an_error(make: Make) -> None:
    with serving(Server(BREAK)) as server:
        caller = make()
        with pytest.raises(caller.broken):
            caller.call("POST", server.url, content=b"order")
    assert len(server.got) == 1


def test_a_server_that_is_not_there_is_an_error_in_the_end(make: Make, clock: FakeClock) -> None:
    with serving(Server()) as server:
        pass
    caller = make(Retry(attempts=3, backoff=1.0))
    with pytest.raises(caller.broken):
        caller.call("GET", server.url)
    assert START < clock.now() <= START + 1 + 2


def test_a_broken_connection_goes_on_being_counted(make: Make) -> None:
    with serving(Server(BREAK, BUSY, BREAK, BUSY)) as server:
        assert make(Retry(attempts=4)).call("GET", server.url) == (429, b"busy")
    assert len(server.got) == 4


def test_head(make: Make) -> None:
    with serving(Server(BUSY)) as server:
        assert make().call("HEAD", server.url) == (200, b"")
    assert [got.method for got in server.got] == ["HEAD", "HEAD"]


def test_each_step_of_a_redirection_has_its_own_attempts(make: Make, clock: FakeClock) -> None:
    steps = [BUSY, Answer(307, {"Location": "/there"}), BUSY, BUSY]
    with serving(Server(*steps)) as server:
        assert make(Retry(attempts=3, jitter=0.0)).call("POST", server.url + "/here", content=b"order") == DONE
    assert server.got == [Got("POST", "/here", b"order")] * 2 + [Got("POST", "/there", b"order")] * 3
    assert clock.now() == START + 3 * 17


# -- bodies -------------------------------------------------------------------------------------------------------


def test_an_upload_arrives_whole_each_time(make: Make) -> None:
    body = bytes(range(256)) * 8192
    with serving(Server(BUSY, BUSY)) as server:
        assert make().call("POST", server.url, content=body) == DONE
    assert server.got == [Got("POST", "/", body)] * 3


def test_a_form_with_a_file_arrives_whole_each_time(make: Make) -> None:
    with serving(Server(BUSY)) as server:
        assert make().call("POST", server.url, data={"a": "1"}, files={"file": io.BytesIO(b"x" * 100_000)}) == DONE
    first, second = server.got
    assert first == second
    assert b"x" * 100_000 in first.body


def test_what_can_be_read_only_once_is_sent_only_once(make: Make, clock: FakeClock) -> None:
    def chunks() -> Iterator[bytes]:
        yield b"once"
        yield b" only"

    async def later_chunks() -> Any:
        for chunk in chunks():
            yield chunk

    caller = make()
    with serving(Server(BUSY)) as server:
        content = later_chunks() if type(caller).__name__ == "ByAsyncHttpx" else chunks()
        assert caller.call("PUT", server.url, content=content) == (429, b"busy")
    assert server.got == [Got("PUT", "/", b"once only")]
    assert clock.now() == START


def test_requests_reads_an_open_file_again_from_where_it_was(clock: FakeClock, tmp_path: Path) -> None:
    (tmp_path / "file").write_bytes(b"skip" + b"x" * 100_000)
    caller = ByRequests(EXACT, clock)
    with serving(Server(BUSY, BREAK)) as server, (tmp_path / "file").open("rb") as file:
        file.seek(4)
        assert caller.call("PUT", server.url, data=file) == DONE
    assert server.got == [Got("PUT", "/", b"x" * 100_000)] * 3
    caller.close()


@pytest.mark.parametrize("kind", CALLERS, ids=lambda kind: kind.__name__)
def test_an_endless_refusal_is_not_read_but_closed_before_the_wait(kind: type[Caller]) -> None:
    gone = Event()

    def for_ever() -> Iterator[bytes]:
        try:
            while True:
                yield b"x" * 65536
        finally:
            gone.set()

    class Watching(FakeClock):
        def wait(self, seconds: float) -> float:
            assert gone.wait(NO_WAIT), "the server has not noticed that nobody reads on"
            return super().wait(seconds)

    caller = kind(EXACT, Watching(START))
    with serving(Server(Answer(429, {"Retry-After": "1"}, more=for_ever))) as server:
        assert caller.call("GET", server.url) == DONE
    caller.close()


def test_the_last_answer_is_handed_on_before_it_has_ended(clock: FakeClock) -> None:
    seen = Event()

    def the_rest() -> Iterator[bytes]:
        assert seen.wait(NO_WAIT)
        yield b"end"

    slow = Answer(body=b"begin,", more=the_rest)
    with serving(Server(BUSY, slow, BUSY, slow)) as server:
        with (
            httpx.Client(transport=RetryTransport(EXACT, clock=clock)) as client,
            client.stream("GET", server.url) as r,
        ):
            parts = r.iter_raw()
            assert next(parts) == b"begin,"
            seen.set()
            assert b"".join(parts) == b"end"
        seen.clear()
        caller = ByRequests(EXACT, clock)
        with caller.session.get(server.url, stream=True) as response:
            parts = response.iter_content(6)
            assert next(parts) == b"begin,"
            seen.set()
            assert b"".join(parts) == b"end"
        caller.close()


def test_an_async_answer_is_streamed_and_may_be_left_unread(clock: FakeClock) -> None:
    seen = Event()

    def the_rest() -> Iterator[bytes]:
        assert seen.wait(NO_WAIT)
        yield b"end"

    async def main() -> None:
        transport = AsyncRetryTransport(EXACT, clock=clock)
        async with httpx.AsyncClient(transport=transport, timeout=NO_WAIT) as client:
            async with client.stream("GET", server.url) as response:
                assert await anext(response.aiter_raw()) == b"begin,"
            seen.set()  # only now could the rest have come, and nobody wants it
            assert (await client.get(server.url)).content == b"done"

    with serving(Server(BUSY, Answer(body=b"begin,", more=the_rest))) as server:
        asyncio.run(main())


def test_a_cancelled_task_waits_no_longer_and_keeps_no_connection() -> None:
    async def main() -> None:
        inner = httpx.AsyncHTTPTransport(limits=httpx.Limits(max_connections=1))
        transport = AsyncRetryTransport(Retry(max_wait=3600), transport=inner)
        async with httpx.AsyncClient(transport=transport, timeout=httpx.Timeout(NO_WAIT, pool=1.0)) as client:
            waiting = asyncio.create_task(client.get(server.url))
            await asyncio.to_thread(refused.wait, NO_WAIT)
            while inner._pool.connections:  # closed before the wait, for which no connection is kept
                await asyncio.sleep(0.001)
            waiting.cancel()
            with pytest.raises(asyncio.CancelledError):
                await asyncio.wait_for(waiting, NO_WAIT)
            assert (await client.get(server.url)).content == b"done"

    refused = Event()

    class Noticing(Server):
        def answer(self, got: Got) -> Answer:
            refused.set()
            return super().answer(got)

    with serving(Noticing(Answer(429, {"Retry-After": "3000"}))) as server:
        asyncio.run(main())
    assert len(server.got) == 2


# -- pacing -------------------------------------------------------------------------------------------------------


def test_calls_are_paced(make: Make, clock: FakeClock) -> None:
    caller = make(limits="1/second burst 1")
    with serving(Server()) as server:
        for _ in range(4):
            assert caller.call("GET", server.url) == DONE
    assert clock.now() == START + 3


def test_every_attempt_waits_its_turn(make: Make, clock: FakeClock) -> None:
    """Retries go around pacing: a request that is sent three times takes three turns."""
    caller = make(Retry(backoff=0.0), limits="1 per 10 seconds burst 1")
    with serving(Server(Answer(503), Answer(503))) as server:
        assert caller.call("GET", server.url) == DONE
    assert clock.now() == START + 20


def test_a_refusal_of_one_call_holds_back_the_next(make: Make, clock: FakeClock) -> None:
    caller = make(Retry(attempts=1), limits="100/second")
    with serving(Server(BUSY, Answer(200, {"RateLimit": '"a";r=0;t=5'}))) as server:
        assert caller.call("POST", server.url).status == 429
        assert clock.now() == START
        assert caller.call("GET", server.url).status == 200
        assert clock.now() == START + 17
        assert caller.call("GET", server.url) == DONE
    assert clock.now() == START + 17 + 5


def test_a_hold_is_no_second_wait_for_who_has_waited(make: Make, clock: FakeClock) -> None:
    caller = make(limits="100/second")
    with serving(Server(BUSY)) as server:
        assert caller.call("GET", server.url) == DONE
    assert clock.now() == START + 17


def test_no_turn_in_time_is_an_error_of_the_library_and_is_not_repeated(make: Make, clock: FakeClock) -> None:
    caller = make(Retry(attempts=3), limits="1/minute", timeout=10.0)
    with serving(Server()) as server:
        assert caller.call("GET", server.url) == DONE
        with pytest.raises(caller.no_turn, match=r"no turn for '127\.0\.0\.1:\d+' within 10 s") as raised:
            caller.call("GET", server.url)
    sent_to = raised.value.request.url  # type: ignore[attr-defined]  # the errors of both libraries have it
    assert str(sent_to).rstrip("/") == server.url
    assert (clock.now(), len(server.got)) == (START, 1)


def test_clients_of_both_libraries_share_what_one_of_them_learns(clock: FakeClock) -> None:
    outbound = Outbound(Limiter("memory://", clock=clock), "100/second", timeout=10.0, clock=clock)
    with serving(Server(BUSY)) as server, httpx.Client(transport=PacedTransport(outbound)) as client:
        assert client.get(server.url).status_code == 429
        with requests.Session() as session:
            session.mount("http://", PacedAdapter(outbound))
            with pytest.raises(requests.exceptions.Timeout, match="it asked to be left alone for 17 s"):
                session.get(server.url)
        with pytest.raises(PacingTimeoutError):
            client.get(server.url)
    assert len(server.got) == 1


def test_processes_share_a_limit_by_its_store(tmp_path: Path, clock: FakeClock) -> None:
    program = (
        "import sys; from crestgate import Limiter; from crestgate.retry import Outbound\n"
        "outbound = Outbound(Limiter(sys.argv[1]), '3/hour', timeout=0.0)\n"
        "for turn in range(9):\n"
        "    try:\n"
        "        outbound.wait('https://api.example.com/')\n"
        "    except TimeoutError:\n"
        "        break\n"
        "print(turn)\n"
    )
    store = f"shared://{tmp_path}/counters"
    turns = [
        subprocess.run([sys.executable, "-c", program, store], capture_output=True, text=True, check=True).stdout
        for _ in range(2)
    ]
    assert turns == ["3\n", "0\n"]


# -- the other side is Crestgate -----------------------------------------------------------------------------------


def test_who_waits_as_crestgate_says_is_let_in(make: Make, clock: FakeClock) -> None:
    limiter, lock = Limiter("memory://", clock=clock), Lock()
    refused = []

    class Limited(Server):
        def answer(self, got: Got) -> Answer:
            with lock:
                decision = limiter.check("you", ["3 per 10 seconds", "8/minute using fixed_window"])
            said = rate_limit_headers(decision, HeaderStyle(), clock.ticks())
            headers = {name.decode(): value.decode() for name, value in said}
            refused.append(not decision.allowed)
            return Answer(200 if decision.allowed else 429, headers, b"done")

    caller = make(Retry(attempts=2))
    with serving(Limited()) as server:
        for _ in range(30):
            assert caller.call("GET", server.url) == DONE
    assert sum(refused) > 10
    assert clock.now() >= START + 180  # eight of thirty in each of four minutes
