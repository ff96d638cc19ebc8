"""Limits of FastAPI routes: keys, headers, denials, and requests that are not counted."""

from __future__ import annotations

import gc
from collections.abc import Iterator
from typing import Any

import pytest
from fastapi import APIRouter, BackgroundTasks, Depends, FastAPI, HTTPException, Request, Response
from fastapi.responses import JSONResponse, PlainTextResponse
from fastapi.testclient import TestClient
from starlette.middleware.base import BaseHTTPMiddleware
from starlette.middleware.gzip import GZipMiddleware

from crestgate import ConfigError, Limiter, RateLimitExceeded
from crestgate.integrations import Denial
from crestgate.integrations.asgi import RateLimitMiddleware
from crestgate.integrations.fastapi import limit
from crestgate.testing import FakeClock
from unit.integrations.fastapi_versions import needs_generator_endpoints


@pytest.fixture
def limiter() -> Limiter:
    return Limiter(clock=FakeClock(1000), plans={"gold": "2/minute"})


def statuses(app: Any, *paths: str, **options: Any) -> list[int]:
    with TestClient(app, raise_server_exceptions=False) as client:
        return [client.get(path, **options).status_code for path in paths]


def test_denial_is_a_problem_with_headers_without_setup(limiter: Limiter) -> None:
    app = FastAPI()

    @app.get("/", dependencies=[Depends(limit("1/minute", limiter=limiter))])
    async def hello() -> str:
        return "hello"

    with TestClient(app) as client:
        allowed, denied = client.get("/"), client.get("/")
    assert (allowed.json(), allowed.headers["ratelimit"]) == ("hello", '"1/minute";r=0;t=60')
    assert (denied.status_code, denied.headers["content-type"]) == (429, "application/problem+json")
    assert (denied.headers["retry-after"], denied.json()["reason"]) == ("60", "limited")
    assert denied.headers["ratelimit"] == '"1/minute";r=0;t=60'


def test_handler_of_the_application_wins(limiter: Limiter) -> None:
    app = FastAPI()

    @app.exception_handler(RateLimitExceeded)
    async def handler(request: Request, error: RateLimitExceeded) -> Response:
        return PlainTextResponse(f"not so fast: {error.decision.name}", 420)

    @app.get("/")
    @limit("1/minute", limiter=limiter)
    async def hello() -> str:
        return "hello"

    with TestClient(app) as client:
        client.get("/")
        denied = client.get("/")
    assert (denied.status_code, denied.text) == (420, "not so fast: 1/minute")


async def later(request: Any, decision: Any) -> Response:
    return JSONResponse({"left": decision.remaining, "path": request.url.path}, 420)


@pytest.mark.parametrize(
    ("on_denied", "status", "body"),
    [
        (lambda request, decision: None, 429, b'"status":429'),
        (lambda request, decision: Denial(418, b"teapot", "text/plain", (("X-Pot", "yes"),)), 418, b"teapot"),
        (lambda request, decision: PlainTextResponse(request.method, 420), 420, b"GET"),
        (later, 420, b'{"left":0,"path":"/"}'),
    ],
)
@pytest.mark.parametrize("around", [False, True])
def test_on_denied_shapes_the_denial(on_denied: Any, status: int, body: bytes, around: bool, limiter: Limiter) -> None:
    app = FastAPI()
    if around:
        app.add_middleware(RateLimitMiddleware, limiter=limiter)

    @app.get("/")
    @limit("1/minute", limiter=limiter, on_denied=on_denied)
    async def hello() -> str:
        return "hello"

    with TestClient(app) as client:
        client.get("/")
        denied = client.get("/")
    assert denied.status_code == status
    assert body in denied.content
    assert denied.headers.get_list("retry-after") == ["60"]
    assert denied.headers.get_list("x-ratelimit-remaining") == ["0"]


def test_routes_use_the_limiter_and_plans_of_the_middleware(limiter: Limiter) -> None:
    app = FastAPI()
    app.add_middleware(RateLimitMiddleware, limiter=limiter, trusted_proxies=1)

    @app.get("/")
    @limit("gold")
    async def hello() -> str:
        return "hello"

    assert statuses(app, "/", "/", "/", headers={"X-Forwarded-For": "192.0.2.1"}) == [200, 200, 429]
    assert statuses(app, "/", headers={"X-Forwarded-For": "192.0.2.2"}) == [200]  # as in the middleware
    assert limiter.peek("ip:192.0.2.1|route:GET /", "gold").allowed is False


def test_headers_list_both_layers_once(limiter: Limiter) -> None:
    app = FastAPI()
    app.add_middleware(RateLimitMiddleware, limiter=limiter, limits="100/hour")
    app.add_middleware(RateLimitMiddleware, limiter=limiter, limits="100/hour")

    @app.get("/own")
    @limit("2/minute")
    async def own() -> Response:
        return PlainTextResponse("own", headers={"X-RateLimit-Limit": "mine"})

    with TestClient(app) as client:
        response = client.get("/own")
    assert response.headers.get_list("ratelimit") == ['"100/hour";r=99;t=36, "2/minute";r=1;t=30']
    assert response.headers.get_list("x-ratelimit-limit") == ["2"]


def test_routes_have_separate_counters_unless_a_scope_joins_them(limiter: Limiter) -> None:
    app = FastAPI()
    sub = FastAPI()
    one = limit("1/minute", limiter=limiter)
    shared = limit("1/minute", limiter=limiter, scope="reports")
    for application in (app, sub):

        @application.get("/item/{number}")
        @one
        async def item(number: int) -> int:
            return number

        @application.delete("/item/{number}")
        @one
        async def remove(number: int) -> int:
            return number

        @application.get("/report", dependencies=[Depends(shared)])
        async def report() -> str:
            return "report"

    app.mount("/shop/{shop}", sub)
    assert statuses(app, "/item/1", "/item/2") == [200, 429]
    assert statuses(app, "/shop/a/item/1", "/shop/b/item/2", "/shop/item/item/3") == [200, 429, 429]
    assert statuses(app, "/report", "/shop/a/report") == [200, 429]
    with TestClient(app) as client:
        assert client.delete("/item/1").status_code == 200
    assert limiter.peek("ip:testclient|route:GET /shop/{shop}/item/{number}", "1/minute").allowed is False


def test_dependencies_of_routers_and_applications_limit(limiter: Limiter) -> None:
    app = FastAPI(dependencies=[Depends(limit("3/minute", limiter=limiter, scope="app"))])
    router = APIRouter(prefix="/in", dependencies=[Depends(limit("1/minute", limiter=limiter))])

    @router.get("/a")
    async def a() -> str:
        return "a"

    @router.get("/b")
    async def b() -> str:
        return "b"

    app.include_router(router)
    assert statuses(app, "/in/a", "/in/a", "/in/b", "/in/b") == [200, 429, 200, 429]


def test_limit_can_be_overridden_in_tests(limiter: Limiter) -> None:
    app = FastAPI()
    one = limit("1/minute", limiter=limiter)

    @app.get("/a")
    @one
    async def a() -> str:
        return "a"

    @app.get("/b", dependencies=[Depends(one)])
    def b() -> str:
        return "b"

    app.dependency_overrides[one] = lambda: None
    assert statuses(app, "/a", "/a", "/b", "/b") == [200] * 4
    app.dependency_overrides.clear()
    assert statuses(app, "/a", "/a", "/b", "/b") == [200, 429, 200, 429]


def login(app: FastAPI, one: Any, style: str, asynchronous: bool) -> None:
    """A route that counts wrong passwords, reported by a response, an exception, or the status FastAPI sets."""

    def answer(password: str, response: Response) -> Any:
        if password == "right":
            return "yes"
        if style == "raised":
            raise HTTPException(401, "no")
        if style == "status":
            response.status_code = 401
            return "no"
        return JSONResponse("no", 401)

    async def waiting(password: str, response: Response) -> Any:
        return answer(password, response)

    def calling(password: str, response: Response) -> Any:
        return answer(password, response)

    app.get("/login")(one(waiting if asynchronous else calling))


@pytest.mark.parametrize("around", [False, True])
@pytest.mark.parametrize("asynchronous", [False, True])
@pytest.mark.parametrize("style", ["returned", "raised", "status"])
def test_only_matching_responses_are_counted(style: str, asynchronous: bool, around: bool, limiter: Limiter) -> None:
    app = FastAPI()
    if around:
        app.add_middleware(RateLimitMiddleware, limiter=limiter)
    login(app, limit("2/minute", limiter=limiter, when=lambda response: response.status == 401), style, asynchronous)
    right, wrong = "/login?password=right", "/login?password=wrong"
    with TestClient(app) as client:
        assert [client.get(right).headers["x-ratelimit-remaining"] for _ in range(4)] == ["2"] * 4
    assert statuses(app, "/login") == [422]  # no password was sent
    assert statuses(app, wrong, right, wrong, wrong, right) == [401, 200, 401, 429, 429]


def test_exception_of_another_dependency_is_a_response(limiter: Limiter) -> None:
    app = FastAPI()

    def user(name: str) -> str:
        raise HTTPException(401 if name == "who" else 403)

    @app.get("/")
    @limit("1/minute", limiter=limiter, when=lambda response: response.status == 401)
    async def hello(name: str = Depends(user)) -> str:
        return name

    assert statuses(app, "/?name=me", "/?name=me", "/?name=who", "/?name=who") == [403, 403, 401, 429]


def test_when_needs_access_to_the_response(limiter: Limiter) -> None:
    app = FastAPI()
    one = limit("1/minute", limiter=limiter, when=lambda response: response.status == 401)

    @app.get("/", dependencies=[Depends(one)])
    async def hello() -> str:
        return "hello"

    with TestClient(app) as client, pytest.raises(ConfigError, match="RateLimitMiddleware"):
        client.get("/")
    app.middleware_stack = None
    app.add_middleware(RateLimitMiddleware, limiter=limiter)
    assert statuses(app, "/", "/") == [200] * 2


@needs_generator_endpoints
def test_when_needs_access_to_the_response_of_a_generator(limiter: Limiter) -> None:
    app = FastAPI()

    @app.get("/stream")
    @limit("1/minute", limiter=limiter, when=lambda response: response.status == 401)
    def stream() -> Iterator[bytes]:
        yield b""

    with TestClient(app) as client, pytest.raises(ConfigError, match="RateLimitMiddleware"):
        client.get("/stream")
    app.middleware_stack = None
    app.add_middleware(RateLimitMiddleware, limiter=limiter)
    assert statuses(app, "/stream", "/stream") == [200] * 2


def test_rate_limit_exceeded_of_the_application_gets_the_same_response(limiter: Limiter) -> None:
    app = FastAPI()

    @limiter.limit("1/minute", key="all")
    def guarded() -> str:
        return "yes"

    @app.get("/", dependencies=[Depends(limit("100/minute", limiter=limiter))])
    def hello() -> str:
        return guarded()

    @app.get("/unlimited")
    def unlimited() -> str:
        return guarded()

    with TestClient(app) as client:
        client.get("/")
        denied = client.get("/")
    assert (denied.status_code, denied.headers["retry-after"]) == (429, "60")
    assert denied.headers["ratelimit"] == '"100/minute";r=98;t=2, "1/minute";r=0;t=60'
    app.middleware_stack = None
    app.add_middleware(RateLimitMiddleware, limiter=limiter, on_denied=lambda request, decision: Denial(420, b"no"))
    assert statuses(app, "/unlimited", "/") == [420, 420]


def test_dry_run_denies_nothing_and_sets_no_headers(limiter: Limiter) -> None:
    app = FastAPI()

    @app.get("/")
    @limit("1/minute", limiter=limiter, dry_run=True)
    async def hello() -> str:
        return "hello"

    with TestClient(app) as client:
        assert [client.get("/").status_code for _ in range(3)] == [200] * 3
        assert "ratelimit" not in client.get("/").headers


def test_other_middleware_and_background_tasks_still_work(limiter: Limiter) -> None:
    app = FastAPI()
    done: list[str] = []

    async def between(request: Request, call_next: Any) -> Any:
        response = await call_next(request)
        response.headers["X-Between"] = "yes"
        return response

    app.add_middleware(BaseHTTPMiddleware, dispatch=between)
    app.add_middleware(GZipMiddleware, minimum_size=10)
    app.add_middleware(RateLimitMiddleware, limiter=limiter, limits="100/hour")
    app.add_middleware(BaseHTTPMiddleware, dispatch=between)

    @app.get("/")
    @limit("2/minute")
    async def hello(tasks: BackgroundTasks) -> str:
        tasks.add_task(done.append, "done")
        return "hello" * 100

    with TestClient(app) as client:
        response = client.get("/", headers={"Accept-Encoding": "gzip"})
        assert response.json() == "hello" * 100
        assert response.headers["content-encoding"] == "gzip"
        assert response.headers.get_list("ratelimit") == ['"100/hour";r=99;t=36, "2/minute";r=1;t=30']
        assert response.headers["x-between"] == "yes"
        assert done == ["done"]
        assert [client.get("/").status_code for _ in range(2)] == [200, 429]


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"limits": "5/minut"}, "did you mean"),
        ({"limits": []}, "at least one limit"),
        ({"limits": "5/minute", "key": "nobody"}, "no key"),
        ({"limits": "5/minute", "limiter": "rediss:/x"}, "limiter|URL"),
    ],
)
def test_invalid_options_are_refused_when_the_limit_is_created(arguments: dict[str, Any], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        limit(**arguments)


def test_usual_decorator_order_needs_no_object_search(monkeypatch: pytest.MonkeyPatch, limiter: Limiter) -> None:
    app = FastAPI()
    searched: list[str] = []

    def search() -> list[Any]:
        searched.append("all")
        return []

    monkeypatch.setattr(gc, "get_objects", search)

    @app.get("/")
    @limit("2/minute", limiter=limiter)
    @limit("100/hour", limiter=limiter)
    async def hello() -> str:
        return "hello"

    assert not searched

    @limit("2/minute", limiter=limiter)
    @app.get("/above")
    async def above() -> str:
        return "above"

    assert searched
