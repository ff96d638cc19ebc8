"""The address table through the middlewares: the counted key is the one in the table."""

from __future__ import annotations

import asyncio
from collections.abc import Iterable
from ipaddress import ip_network
from typing import Any

import pytest

from crestgate import Limiter
from crestgate.integrations.asgi import RateLimitMiddleware as AsgiMiddleware
from crestgate.integrations.wsgi import RateLimitMiddleware as WsgiMiddleware
from unit.http.address_cases import CASES, AddressCase
from unit.integrations.plain import limiter_on

LIMITS = "5/hour using fixed_window"
SPOOFED = ("127.0.0.1", "1.1.1.1", "10.9.9.9", "unknown")


def key_of(case: AddressCase) -> str:
    if case.address is None:
        return "ip:unknown"
    return f"ip:{ip_network(f'{case.address}/64', strict=False)}" if ":" in case.address else f"ip:{case.address}"


def counted(limiter: Limiter, key: str) -> int:
    return 5 - limiter.peek(key, LIMITS).remaining


def check(limiter: Limiter, case: AddressCase) -> None:
    assert counted(limiter, key_of(case)) == 1
    for address in SPOOFED:
        if f"ip:{address}" != key_of(case):
            assert counted(limiter, f"ip:{address}") == 0


@pytest.mark.parametrize("name", CASES)
def test_asgi_key(name: str) -> None:
    case, limiter = CASES[name], limiter_on()
    lines = [(header.encode(), line.encode("latin-1")) for header, line in case.headers]
    scope = {
        "type": "http",
        "method": "GET",
        "path": "/",
        "headers": [(b"host", b"example.org"), *lines, (b"x-real-ip", b"127.0.0.1")],
        "client": None if case.peer is None else (case.peer, 4711),
    }
    sent: list[Any] = []

    async def app(scope: Any, receive: Any, send: Any) -> None:
        await send({"type": "http.response.start", "status": 200, "headers": []})

    async def send(message: Any) -> None:
        sent.append(message)

    middleware = AsgiMiddleware(app, limiter, LIMITS, trusted_proxies=case.trusted)
    asyncio.run(middleware(scope, None, send))
    assert sent[0]["status"] == 200
    check(limiter, case)


@pytest.mark.parametrize("name", CASES)
def test_wsgi_key(name: str) -> None:
    case, limiter = CASES[name], limiter_on()
    environ: dict[str, Any] = {
        "REQUEST_METHOD": "GET",
        "PATH_INFO": "/",
        "SCRIPT_NAME": "",
        "HTTP_X_REAL_IP": "127.0.0.1",
    }
    if case.peer is not None:
        environ["REMOTE_ADDR"] = case.peer
    for header, line in case.headers:  # servers join the lines of a header
        variable = "HTTP_" + header.upper().replace("-", "_")
        environ[variable] = f"{environ[variable]},{line}" if variable in environ else line
    started: list[str] = []

    def app(environ: Any, start: Any) -> Iterable[bytes]:
        start("200 OK", [])
        return []

    middleware: Any = WsgiMiddleware(app, limiter, LIMITS, trusted_proxies=case.trusted)
    assert list(middleware(environ, lambda status, headers: started.append(status))) == []
    assert started == ["200 OK"]
    check(limiter, case)
