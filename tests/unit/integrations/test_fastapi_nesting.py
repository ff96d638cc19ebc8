"""FastAPI routes under middleware and mounts: inherited options, and their own."""

from __future__ import annotations

from typing import Any

import pytest
from fastapi import Depends, FastAPI
from fastapi.testclient import TestClient
from starlette.routing import Mount

from crestgate import Limiter
from crestgate.integrations import Denial, HeaderStyle
from crestgate.integrations.asgi import RateLimitMiddleware
from crestgate.integrations.fastapi import limit
from crestgate.testing import FakeClock


@pytest.fixture
def limiter() -> Limiter:
    return Limiter(clock=FakeClock(1000))


def statuses_of(app: Any, *paths: str) -> list[int]:
    with TestClient(app) as client:
        return [client.get(path).status_code for path in paths]


@pytest.mark.parametrize(
    ("own", "status"),
    [({}, 420), ({"on_denied": lambda request, decision: Denial(418)}, 418), ({"on_denied": None}, 429)],
)
def test_route_inherits_on_denied_of_the_middleware(own: Any, status: int, limiter: Limiter) -> None:
    app = FastAPI()
    app.add_middleware(
        RateLimitMiddleware, limiter=limiter, on_denied=lambda request, decision: Denial(420, request.path.encode())
    )

    @app.get("/one", dependencies=[Depends(limit("1/minute", **own))])
    async def one() -> str:
        return "one"

    @app.get("/two")
    @limit("1/minute", **own)
    async def two() -> str:
        return "two"

    assert statuses_of(app, "/one", "/one", "/two", "/two") == [200, status, 200, status]


def test_each_route_has_its_own_header_style(limiter: Limiter) -> None:
    app = FastAPI()
    epoch = HeaderStyle(reset="epoch")

    for path, headers in (("/none", False), ("/usual", True), ("/epoch", epoch)):
        app.get(path, dependencies=[Depends(limit("1/minute", limiter=limiter, headers=headers))])(lambda: "hello")

    with TestClient(app) as client:
        denied = {path: [client.get(path) for _ in range(2)][1].headers for path in ("/none", "/usual", "/epoch")}
    assert "retry-after" not in denied["/none"]
    assert [denied[path].get("x-ratelimit-reset") for path in denied] == [None, "60", "1060"]


@pytest.mark.parametrize("kind", ["int", "uuid", "float", "path"])
def test_spellings_of_the_mount_path_share_a_counter(kind: str, limiter: Limiter) -> None:
    spelled = {
        "int": ["7", "07", "8"],
        "float": ["7", "7.0", "07.00"],
        "uuid": ["C0FFEE00-0000-4000-8000-00000000CAFE", "c0ffee00-0000-4000-8000-00000000cafe"],
        "path": ["a", "a/b", "a/b/c"],
    }
    inner = FastAPI()
    inner.get("/x", dependencies=[Depends(limit("1/minute", limiter=limiter))])(lambda: "hello")
    app = FastAPI(routes=[Mount(f"/shop/{{place:{kind}}}/in", inner)])
    statuses = statuses_of(app, *[f"/shop/{segment}/in/x" for segment in spelled[kind]])
    assert statuses == [200] + [429] * (len(statuses) - 1)


def test_route_uses_the_identity_of_the_middleware(limiter: Limiter) -> None:
    async def logged_in(request: Any) -> Any:
        return request.headers.get("x-user")

    app = FastAPI()
    app.add_middleware(RateLimitMiddleware, limiter=limiter, user=logged_in, trusted_proxies=["192.0.2.0/24"])

    @app.get("/theirs")
    @limit("1/minute", key="user")
    async def theirs() -> str:
        return "hello"

    @app.get("/own")
    @limit("1/minute", key="user", user=lambda request: request.headers.get("x-name"))
    async def own() -> str:
        return "hello"

    callers = [{"x-user": "7"}, {"x-user": "8", "x-name": "8"}, {"x-user": "7", "x-name": "7"}]
    with TestClient(app, client=("192.0.2.1", 4711)) as client:
        assert [client.get("/theirs", headers=caller).status_code for caller in callers] == [200, 200, 429]
        assert [client.get("/own", headers=caller).status_code for caller in callers] == [200, 200, 200]
        unknowns = [{"x-forwarded-for": f"198.51.100.{n}"} for n in (1, 2, 2)]
        assert [client.get("/own", headers=unknown).status_code for unknown in unknowns] == [200, 200, 429]
