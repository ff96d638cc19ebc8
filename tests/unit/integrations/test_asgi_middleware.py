"""The ASGI middleware at the level of messages."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any

import pytest

from crestgate import AsyncLimiter, ConfigError, Limiter, RateLimitExceeded
from crestgate.integrations import Denial
from crestgate.integrations.asgi import RateLimitMiddleware
from crestgate.testing import FakeClock
from slow_store import SlowStore

Messages = list[dict[str, Any]]


def scope(kind: str = "http", **more: Any) -> dict[str, Any]:
    made = {"type": kind, "method": "GET", "path": "/", "headers": [], "client": ("192.0.2.1", 1), **more}
    if kind == "websocket":
        del made["method"]
    return made


def call(app: Any, request_scope: dict[str, Any] | None = None) -> Messages:
    """The messages that an application sends for a request."""
    sent: Messages = []

    async def receive() -> dict[str, Any]:
        return {"type": "http.request", "body": b"", "more_body": False}

    async def send(message: dict[str, Any]) -> None:
        sent.append(message)

    asyncio.run(app(scope() if request_scope is None else request_scope, receive, send))
    return sent


def status(messages: Messages) -> int:
    return int(messages[0]["status"])


def names(messages: Messages) -> list[bytes]:
    return [name for name, _ in messages[0]["headers"]]


START = {"type": "http.response.start", "status": 200, "headers": [(b"content-type", b"text/plain")]}


async def hello(scope: Any, receive: Any, send: Any) -> None:
    await send(START)
    await send({"type": "http.response.body", "body": b"hello"})


async def talk(scope: Any, receive: Any, send: Any) -> None:
    await send({"type": "websocket.accept"})
    await send({"type": "websocket.send", "text": "hello"})


@pytest.fixture
def limiter() -> Limiter:
    return Limiter(clock=FakeClock(1000))


def test_only_the_start_message_gets_headers(limiter: Limiter) -> None:
    body = {"type": "http.response.body", "body": b"hello", "more_body": False}

    async def app(scope: Any, receive: Any, send: Any) -> None:
        assert receive is given
        await send(START)
        await send(body)

    async def given() -> Any: ...

    sent: Messages = []

    async def send(message: dict[str, Any]) -> None:
        sent.append(message)

    asyncio.run(RateLimitMiddleware(app, limiter, "2/minute")(scope(), given, send))
    assert sent[1] is body
    assert START["headers"] == [(b"content-type", b"text/plain")]  # an application may send the same one again
    assert sent[0]["headers"][:3] == [
        (b"content-type", b"text/plain"),
        (b"ratelimit-policy", b'"2/minute";q=2;w=60'),
        (b"ratelimit", b'"2/minute";r=1;t=30'),
    ]


def test_denial_does_not_call_the_application(limiter: Limiter) -> None:
    app = RateLimitMiddleware(hello, limiter, "1/minute")
    assert status(call(app)) == 200
    start, body = call(app)
    headers = dict(start["headers"])
    assert (start["status"], headers[b"content-type"]) == (429, b"application/problem+json")
    assert headers[b"content-length"] == str(len(body["body"])).encode()
    assert (headers[b"retry-after"], b"quota-exceeded" in body["body"]) == (b"60", True)
    assert call(app, scope(method="HEAD"))[1]["body"] == b""


def test_headers_of_the_same_name_are_replaced(limiter: Limiter) -> None:
    async def app(scope: Any, receive: Any, send: Any) -> None:
        headers = [(b"ratelimit", b"mine"), (b"retry-after", b"5"), (b"x-ratelimit-limit", b"mine"), (b"x-own", b"yes")]
        await send({"type": "http.response.start", "status": 503, "headers": headers})

    sent = call(RateLimitMiddleware(app, limiter, "2/minute"))
    assert sorted(names(sent)) == sorted(set(names(sent)))
    assert (b"retry-after", b"5") in sent[0]["headers"]  # from the application: nothing was denied
    assert (b"ratelimit", b"mine") not in sent[0]["headers"]
    assert call(RateLimitMiddleware(app, limiter, "2/minute", headers=False))[0]["headers"][0] == (
        b"ratelimit",
        b"mine",
    )


@pytest.mark.parametrize("wrapped", [1, 2, 3])
def test_repeated_middleware_counts_once(wrapped: int, limiter: Limiter) -> None:
    app: Any = hello
    for _ in range(wrapped):
        app = RateLimitMiddleware(app, limiter, "2/minute")
    assert [status(call(app)) for _ in range(3)] == [200, 200, 429]
    limiter.reset("ip:192.0.2.1", "2/minute")
    assert names(call(app)).count(b"ratelimit") == 1


def test_two_middlewares_with_different_limits_both_count_in_one_set_of_headers(limiter: Limiter) -> None:
    app = RateLimitMiddleware(RateLimitMiddleware(hello, limiter, "1/minute"), limiter, "5/hour")
    assert dict(call(app)[0]["headers"])[b"ratelimit"] == b'"5/hour";r=4;t=720, "1/minute";r=0;t=60'
    denied = call(app)
    assert status(denied) == 429
    assert dict(denied[0]["headers"])[b"ratelimit"] == b'"5/hour";r=3;t=1440, "1/minute";r=0;t=60'


def test_application_errors_propagate_and_denials_become_responses(limiter: Limiter) -> None:
    async def boom(scope: Any, receive: Any, send: Any) -> None:
        raise KeyError("boom")

    async def denied(scope: Any, receive: Any, send: Any) -> None:
        raise RateLimitExceeded(limiter.check("all", "0/minute"))

    async def late(scope: Any, receive: Any, send: Any) -> None:
        await send(START)
        raise RateLimitExceeded(limiter.check("all", "0/minute"))

    with pytest.raises(KeyError, match="boom"):
        call(RateLimitMiddleware(boom, limiter, "9/minute"))
    answered = call(RateLimitMiddleware(denied, limiter, "9/minute"))
    assert status(answered) == 429
    assert b'"9/minute"' in dict(answered[0]["headers"])[b"ratelimit"]
    assert b'"0/minute"' in dict(answered[0]["headers"])[b"ratelimit"]
    with pytest.raises(RateLimitExceeded):
        call(RateLimitMiddleware(late, limiter, "9/minute"))


@pytest.mark.parametrize(("code", "left"), [(200, "2"), (401, "1")])
def test_when_is_evaluated_before_the_headers_are_sent(code: int, left: str, limiter: Limiter) -> None:
    async def app(scope: Any, receive: Any, send: Any) -> None:
        await send({**START, "status": code})

    for _ in range(2):  # also as the inner one of two
        sent = call(
            RateLimitMiddleware(
                RateLimitMiddleware(app, limiter, "2/minute", when=lambda response: response.status == 401), limiter
            )
        )
        assert dict(sent[0]["headers"])[b"x-ratelimit-remaining"] == left.encode()
        limiter.reset("ip:192.0.2.1", "2/minute")


def test_when_gets_status_500_for_an_exception_and_disconnects_stay_charged(limiter: Limiter) -> None:
    def app(error: type[BaseException]) -> RateLimitMiddleware:
        async def raising(scope: Any, receive: Any, send: Any) -> None:
            raise error

        return RateLimitMiddleware(raising, limiter, "2/minute", when=lambda response: response.status < 500)

    with pytest.raises(KeyError):
        call(app(KeyError))
    assert limiter.peek("ip:192.0.2.1", "2/minute").remaining == 2
    with pytest.raises(asyncio.CancelledError):
        call(app(asyncio.CancelledError))
    assert limiter.peek("ip:192.0.2.1", "2/minute").remaining == 1


def test_websockets_are_limited_only_on_request(limiter: Limiter) -> None:
    passing = RateLimitMiddleware(talk, limiter, "1/minute")
    assert [call(passing, scope("websocket"))[0]["type"] for _ in range(3)] == ["websocket.accept"] * 3
    limited = RateLimitMiddleware(talk, limiter, "1/minute", websockets=True)
    accepted = call(limited, scope("websocket"))
    assert (accepted[0]["type"], names(accepted)[0]) == ("websocket.accept", b"ratelimit-policy")
    assert call(limited, scope("websocket")) == [
        {"type": "websocket.close", "code": 1008, "reason": "rate limit exceeded"}
    ]
    start, body = call(limited, scope("websocket", extensions={"websocket.http.response": {}}))
    assert (start["type"], start["status"], body["type"]) == (
        "websocket.http.response.start",
        429,
        "websocket.http.response.body",
    )
    assert dict(start["headers"])[b"retry-after"] == b"60"


def test_when_gets_status_403_for_a_rejected_websocket(limiter: Limiter) -> None:
    calls = []

    async def app(scope: Any, receive: Any, send: Any) -> None:
        await send({"type": "websocket.close", "code": 1000})

    def when(response: Any) -> bool:
        calls.append(response.status)
        return False

    call(RateLimitMiddleware(app, limiter, "1/minute", websockets=True, when=when), scope("websocket"))
    call(RateLimitMiddleware(talk, limiter, "1/minute", websockets=True, when=when), scope("websocket"))
    assert calls == [403, 101]


def test_store_is_connected_at_startup_and_lifespan_passes_through() -> None:
    store = SlowStore()
    calls = []

    async def app(scope: Any, receive: Any, send: Any) -> None:
        calls.append((scope["type"], store.connected))

    call(RateLimitMiddleware(app, AsyncLimiter(store), "1/minute"), {"type": "lifespan"})
    assert calls == [("lifespan", 1)]


def test_leaky_bucket_delay_is_waited_for_by_default(limiter: Limiter) -> None:
    waited: list[float] = []

    class Waiting(FakeClock):
        def wait(self, seconds: float) -> float:
            waited.append(seconds)
            return 0.0

    limits = "60/minute burst 5 using leaky_bucket"
    app = RateLimitMiddleware(hello, Limiter(clock=Waiting(1000)), limits)
    assert [status(call(app)) for _ in range(3)] == [200] * 3
    assert waited == [1.0, 2.0]
    app = RateLimitMiddleware(hello, Limiter(clock=Waiting(1000)), limits, wait=False)
    assert [status(call(app)) for _ in range(3)] == [200] * 3
    assert waited == [1.0, 2.0]


async def _coroutine(request: Any, decision: Any) -> Denial:
    return Denial(420, b"later")


@pytest.mark.parametrize(
    ("on_denied", "sent"),
    [
        (lambda request, decision: Denial(418, request["path"].encode()), 418),
        (_coroutine, 420),
        (lambda request, decision: None, 429),
        (lambda request, decision: hello, 200),
    ],
)
@pytest.mark.parametrize("key", ["ip", "user"])
def test_on_denied_may_return_a_denial_or_an_application(
    on_denied: Callable[..., Any], sent: int, key: str, limiter: Limiter
) -> None:
    app = RateLimitMiddleware(hello, limiter, "0/minute", key=key, on_denied=on_denied)
    answered = call(app)
    assert status(answered) == sent
    assert b"ratelimit" in names(answered)


def test_invalid_result_of_on_denied_is_an_error(limiter: Limiter) -> None:
    app = RateLimitMiddleware(hello, limiter, "0/minute", on_denied=lambda request, decision: "no")
    with pytest.raises(TypeError, match="on_denied must return"):
        call(app)


def test_middleware_without_limits_refuses_limit_options(limiter: Limiter) -> None:
    assert b"ratelimit" not in names(call(RateLimitMiddleware(hello, limiter)))
    idle: list[dict[str, Any]] = [{"key": "user"}, {"when": bool}, {"websockets": True}]
    for options in idle:
        with pytest.raises(ConfigError, match="the middleware has none"):
            RateLimitMiddleware(hello, limiter, **options)
