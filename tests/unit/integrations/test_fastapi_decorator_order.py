"""The decorator above the route, below it, or among others: it limits, or raises an error that explains why not."""

from __future__ import annotations

import asyncio
import functools
import inspect
from collections.abc import AsyncIterator, Callable, Iterator
from typing import Any

import pytest
from fastapi import APIRouter, Depends, FastAPI, Request, WebSocket
from fastapi.responses import PlainTextResponse, StreamingResponse
from fastapi.testclient import TestClient
from starlette.applications import Starlette
from starlette.routing import Route
from starlette.testclient import WebSocketDenialResponse

from crestgate import ConfigError, Limiter
from crestgate.integrations.fastapi import limit
from crestgate.testing import FakeClock
from unit.integrations.fastapi_versions import needs_generator_endpoints

Decorator = Callable[[Any], Any]


def wrapping(function: Any) -> Any:
    """A decorator that sets `__wrapped__`."""
    if inspect.iscoroutinefunction(function):

        @functools.wraps(function)
        async def waiting(*args: Any, **kwargs: Any) -> Any:
            return await function(*args, **kwargs)

        return waiting

    @functools.wraps(function)
    def calling(*args: Any, **kwargs: Any) -> Any:
        return function(*args, **kwargs)

    return calling


def hiding(function: Any) -> Any:
    """A decorator that does not set `__wrapped__`."""

    async def inner(name: str) -> Any:
        return await function(name)

    return inner


async def waited(name: str) -> str:
    return name


def called(name: str) -> str:
    return name


def fresh(function: Any) -> Any:
    """A new copy of the same function."""
    made = type(function)(function.__code__, function.__globals__, function.__name__, None, function.__closure__)
    made.__annotations__ = function.__annotations__
    return made


def statuses(app: Any, path: str = "/hello/{}", times: int = 3) -> list[int]:
    with TestClient(app) as client:
        return [client.get(path.format(time)).status_code for time in range(times)]


@pytest.fixture
def limiter() -> Limiter:
    return Limiter(clock=FakeClock(1000))


@pytest.mark.parametrize("endpoint", [waited, called])
@pytest.mark.parametrize("order", ["LR", "RL", "LTR", "RTL", "RLT", "LRT", "TLR", "TRL", "TLTRT", "RLR"])
def test_limit_works_in_any_decorator_order(endpoint: Any, order: str, limiter: Limiter) -> None:
    """From the top: L is the limit, R the route, T another decorator."""
    app = FastAPI()
    decorators: dict[str, Decorator] = {
        "L": limit("2/minute", limiter=limiter),
        "R": app.get("/hello/{name}"),
        "T": wrapping,
    }
    functools.reduce(lambda function, letter: decorators[letter](function), reversed(order), fresh(endpoint))
    assert statuses(app) == [200, 200, 429]


@pytest.mark.parametrize("order", ["LMR", "RLM", "LRM", "MLR"])
def test_limits_stack_in_any_order(order: str, limiter: Limiter) -> None:
    app = FastAPI()
    decorators: dict[str, Decorator] = {
        "L": limit("2/minute", limiter=limiter),
        "M": limit("100/hour", limiter=limiter),
        "R": app.get("/hello/{name}"),
    }
    functools.reduce(lambda function, letter: decorators[letter](function), reversed(order), fresh(waited))
    with TestClient(app) as client:
        response = client.get("/hello/you")
        assert '"2/minute";r=1' in response.headers["ratelimit"]
        assert '"100/hour";r=99' in response.headers["ratelimit"]
    assert statuses(app) == [200, 429, 429]


def test_function_with_two_routes_is_limited_on_both(limiter: Limiter) -> None:
    app = FastAPI()

    @app.get("/later/{name}")
    @limit("2/minute", limiter=limiter)
    @app.get("/hello/{name}")
    async def hello(name: str) -> str:
        return name

    assert statuses(app) == [200, 200, 429]
    assert statuses(app, "/later/{}") == [200, 200, 429]


@pytest.mark.parametrize("included", ["before", "after"])
def test_router_may_be_included_before_or_after(included: str, limiter: Limiter) -> None:
    app, outer, router = FastAPI(), APIRouter(prefix="/outer"), APIRouter(prefix="/inner")
    endpoint = router.get("/{name}")(fresh(waited))
    if included == "before":
        outer.include_router(router)
        app.include_router(outer)
        app.include_router(router, prefix="/again")
        assert statuses(app, "/outer/inner/{}") == [200, 200, 200]  # the routes are in use now
    limit("2/minute", limiter=limiter)(endpoint)
    if included == "after":
        outer.include_router(router)
        app.include_router(outer)
        app.include_router(router, prefix="/again")
    assert statuses(app, "/outer/inner/{}") == [200, 200, 429]
    assert statuses(app, "/again/inner/{}") == [200, 200, 429]  # another route, with its own counter


def test_bound_method_can_be_an_endpoint(limiter: Limiter) -> None:
    app = FastAPI()

    class Greeter:
        @limit("2/minute", limiter=limiter)
        async def hello(self, name: str) -> str:
            return name

        async def other(self, name: str) -> str:
            return name

    greeter = Greeter()
    app.get("/hello/{name}")(greeter.hello)
    app.get("/other/{name}")(greeter.other)
    limit("1/minute", limiter=limiter)(greeter.other)
    assert statuses(app) == [200, 200, 429]
    assert statuses(app, "/other/{}") == [200, 429, 429]


@pytest.mark.parametrize("above", [False, True])
def test_websocket_endpoint_is_limited(above: bool, limiter: Limiter) -> None:
    app = FastAPI()
    limited = limit("1/minute", limiter=limiter)

    async def talk(websocket: WebSocket) -> None:
        await websocket.accept()
        await websocket.send_text("hello")
        await websocket.close()

    limited(app.websocket("/talk")(talk)) if above else app.websocket("/talk")(limited(talk))
    with TestClient(app) as client:
        with client.websocket_connect("/talk") as socket:
            assert socket.receive_text() == "hello"
        with pytest.raises(WebSocketDenialResponse) as denied:
            client.websocket_connect("/talk").__enter__()
        assert (denied.value.status_code, denied.value.headers["x-ratelimit-remaining"]) == (429, "0")


@needs_generator_endpoints
@pytest.mark.parametrize("above", [False, True])
def test_generator_endpoints_are_limited(above: bool, limiter: Limiter) -> None:
    app = FastAPI()
    limited = limit("1/minute", limiter=limiter)
    route = app.get("/stream", response_class=StreamingResponse)

    async def waiting() -> AsyncIterator[bytes]:
        yield b"first"
        yield b"second"

    limited(route(waiting)) if above else route(limited(waiting))

    @app.get("/sync", response_class=StreamingResponse)
    @limited
    def calling() -> Iterator[bytes]:
        yield b"third"

    with TestClient(app) as client:
        response = client.get("/stream")
        assert response.content == b"firstsecond"
        assert response.headers["x-ratelimit-remaining"] == "0"
        assert client.get("/stream").status_code == 429
        assert client.get("/sync").content == b"third"
        assert client.get("/sync").status_code == 429


def test_limit_above_a_hidden_route_is_refused(limiter: Limiter) -> None:
    app = FastAPI()
    with pytest.raises(ConfigError, match=r"above a route of waited.*functools\.wraps"):
        limit("2/minute", limiter=limiter)(hiding(app.get("/hello/{name}")(fresh(waited))))


def test_limit_under_a_hiding_decorator_fails_on_the_first_request(limiter: Limiter) -> None:
    app = FastAPI()
    app.get("/hello/{name}")(hiding(limit("2/minute", limiter=limiter)(fresh(waited))))
    with TestClient(app) as client, pytest.raises(ConfigError, match=r"limits nothing.*right below the route"):
        client.get("/hello/you")


@pytest.mark.parametrize("above", [False, True])
def test_plain_starlette_route_is_refused(above: bool, limiter: Limiter) -> None:
    async def hello(request: Request) -> PlainTextResponse:
        return PlainTextResponse("hello")

    limited = limit("2/minute", limiter=limiter)
    if above:
        app = Starlette(routes=[Route("/", hello)])
        with pytest.raises(ConfigError, match="plain Starlette route"):
            limited(hello)
    else:
        app = Starlette(routes=[Route("/", limited(hello))])
        with TestClient(app) as client, pytest.raises(ConfigError, match="limits nothing"):
            client.get("/")


def test_endpoint_that_calls_another_is_not_a_decorator(limiter: Limiter) -> None:
    app = FastAPI()

    @app.get("/other")
    async def other() -> str:
        return "other"

    @app.get("/hello/{name}")
    @limit("2/minute", limiter=limiter)
    async def hello(name: str) -> str:
        return name + await other()

    assert statuses(app) == [200, 200, 429]
    assert statuses(app, "/other") == [200, 200, 200]


def test_limited_function_can_still_be_called(limiter: Limiter) -> None:
    app = FastAPI()

    @app.get("/hello/{name}")
    @limit("1/minute", limiter=limiter)
    async def hello(name: str) -> str:
        return name

    @app.get("/twice/{name}")
    @limit("1/minute", limiter=limiter)
    def twice(name: str) -> str:
        return name * 2

    async def both() -> list[str]:
        return [await hello("me"), await hello(name="you"), twice("a"), twice("b")]

    assert asyncio.run(both()) == ["me", "you", "aa", "bb"]
    assert statuses(app) == [200, 429, 429]


@pytest.mark.parametrize(
    ("given", "message"),
    [
        (type("View", (), {}), "a class"),
        (staticmethod(called), "below @staticmethod"),
        (property(called), "below @property"),
        ("hello", "is none"),
        (None, "is none"),
    ],
)
def test_non_functions_are_refused(given: Any, message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        limit("2/minute")(given)


@pytest.mark.parametrize("above", [False, True])
def test_openapi_and_parameters_are_unchanged(above: bool, limiter: Limiter) -> None:
    def made(decorate: Decorator) -> dict[str, Any]:
        app = FastAPI()
        route = app.get("/hello/{name}", summary="Hello")

        def tenant(x_tenant: str) -> str:
            return x_tenant

        async def hello(name: str, request: Request, times: int = 1, who: str = Depends(tenant)) -> list[str]:
            """Say hello."""
            return [name] * times

        decorate(route(hello)) if above else route(decorate(hello))
        with TestClient(app) as client:
            assert client.get("/hello/you?times=2&x_tenant=a").json() == ["you", "you"]
            assert client.get("/hello/you?times=x&x_tenant=a").status_code == 422
        return app.openapi()

    assert made(limit("9/minute", limiter=limiter)) == made(lambda function: function)


def test_limit_as_dependency_and_decorator_counts_once(limiter: Limiter) -> None:
    app = FastAPI()

    @app.get("/hello/{name}", dependencies=[Depends(limit("2/minute", limiter=limiter))])
    @limit("2/minute", limiter=limiter)
    async def hello(name: str) -> str:
        return name

    assert statuses(app) == [200, 200, 429]


def test_limit_is_checked_before_parameter_dependencies(limiter: Limiter) -> None:
    app = FastAPI()
    looked_up = []

    def user(name: str) -> str:
        looked_up.append(name)
        return name

    @app.get("/hello/{name}")
    @limit("1/minute", limiter=limiter)
    async def hello(name: str, who: str = Depends(user)) -> str:
        return who

    @app.get("/above/{name}")
    async def above(name: str, who: str = Depends(user)) -> str:
        return who

    limit("1/minute", limiter=limiter)(above)
    assert statuses(app) == [200, 429, 429]
    assert statuses(app, "/above/{}") == [200, 429, 429]
    assert looked_up == ["0", "0"]
