"""One behaviour in all frameworks: a slot of an in-flight limit is held until the response has ended.

Time stands still, so no slot is ever freed by its time to live.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from threading import Thread

import pytest

from crestgate import Limiter
from crestgate.testing import FakeClock
from integration.frameworks.suite import HERE, Running
from servers.machine import until

Serve = Callable[..., Running]

ONE = "1 concurrent"


def until_free(app: Running) -> None:
    """The server may close a response after the client has read all of it."""
    until("the slot is free", lambda: app.left(ONE) == 1)


@pytest.mark.parametrize("path", ["/stream", "/sse"])
def test_slot_is_held_until_the_last_byte(serve: Serve, path: str) -> None:
    app = serve(middleware={"limits": [ONE, "9/hour"]})
    connection = app.connect()
    connection.request("GET", path)
    response = connection.getresponse()
    assert b"first" in response.read1(100)
    denied = app.request("/plain")
    assert (denied.status, denied.headers["retry-after"]) == (429, "60")
    assert app.left("9/hour") == 8, "all or nothing"
    app.setup.released.set()
    assert b"second" in response.read()
    connection.close()
    until_free(app)
    assert app.statuses(1) == [200]
    until_free(app)
    assert app.left("9/hour") == 7, "what rate limits have charged stays"


def test_slot_is_held_before_the_response_starts(serve: Serve) -> None:
    app = serve(middleware={"limits": ONE})
    statuses: list[int] = []
    thread = Thread(target=lambda: statuses.extend(app.statuses(1, "/slow")))
    thread.start()
    assert app.setup.entered.wait(20)
    assert app.statuses(1) == [429]
    app.setup.released.set()
    thread.join(20)
    assert statuses == [200]
    until_free(app)


@pytest.mark.parametrize(("path", "status"), [("/plain", 200), ("/boom", 500), ("/nothing/here", 404)])
def test_slot_is_free_after_each_response(serve: Serve, path: str, status: int) -> None:
    app = serve(middleware={"limits": ONE})
    for _ in range(3):
        assert app.statuses(1, path) == [status]
        until_free(app)


def test_slot_is_free_after_a_head_request(serve: Serve) -> None:
    app = serve(middleware={"limits": ONE})
    for _ in range(2):
        assert app.statuses(1, method="HEAD") == [200]
        until_free(app)


def test_slot_is_free_when_the_client_disconnects(serve: Serve) -> None:
    app = serve(middleware={"limits": ONE})
    with app.raw(b"GET /stream HTTP/1.1\r\nHost: x\r\n\r\n") as sock:
        received = b""
        while b"first" not in received:
            received += sock.recv(1000)
        assert app.left(ONE) == 0
    app.setup.released.set()  # a thread notices with its next chunk
    until_free(app)


def test_response_that_does_not_count_releases_its_slot_too(serve: Serve) -> None:
    app = serve(middleware={"limits": [ONE, "5/hour"], "when": lambda response: response.status == 404})
    assert app.statuses(1) == [200]
    until_free(app)
    assert app.left("5/hour") == 5
    assert app.statuses(1, "/nothing/here") == [404]
    until_free(app)
    assert app.left("5/hour") == 4


def test_two_layers_with_the_same_limit_take_one_slot(serve: Serve) -> None:
    app = serve(middleware={"limits": ONE}, mounted={"limits": ONE})
    for _ in range(2):
        assert app.statuses(1, "/mounted/hello") == [200]
        until_free(app)


def test_slot_is_free_when_an_inner_layer_denies(serve: Serve) -> None:
    app = serve(middleware={"limits": ONE}, mounted={"limits": "0/minute"})
    for _ in range(2):
        assert app.statuses(1, "/mounted/hello") == [429]
        until_free(app)


def test_dry_run_takes_and_releases(serve: Serve) -> None:
    app = serve(middleware={"limits": ONE, "dry_run": True})
    with app.limiter.hold(f"ip:{HERE}", ONE):
        assert app.statuses(2) == [200, 200]
        assert app.left(ONE) == 0
    assert app.left(ONE) == 1


def test_rules_of_configuration(serve: Serve, tmp_path: Path) -> None:
    file = tmp_path / "crestgate.yaml"
    file.write_text(
        "rules:\n"
        "  - {name: streams, dimension: ip, limit: 1, window_seconds: 60, algorithm: concurrency}\n"
        "  - {name: rate, dimension: ip, endpoint_pattern: /stream, limit: 5, window_seconds: 60}\n"
    )
    limiter = Limiter.from_config(file, clock=FakeClock(1_700_000_000), environ={})
    app = serve(limiter=limiter, middleware={})
    connection = app.connect()
    connection.request("GET", "/stream")
    response = connection.getresponse()
    assert response.read1(100) == b"first\n"
    assert app.statuses(2) == [429, 429]
    app.setup.released.set()
    response.read()
    connection.close()
    until("the slot of the stream is free", lambda: app.statuses(1) == [200])
