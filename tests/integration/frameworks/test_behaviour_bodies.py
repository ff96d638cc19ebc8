"""One behaviour in all frameworks: methods, bodies that come and go, errors, and clients that go away."""

from __future__ import annotations

import gc
import socket
from collections.abc import Callable

import pytest

from crestgate.integrations.request_state import RequestState
from integration.frameworks.suite import APPS, Running, read_response
from servers.machine import until

Serve = Callable[..., Running]

THREE = "3/minute using fixed_window"
PREFLIGHT = {"Origin": "https://example.org", "Access-Control-Request-Method": "GET"}


def received(sock: socket.socket) -> bytes:
    """Everything until the other side closes."""
    found = b""
    while piece := sock.recv(65536):
        found += piece
    return found


# -- methods ----------------------------------------------------------------------------------------------------------


def test_head_request_is_counted_without_body(serve: Serve) -> None:
    app = serve(middleware={"limits": "1/minute"})
    for status in (b"200", b"429"):
        with app.raw(b"HEAD /plain HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n") as sock:
            head, _, body = received(sock).partition(b"\r\n\r\n")
        assert head.split()[1] == status
        assert b"ratelimit: " in head.lower()
        assert body == b""
    assert app.setup.handled == ["/plain"]


def test_options_request_is_counted(serve: Serve) -> None:
    app = serve(middleware={"limits": THREE})
    response = app.request("/plain", "OPTIONS")
    assert (response.status, response.remaining) == (200, 2)
    assert "GET" in response.headers["allow"]
    assert app.statuses(3, method="OPTIONS", headers={"Origin": "https://example.org"}) == [200, 200, 429]


def test_preflight_is_not_counted(serve: Serve) -> None:
    app = serve(middleware={"limits": "1/minute"})
    assert 429 not in app.statuses(3, method="OPTIONS", headers=PREFLIGHT)
    assert app.statuses(2) == [200, 429]
    assert 429 not in app.statuses(1, method="OPTIONS", headers=PREFLIGHT)


def test_not_found_is_counted_with_headers(serve: Serve) -> None:
    app = serve(middleware={"limits": THREE})
    response = app.request("/nothing/here")
    assert (response.status, response.remaining) == (404, 2)
    assert app.statuses(3, "/nothing/else") == [404, 404, 429]


def test_method_not_allowed_is_counted(serve: Serve) -> None:
    app = serve(middleware={"limits": THREE})
    assert app.statuses(4, "/login") == [405, 405, 405, 429]


# -- bodies that go ---------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("path", "kind", "first", "second"),
    [
        ("/stream", "text/plain", b"first\n", b"second\n"),
        ("/sse", "text/event-stream", b"data: first\n\n", b"data: second\n\n"),
    ],
)
def test_streaming_response_stays_streaming(serve: Serve, path: str, kind: str, first: bytes, second: bytes) -> None:
    app = serve(middleware={"limits": THREE, "when": lambda response: response.status == 200})
    connection = app.connect()
    connection.request("GET", path)
    response = connection.getresponse()
    assert response.read1(100) == first, "before the second is there"
    assert not app.setup.released.is_set()
    app.setup.released.set()
    assert response.read() == second
    connection.close()
    assert response.status == 200
    assert response.getheader("content-type", "").partition(";")[0] == kind
    assert response.getheader("content-length") is None
    assert response.getheader("x-ratelimit-remaining") == "2"


def test_keep_alive_requests(serve: Serve) -> None:
    app = serve(middleware={"limits": "30/minute using fixed_window"})
    connection = app.connect()
    statuses = []
    for _ in range(40):
        connection.request("GET", "/plain")
        response = read_response(connection.getresponse())
        statuses.append(response.status)
        assert (response.body == b"plain") == (response.status == 200)
    connection.close()
    assert statuses == [200] * 30 + [429] * 10


# -- bodies that come -------------------------------------------------------------------------------------------------


def test_large_upload_is_complete(serve: Serve) -> None:
    app = serve(middleware={"limits": THREE})
    size = 20 * 1024 * 1024
    response = app.request("/upload", "POST", {"Content-Type": "application/octet-stream"}, bytes(size))
    assert (response.status, response.body, response.remaining) == (200, b"%d" % size, 2)


def test_upload_is_denied(serve: Serve) -> None:
    app = serve(middleware={"limits": "1/minute"})
    body = bytes(256 * 1024)
    assert app.request("/upload", "POST", body=body).body == b"262144"
    denied = app.request("/upload", "POST", body=body)
    assert (denied.status, denied.headers["retry-after"]) == (429, "60")
    app.clock.advance(60)
    assert app.request("/upload", "POST", body=body).body == b"262144"
    assert app.setup.handled == ["/upload"] * 2


@pytest.mark.parametrize(
    "framework", [name for name in APPS if name != "django_asgi"]
)  # it reads bodies before all else
def test_upload_is_denied_before_body_is_sent(serve: Serve) -> None:
    app = serve(middleware={"limits": "1/minute"})
    app.request("/plain")
    head = b"POST /upload HTTP/1.1\r\nHost: x\r\nContent-Length: 20971520\r\nContent-Type: text/plain\r\n\r\n"
    with app.raw(head + b"x" * 1000) as sock:
        response = sock.recv(65536)
    assert response.split()[1] == b"429"
    assert b"retry-after: 60" in response.lower()
    assert app.setup.handled == ["/plain"]


# -- errors -----------------------------------------------------------------------------------------------------------


def test_application_exception_stays_charged(serve: Serve) -> None:
    app = serve(middleware={"limits": THREE})
    assert app.statuses(1, "/boom") == [500]
    assert app.left(THREE) == 2
    assert app.statuses(3) == [200, 200, 429]
    assert app.statuses(1, "/boom") == [429]


@pytest.mark.parametrize(("counts", "left"), [(500, 2), (200, 3)])
def test_exception_is_status_500_for_when(serve: Serve, counts: int, left: int) -> None:
    app = serve(middleware={"limits": THREE, "when": lambda response: response.status == counts})
    assert app.statuses(1, "/boom") == [500]
    assert app.left(THREE) == left


def test_key_exception_passes_through(serve: Serve) -> None:
    def key(request: object) -> str:
        raise LookupError("no such tenant")

    app = serve(middleware={"limits": THREE, "key": key})
    assert app.statuses(2) == [500, 500]
    assert app.setup.handled == []


# -- clients that go away ---------------------------------------------------------------------------------------------


def nothing_is_left() -> bool:
    gc.collect()
    return not any(type(found) is RequestState for found in gc.get_objects())


def test_client_disconnects(serve: Serve) -> None:
    limits = "7/minute using fixed_window"
    app = serve(middleware={"limits": limits})
    for path in ("/slow", "/stream") * 2:
        with app.raw(b"GET %b HTTP/1.1\r\nHost: x\r\n\r\n" % path.encode()) as sock:
            assert app.setup.entered.wait(20) if path == "/slow" else sock.recv(10)
        app.setup.entered.clear()
    assert app.request("/plain").remaining == 2, "the server continues, and the request is counted"
    app.setup.released.set()
    assert app.statuses(2) == [200, 200]
    assert app.left(limits) == 0
    until("nothing of the requests is left", nothing_is_left)
