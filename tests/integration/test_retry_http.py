"""Retries and pacing over real sockets, with every client, on virtual time: no sleeping."""

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
    CLIENT_TIMEOUT,
    CLIENTS,
    DISCONNECT,
    ClientResponse,
    HttpClient,
    ReceivedRequest,
    RequestsClient,
    ScriptedResponse,
    Server,
    serve,
)

START = 1_800_000_000.0  # Fri, 15 Jan 2027 08:00:00 GMT
EXACT = Retry(jitter=0.0)
BUSY = ScriptedResponse(429, {"Retry-After": "17"}, b"busy")
DONE = ClientResponse(200, b"done")
Make = Callable[..., HttpClient]


@pytest.fixture
def clock() -> FakeClock:
    return FakeClock(START)


@pytest.fixture(params=CLIENTS, ids=lambda kind: kind.__name__)
def make(request: pytest.FixtureRequest, clock: FakeClock) -> Iterator[Make]:
    """Creates a client of each kind."""
    clients: list[HttpClient] = []

    def create(retry: Retry = EXACT, **options: Any) -> HttpClient:
        clients.append(request.param(retry, clock, **options))
        return clients[-1]

    yield create
    for client in clients:
        client.close()


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
def test_server_wait_hints_are_followed_to_the_second(
    make: Make, clock: FakeClock, headers: dict[str, str], wait: float
) -> None:
    with serve(Server(ScriptedResponse(429, headers, b"busy"))) as server:
        assert make().call("GET", server.url) == DONE
    assert clock.now() == START + wait
    assert len(server.requests) == 2


def test_without_a_hint_waits_follow_exponential_backoff(make: Make, clock: FakeClock) -> None:
    with serve(Server(*[ScriptedResponse(503)] * 3)) as server:
        assert make(Retry(attempts=4, backoff=1.0)).call("GET", server.url) == DONE
    assert START < clock.now() <= START + 1 + 2 + 4


def test_jitter_only_adds(make: Make, clock: FakeClock) -> None:
    with serve(Server(BUSY)) as server:
        make(Retry(jitter=1.0)).call("GET", server.url)
    assert START + 17 <= clock.now() <= START + 34


def test_last_response_is_returned_when_attempts_run_out(make: Make, clock: FakeClock) -> None:
    with serve(Server(*[BUSY] * 9)) as server:
        assert make(Retry(attempts=3, jitter=0.0)).call("GET", server.url) == (429, b"busy")
    assert len(server.requests) == 3
    assert clock.now() == START + 2 * 17


@pytest.mark.parametrize("retry", [Retry(max_wait=16.9), Retry(deadline=16.9)])
def test_too_long_wait_is_not_started(make: Make, clock: FakeClock, retry: Retry) -> None:
    with serve(Server(BUSY)) as server:
        assert make(retry).call("GET", server.url) == (429, b"busy")
    assert (clock.now(), len(server.requests)) == (START, 1)


def test_deadline_covers_all_attempts(make: Make, clock: FakeClock) -> None:
    with serve(Server(*[BUSY] * 9)) as server:
        assert make(Retry(deadline=40.0, jitter=0.0)).call("GET", server.url).status == 429
    assert (clock.now(), len(server.requests)) == (START + 34, 3)


# -- methods and errors -------------------------------------------------------------------------------------------


@pytest.mark.parametrize("method", ["GET", "POST", "PUT", "DELETE"])
def test_429_is_retried_for_every_method(make: Make, method: str) -> None:
    with serve(Server(BUSY)) as server:
        assert make().call(method, server.url + "/x") == DONE
    assert server.requests == [ReceivedRequest(method, "/x", b"")] * 2


@pytest.mark.parametrize(("method", "sent"), [("GET", 2), ("PUT", 2), ("POST", 1)])
def test_503_is_retried_for_idempotent_methods(make: Make, method: str, sent: int) -> None:
    with serve(Server(ScriptedResponse(503, {"Retry-After": "1"}, b"down"))) as server:
        assert make().call(method, server.url) == (DONE if sent == 2 else (503, b"down"))
        assert make(Retry(methods=["POST"])).call("POST", server.url) == DONE
    assert len(server.requests) == sent + 1


def test_broken_connection_is_retried(make: Make, clock: FakeClock) -> None:
    with serve(Server(DISCONNECT, DISCONNECT)) as server:
        assert make().call("GET", server.url) == DONE
    assert len(server.requests) == 3
    assert clock.now() <= START + 0.5 + 1.0


def test_broken_connection_during_post_is_an_error(make: Make) -> None:
    with serve(Server(DISCONNECT)) as server:
        client = make()
        with pytest.raises(client.transport_error):
            client.call("POST", server.url, content=b"order")
    assert len(server.requests) == 1


def test_unreachable_server_is_an_error_after_all_attempts(make: Make, clock: FakeClock) -> None:
    with serve(Server()) as server:
        pass
    client = make(Retry(attempts=3, backoff=1.0))
    with pytest.raises(client.transport_error):
        client.call("GET", server.url)
    assert START < clock.now() <= START + 1 + 2


def test_broken_connections_count_as_attempts(make: Make) -> None:
    with serve(Server(DISCONNECT, BUSY, DISCONNECT, BUSY)) as server:
        assert make(Retry(attempts=4)).call("GET", server.url) == (429, b"busy")
    assert len(server.requests) == 4


def test_head(make: Make) -> None:
    with serve(Server(BUSY)) as server:
        assert make().call("HEAD", server.url) == (200, b"")
    assert [request.method for request in server.requests] == ["HEAD", "HEAD"]


def test_each_redirect_has_its_own_attempts(make: Make, clock: FakeClock) -> None:
    responses = [BUSY, ScriptedResponse(307, {"Location": "/there"}), BUSY, BUSY]
    with serve(Server(*responses)) as server:
        assert make(Retry(attempts=3, jitter=0.0)).call("POST", server.url + "/here", content=b"order") == DONE
    assert (
        server.requests
        == [ReceivedRequest("POST", "/here", b"order")] * 2 + [ReceivedRequest("POST", "/there", b"order")] * 3
    )
    assert clock.now() == START + 3 * 17


# -- bodies -------------------------------------------------------------------------------------------------------


def test_upload_is_sent_completely_on_each_attempt(make: Make) -> None:
    body = bytes(range(256)) * 8192
    with serve(Server(BUSY, BUSY)) as server:
        assert make().call("POST", server.url, content=body) == DONE
    assert server.requests == [ReceivedRequest("POST", "/", body)] * 3


def test_multipart_form_is_sent_completely_on_each_attempt(make: Make) -> None:
    with serve(Server(BUSY)) as server:
        assert make().call("POST", server.url, data={"a": "1"}, files={"file": io.BytesIO(b"x" * 100_000)}) == DONE
    first, second = server.requests
    assert first == second
    assert b"x" * 100_000 in first.body


def test_one_shot_body_is_not_retried(make: Make, clock: FakeClock) -> None:
    def chunks() -> Iterator[bytes]:
        yield b"once"
        yield b" only"

    async def async_chunks() -> Any:
        for chunk in chunks():
            yield chunk

    client = make()
    with serve(Server(BUSY)) as server:
        content = async_chunks() if type(client).__name__ == "AsyncHttpxClient" else chunks()
        assert client.call("PUT", server.url, content=content) == (429, b"busy")
    assert server.requests == [ReceivedRequest("PUT", "/", b"once only")]
    assert clock.now() == START


def test_requests_rewinds_an_open_file_to_its_start_position(clock: FakeClock, tmp_path: Path) -> None:
    (tmp_path / "file").write_bytes(b"skip" + b"x" * 100_000)
    client = RequestsClient(EXACT, clock)
    with serve(Server(BUSY, DISCONNECT)) as server, (tmp_path / "file").open("rb") as file:
        file.seek(4)
        assert client.call("PUT", server.url, data=file) == DONE
    assert server.requests == [ReceivedRequest("PUT", "/", b"x" * 100_000)] * 3
    client.close()


@pytest.mark.parametrize("kind", CLIENTS, ids=lambda kind: kind.__name__)
def test_endless_error_body_is_closed_before_the_wait(kind: type[HttpClient]) -> None:
    disconnected = Event()

    def endless_chunks() -> Iterator[bytes]:
        try:
            while True:
                yield b"x" * 65536
        finally:
            disconnected.set()

    class WaitingClock(FakeClock):
        def wait(self, seconds: float) -> float:
            assert disconnected.wait(CLIENT_TIMEOUT), "the server has not noticed the closed connection"
            return super().wait(seconds)

    client = kind(EXACT, WaitingClock(START))
    with serve(Server(ScriptedResponse(429, {"Retry-After": "1"}, chunks=endless_chunks))) as server:
        assert client.call("GET", server.url) == DONE
    client.close()


def test_last_response_is_streamed(clock: FakeClock) -> None:
    first_chunk_read = Event()

    def last_chunk() -> Iterator[bytes]:
        assert first_chunk_read.wait(CLIENT_TIMEOUT)
        yield b"end"

    slow = ScriptedResponse(body=b"begin,", chunks=last_chunk)
    with serve(Server(BUSY, slow, BUSY, slow)) as server:
        with (
            httpx.Client(transport=RetryTransport(EXACT, clock=clock)) as client,
            client.stream("GET", server.url) as r,
        ):
            parts = r.iter_raw()
            assert next(parts) == b"begin,"
            first_chunk_read.set()
            assert b"".join(parts) == b"end"
        first_chunk_read.clear()
        requests_client = RequestsClient(EXACT, clock)
        with requests_client.session.get(server.url, stream=True) as response:
            parts = response.iter_content(6)
            assert next(parts) == b"begin,"
            first_chunk_read.set()
            assert b"".join(parts) == b"end"
        requests_client.close()


def test_async_response_is_streamed_and_may_stay_unread(clock: FakeClock) -> None:
    first_chunk_read = Event()

    def last_chunk() -> Iterator[bytes]:
        assert first_chunk_read.wait(CLIENT_TIMEOUT)
        yield b"end"

    async def main() -> None:
        transport = AsyncRetryTransport(EXACT, clock=clock)
        async with httpx.AsyncClient(transport=transport, timeout=CLIENT_TIMEOUT) as client:
            async with client.stream("GET", server.url) as response:
                assert await anext(response.aiter_raw()) == b"begin,"
            first_chunk_read.set()  # the rest is sent only now, and is not read
            assert (await client.get(server.url)).content == b"done"

    with serve(Server(BUSY, ScriptedResponse(body=b"begin,", chunks=last_chunk))) as server:
        asyncio.run(main())


def test_cancelled_task_stops_waiting_and_holds_no_connection() -> None:
    async def main() -> None:
        inner = httpx.AsyncHTTPTransport(limits=httpx.Limits(max_connections=1))
        transport = AsyncRetryTransport(Retry(max_wait=3600), transport=inner)
        async with httpx.AsyncClient(transport=transport, timeout=httpx.Timeout(CLIENT_TIMEOUT, pool=1.0)) as client:
            waiting = asyncio.create_task(client.get(server.url))
            await asyncio.to_thread(refused.wait, CLIENT_TIMEOUT)
            while inner._pool.connections:  # closed before the wait
                await asyncio.sleep(0.001)
            waiting.cancel()
            with pytest.raises(asyncio.CancelledError):
                await asyncio.wait_for(waiting, CLIENT_TIMEOUT)
            assert (await client.get(server.url)).content == b"done"

    refused = Event()

    class NotifyingServer(Server):
        def respond(self, request: ReceivedRequest) -> ScriptedResponse:
            refused.set()
            return super().respond(request)

    with serve(NotifyingServer(ScriptedResponse(429, {"Retry-After": "3000"}))) as server:
        asyncio.run(main())
    assert len(server.requests) == 2


# -- pacing -------------------------------------------------------------------------------------------------------


def test_calls_are_paced(make: Make, clock: FakeClock) -> None:
    client = make(limits="1/second burst 1")
    with serve(Server()) as server:
        for _ in range(4):
            assert client.call("GET", server.url) == DONE
    assert clock.now() == START + 3


def test_every_attempt_is_paced(make: Make, clock: FakeClock) -> None:
    """Retries are outside pacing: a request that is sent three times is paced three times."""
    client = make(Retry(backoff=0.0), limits="1 per 10 seconds burst 1")
    with serve(Server(ScriptedResponse(503), ScriptedResponse(503))) as server:
        assert client.call("GET", server.url) == DONE
    assert clock.now() == START + 20


def test_429_for_one_call_delays_the_next(make: Make, clock: FakeClock) -> None:
    client = make(Retry(attempts=1), limits="100/second")
    with serve(Server(BUSY, ScriptedResponse(200, {"RateLimit": '"a";r=0;t=5'}))) as server:
        assert client.call("POST", server.url).status == 429
        assert clock.now() == START
        assert client.call("GET", server.url).status == 200
        assert clock.now() == START + 17
        assert client.call("GET", server.url) == DONE
    assert clock.now() == START + 17 + 5


def test_cooldown_adds_no_second_wait(make: Make, clock: FakeClock) -> None:
    client = make(limits="100/second")
    with serve(Server(BUSY)) as server:
        assert client.call("GET", server.url) == DONE
    assert clock.now() == START + 17


def test_pacing_timeout_is_a_library_error_and_is_not_retried(make: Make, clock: FakeClock) -> None:
    client = make(Retry(attempts=3), limits="1/minute", timeout=10.0)
    with serve(Server()) as server:
        assert client.call("GET", server.url) == DONE
        with pytest.raises(client.timeout_error, match=r"call to '127\.0\.0\.1:\d+' not allowed within 10 s") as raised:
            client.call("GET", server.url)
    sent_to = raised.value.request.url  # type: ignore[attr-defined]  # errors of both libraries have it
    assert str(sent_to).rstrip("/") == server.url
    assert (clock.now(), len(server.requests)) == (START, 1)


def test_clients_of_both_libraries_share_cooldowns(clock: FakeClock) -> None:
    outbound = Outbound(Limiter("memory://", clock=clock), "100/second", timeout=10.0, clock=clock)
    with serve(Server(BUSY)) as server, httpx.Client(transport=PacedTransport(outbound)) as client:
        assert client.get(server.url).status_code == 429
        with requests.Session() as session:
            session.mount("http://", PacedAdapter(outbound))
            with pytest.raises(requests.exceptions.Timeout, match="cooldown for 17 s"):
                session.get(server.url)
        with pytest.raises(PacingTimeoutError):
            client.get(server.url)
    assert len(server.requests) == 1


def test_processes_share_a_limit_through_the_store(tmp_path: Path, clock: FakeClock) -> None:
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


def test_client_that_follows_crestgate_headers_is_admitted(make: Make, clock: FakeClock) -> None:
    limiter, lock = Limiter("memory://", clock=clock), Lock()
    refused = []

    class LimitedServer(Server):
        def respond(self, request: ReceivedRequest) -> ScriptedResponse:
            with lock:
                decision = limiter.check("you", ["3 per 10 seconds", "8/minute using fixed_window"])
            header_pairs = rate_limit_headers(decision, HeaderStyle(), clock.ticks())
            headers = {name.decode(): value.decode() for name, value in header_pairs}
            refused.append(not decision.allowed)
            return ScriptedResponse(200 if decision.allowed else 429, headers, b"done")

    client = make(Retry(attempts=2))
    with serve(LimitedServer()) as server:
        for _ in range(30):
            assert client.call("GET", server.url) == DONE
    assert sum(refused) > 10
    assert clock.now() >= START + 180  # thirty calls at eight a minute take four windows
