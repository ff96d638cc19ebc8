"""In-flight limits of single routes, and ends of responses that only show at the level of messages.

Time stands still, so no slot is ever freed by its time to live.
"""

from __future__ import annotations

import asyncio
import io
from collections.abc import AsyncIterator, Callable, Coroutine, Iterator
from functools import wraps
from typing import Any

import flask
import pytest
from fastapi import Depends, FastAPI
from fastapi.responses import StreamingResponse

from crestgate import AsyncLimiter, Limiter
from crestgate.integrations.asgi import RateLimitMiddleware
from crestgate.integrations.fastapi import limit
from crestgate.integrations.wsgi import RateLimitMiddleware as WsgiMiddleware
from crestgate.testing import FakeClock
from unit.integrations.flask_sites import get, site
from unit.integrations.wsgi_calls import CLIENT, environ_for, limiter_on

ONE = "1 concurrent"
START = {"type": "http.response.start", "status": 200, "headers": []}


def on_loop(test: Callable[..., Coroutine[Any, Any, None]]) -> Callable[..., None]:
    """A test that runs on an event loop."""

    @wraps(test)
    def run(**arguments: Any) -> None:
        asyncio.run(asyncio.wait_for(test(**arguments), 60))

    return run


def scope(kind: str = "http", path: str = "/") -> dict[str, Any]:
    made = {"type": kind, "path": path, "raw_path": path.encode(), "headers": [], "query_string": b""}
    return made | {"client": (CLIENT, 1), "root_path": ""} | ({"method": "GET"} if kind == "http" else {})


class Call:
    """A running request of an ASGI application, whose client has not gone."""

    def __init__(self, app: Any, request_scope: dict[str, Any] | None = None) -> None:
        self.sent: list[dict[str, Any]] = []
        self.arrived = asyncio.Event()
        self.disconnected = asyncio.Event()
        self.task = asyncio.get_running_loop().create_task(app(request_scope or scope(), self.receive, self.send))

    async def receive(self) -> dict[str, Any]:
        await self.disconnected.wait()
        return {"type": "http.disconnect"}

    async def send(self, message: dict[str, Any]) -> None:
        self.sent.append(message)
        self.arrived.set()

    async def until(self, number: int) -> None:
        """Until so many messages were sent."""
        while len(self.sent) < number:
            self.arrived.clear()
            await self.arrived.wait()

    @property
    def status(self) -> int:
        return int(self.sent[0]["status"])


def free(limiter: Limiter | AsyncLimiter, key: str = f"ip:{CLIENT}") -> int:
    return Limiter.sharing(limiter).peek(key, ONE).remaining


# -- ASGI -------------------------------------------------------------------------------------------------------------


@on_loop
async def test_asgi_slot_is_free_after_the_last_message_and_not_with_the_task() -> None:
    limiter, background = AsyncLimiter(clock=FakeClock(1000)), asyncio.Event()

    async def app(scope: Any, receive: Any, send: Any) -> None:
        await send(START)
        await send({"type": "http.response.body", "body": b"1", "more_body": True})
        assert free(limiter) == 0
        await send({"type": "http.response.body", "body": b"2"})
        assert free(limiter) == 1
        await background.wait()

    call = Call(RateLimitMiddleware(app, limiter, ONE))
    await call.until(3)
    background.set()
    await call.task


@on_loop
async def test_asgi_slot_is_free_when_the_task_is_cancelled() -> None:
    limiter = AsyncLimiter(clock=FakeClock(1000))

    async def app(scope: Any, receive: Any, send: Any) -> None:
        await send(START)
        await asyncio.Event().wait()

    call = Call(RateLimitMiddleware(app, limiter, ONE))
    await call.until(1)
    assert free(limiter) == 0
    call.task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await call.task
    assert free(limiter) == 1


@on_loop
async def test_asgi_slot_is_free_when_the_delay_of_a_leaky_bucket_is_cancelled() -> None:
    limiter = AsyncLimiter("memory://")

    async def app(scope: Any, receive: Any, send: Any) -> None:
        await send(START)
        await send({"type": "http.response.body", "body": b""})

    limited = RateLimitMiddleware(app, limiter, [ONE, "1/minute burst 5 using leaky_bucket"])
    await Call(limited).task
    waiting = Call(limited)
    while free(limiter):
        await asyncio.sleep(0)
    waiting.task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await waiting.task
    assert free(limiter) == 1


@on_loop
async def test_websocket_holds_its_slot_until_it_ends() -> None:
    limiter, end = AsyncLimiter(clock=FakeClock(1000)), asyncio.Event()

    async def app(scope: Any, receive: Any, send: Any) -> None:
        await send({"type": "websocket.accept"})
        await end.wait()

    limited = RateLimitMiddleware(app, limiter, ONE, websockets=True)
    first = Call(limited, scope("websocket"))
    await first.until(1)
    second = Call(limited, scope("websocket"))
    await second.task
    assert second.sent[0]["type"] == "websocket.close"
    assert free(limiter) == 0
    end.set()
    await first.task
    assert free(limiter) == 1


@on_loop
async def test_slots_are_renewed_while_the_response_runs() -> None:
    clock, end = FakeClock(1000), asyncio.Event()
    limiter = AsyncLimiter(clock=clock)
    short = "1 concurrent ttl 300ms"

    async def app(scope: Any, receive: Any, send: Any) -> None:
        await send(START)
        await end.wait()
        await send({"type": "http.response.body", "body": b""})

    call = Call(RateLimitMiddleware(app, limiter, short))
    await call.until(1)
    for _ in range(4):  # longer than a time to live
        clock.advance(0.1)
        while (await limiter.peek(f"ip:{CLIENT}", short)).reset_after < 0.3:
            await asyncio.sleep(0.005)
    end.set()
    await call.task
    assert (await limiter.peek(f"ip:{CLIENT}", short)).remaining == 1


# -- WSGI -------------------------------------------------------------------------------------------------------------


def stream(environ: Any, start: Any) -> Iterator[bytes]:
    start("200 OK", [("Content-Type", "text/plain")])
    yield b"1"
    yield b"2"


def test_wsgi_slot_is_free_when_the_server_closes_the_body() -> None:
    limiter = limiter_on()
    body: Any = WsgiMiddleware(stream, limiter, ONE)(environ_for(), lambda *_: lambda _: None)
    assert next(iter(body)) == b"1"
    assert free(limiter) == 0
    body.close()
    assert free(limiter) == 1


def test_wsgi_slot_is_free_when_the_body_fails_or_the_application_raises() -> None:
    limiter = limiter_on()

    def failing(environ: Any, start: Any) -> Iterator[bytes]:
        start("200 OK", [])
        yield b"1"
        raise RuntimeError("boom")

    body: Any = WsgiMiddleware(failing, limiter, ONE)(environ_for(), lambda *_: lambda _: None)
    with pytest.raises(RuntimeError):
        list(body)
    assert free(limiter) == 1

    def raising(environ: Any, start: Any) -> list[bytes]:
        raise SystemExit

    with pytest.raises(SystemExit):
        WsgiMiddleware(raising, limiter, ONE)(environ_for(), lambda *_: lambda _: None)
    assert free(limiter) == 1


# -- Flask ------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("kind", ["plain", "stream", "file"])
def test_flask_view_holds_until_its_response_is_closed(kind: str) -> None:
    app, gate = site()
    made: dict[str, Callable[[], Any]] = {
        "plain": lambda: "body",
        "stream": lambda: flask.Response(iter(["bo", "dy"])),
        "file": lambda: flask.send_file(io.BytesIO(b"body"), "text/plain"),
    }

    @app.get("/")
    @gate.limit(ONE)
    def view() -> Any:
        return made[kind]()

    first = get(app, "/")
    assert get(app, "/").status_code == 429
    assert first.data == b"body"
    first.close()
    assert get(app, "/", method="HEAD", buffered=True).status_code == 200
    assert get(app, "/").status_code == 200


def test_flask_slots_of_failed_views_are_free() -> None:
    app, gate = site()
    app.testing = True

    @app.get("/")
    @gate.limit(ONE)
    def view() -> Any:
        raise ZeroDivisionError

    for _ in range(2):
        with pytest.raises(ZeroDivisionError):
            get(app, "/")


def test_flask_slot_is_free_when_a_later_limit_denies() -> None:
    app, gate = site(application_limits=ONE)

    @app.get("/")
    @gate.limit("0/minute")
    def view() -> str:
        return "never"

    assert [get(app, "/", buffered=True).status_code for _ in range(2)] == [429, 429]
    assert get(app, "/unknown", buffered=True).status_code == 404


# -- FastAPI ----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("middleware", [False, True])
@pytest.mark.parametrize("style", ["decorator", "dependency"])
@on_loop
async def test_fastapi_route_holds_until_its_stream_ends(middleware: bool, style: str) -> None:
    limiter, end = AsyncLimiter(clock=FakeClock(1000)), asyncio.Event()
    app = FastAPI()
    limited = limit(ONE, limiter=limiter)

    async def chunks() -> AsyncIterator[str]:
        yield "1"
        await end.wait()
        yield "2"

    async def endpoint() -> StreamingResponse:
        return StreamingResponse(chunks())

    if style == "decorator":
        app.get("/")(limited(endpoint))
    else:
        app.get("/", dependencies=[Depends(limited)])(endpoint)
    if middleware:
        app.add_middleware(RateLimitMiddleware, limiter=limiter)
    first = Call(app)
    await first.until(2)
    second = Call(app)
    await second.task
    assert second.status == 429
    first.disconnected.set()
    await first.task
    third = Call(app)
    await third.until(2)
    end.set()
    await third.task
    fourth = Call(app)
    await fourth.task
    assert (third.status, fourth.status) == (200, 200)


@on_loop
async def test_fastapi_slot_is_free_after_an_error_of_the_endpoint() -> None:
    app = FastAPI()

    @app.get("/")
    @limit(ONE, limiter=AsyncLimiter(clock=FakeClock(1000)))
    async def endpoint() -> None:
        raise ZeroDivisionError

    for _ in range(2):
        call = Call(app)
        with pytest.raises(ZeroDivisionError):
            await call.task
        assert call.status == 500
