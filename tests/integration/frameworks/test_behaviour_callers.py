"""One behaviour in all frameworks: whatever a caller sends, it is counted, it is no error, and it harms no other."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from crestgate import Limiter
from crestgate.testing import FakeClock
from integration.frameworks.suite import APPS, Running

Serve = Callable[..., Running]

THREE = "3/minute using fixed_window"
WAITING_FOR_NOBODY = ("wsgi", "flask")
WAITING = tuple(name for name in APPS if name not in WAITING_FOR_NOBODY)
"""Those that wait for coroutines: on event loops, and Django also in threads, as it does everywhere."""


def status_of(app: Running, head: bytes) -> int:
    """What is answered to a request that no library would send."""
    with app.raw(b"GET /plain HTTP/1.1\r\nHost: x\r\nConnection: close\r\n" + head + b"\r\n") as sock:
        return int(sock.recv(65536).split()[1])


@pytest.mark.parametrize("value", [b"\xff\xfe\x80", b"a|route:/x%7C", b"x" * 6000, "größer \N{SNOWMAN}".encode()])
def test_any_header_value_is_a_key(serve: Serve, value: bytes) -> None:
    app = serve(middleware={"limits": THREE, "key": "header:X-Tenant"})
    assert [status_of(app, b"X-Tenant: " + value + b"\r\n") for _ in range(4)] == [200, 200, 200, 429]
    assert status_of(app, b"X-Tenant: " + value + b"y\r\n") == 200, "another caller is another"
    assert app.left(THREE) == 3, "and the address was not counted"


def test_long_api_key_under_rules(serve: Serve, tmp_path: Path) -> None:
    file = tmp_path / "crestgate.yaml"
    file.write_text("rules:\n  - {name: k, dimension: apikey, limit: 2, window_seconds: 60, algorithm: fixed_window}\n")
    with Limiter.from_config(file, environ={}, clock=FakeClock(1_700_000_000)) as limiter:
        app = serve(limiter, middleware={})
        for value in (b"k", b"k" * 5000, b"\xff" * 600):
            assert [status_of(app, b"X-API-Key: " + value + b"\r\n") for _ in range(3)] == [200, 200, 429]


def test_method_spelling_does_not_bypass_limit(serve: Serve) -> None:
    app = serve(middleware={"limits": "1/minute", "methods": ["POST"]})
    assert app.statuses(1, "/login", method="POST") == [200]
    with app.raw(b"post /login HTTP/1.1\r\nHost: x\r\nContent-Length: 0\r\nConnection: close\r\n\r\n") as sock:
        assert sock.recv(65536).split()[1] in (b"429", b"400"), "400: the server itself does not take it"
    assert app.setup.handled == ["/login"]


def test_repeated_header_is_one_caller(serve: Serve) -> None:
    app = serve(middleware={"limits": THREE, "key": "header:X-Tenant"})
    twice = b"X-Tenant: a\r\nX-Tenant: b\r\n"
    assert [status_of(app, twice) for _ in range(4)] == [200, 200, 200, 429]
    assert status_of(app, b"X-Tenant: a\r\n") == 200
    assert status_of(app, b"X-Tenant: b\r\n") == 200


def test_x_forwarded_for_lines_are_joined(serve: Serve) -> None:
    app = serve(middleware={"limits": THREE, "trusted_proxies": ["127.0.0.0/8"]})
    for spoofed in (b"1.1.1.1", b"10.9.9.9", b'"', b""):
        lines = b"X-Forwarded-For: " + spoofed + b"\r\nX-Forwarded-For: 203.0.113.9\r\n"
        assert status_of(app, lines) in (200, 429)
    assert app.left(THREE, "ip:203.0.113.9") == 0
    assert app.left(THREE) == 3


@pytest.mark.parametrize("framework", WAITING)
def test_coroutine_callables(serve: Serve) -> None:
    async def key(request: Any) -> str:
        await asyncio.sleep(0)
        return f"tenant:{request.headers.get('x-tenant')}"

    async def exempt(request: Any) -> bool:
        await asyncio.sleep(0)
        return bool(request.path == "/limited")

    async def cost(request: Any) -> int:
        await asyncio.sleep(0)
        return 2

    app = serve(middleware={"limits": "4/minute", "key": key, "exempt": exempt, "cost": cost})
    assert app.statuses(3, headers={"X-Tenant": "blue"}) == [200, 200, 429]
    assert app.statuses(3, "/limited", headers={"X-Tenant": "blue"}) == [200] * 3
    assert app.left("4/minute", "tenant:blue") == 0


@pytest.mark.parametrize("framework", WAITING_FOR_NOBODY)
def test_coroutine_callables_are_rejected_in_sync_frameworks(serve: Serve) -> None:
    async def key(request: Any) -> str:
        return "k"

    with pytest.raises(ValueError, match=r"is a coroutine function, which .* cannot await"):
        serve(middleware={"limits": "4/minute", "key": key}).request("/plain")
