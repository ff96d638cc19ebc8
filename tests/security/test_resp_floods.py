"""What a RESP client can cost others: memory by what it does not read or finish, and time by what it sends.

Each attack states what memory may grow by, and the bystander calls the same worker over HTTP meanwhile.
"""

from __future__ import annotations

import resource
import socket
import sys
import time
from collections.abc import Callable
from contextlib import ExitStack
from pathlib import Path
from types import SimpleNamespace

import pytest

from crestgate.runtime.connection_budget import MAX_HELD_BYTES
from integration.service.service_process import Service
from security.bystander import Bystander, Control, memory_bytes, unharmed
from security.flooding import Flood, flood
from unit.service.resp.clients import encode

Serve = Callable[..., Service]
Report = Callable[[str], None]
MIB = 1024 * 1024
ONE_CONNECTION = 8 * MIB
"""What memory may grow by through one connection."""
ALL_CONNECTIONS = 2 * MAX_HELD_BYTES
"""What it may grow by through all of them: what is counted, and as much again for what Python adds to it."""
RESP = {"CRESTGATE_SERVER__RESP": "127.0.0.1:0", "CRESTGATE_SERVER__LIMITS__CHECKS": "100000000/second"}
CHECK = encode("CL.THROTTLE", "flooded", 15, 30, 60)


CONNECTIONS = 2000
FILES = 512


@pytest.fixture
def own_files() -> None:
    """The attacker needs its own file descriptors."""
    hard = resource.getrlimit(resource.RLIMIT_NOFILE)[1]
    wanted = 2 * CONNECTIONS
    assert hard == resource.RLIM_INFINITY or hard >= wanted
    if resource.getrlimit(resource.RLIMIT_NOFILE)[0] < wanted:
        resource.setrlimit(resource.RLIMIT_NOFILE, (wanted, hard))


def attack(service: Service, data: bytes, seconds: float, **options: object) -> Flood:
    """Flood the RESP listener."""
    host, _, port = service.resp.rpartition(":")
    return flood(SimpleNamespace(host=host, port=int(port)), data, seconds, **options)  # type: ignore[arg-type]


def measure(service: Service, run: Callable[[], Flood], report: Report, max_growth: int) -> None:
    """Run an attack; the bystander must not suffer, and memory must not grow beyond that."""
    before = memory_bytes(service)
    with Bystander(service) as bystander, Control() as control:
        start = time.monotonic()
        time.sleep(0.7)
        middle = time.monotonic()
        result = run()
        grown = memory_bytes(service) - before
        end = time.monotonic()
    figures = unharmed(bystander.waits(start, middle), bystander.waits(middle, end), control.waits(middle, end))
    report(f"{result.sent / MIB:.1f} MiB sent, {grown / MIB:.1f} MiB held; {figures}")
    assert grown < max_growth
    assert bystander.statuses(middle, end) == {200}


FLOODS = {
    "checks": CHECK,
    "checks of new keys": b"".join(encode("CL.THROTTLE", f"new:{number}", 15, 30, 60) for number in range(20_000)),
    "checks of new limits": b"".join(encode("RL.CHECK", "k", f"{number}/day") for number in range(1, 20_000)),
    "checks of many limits": encode("RL.CHECK", "k", ";".join(f"{number}/day" for number in range(1, 21))),
    "errors": encode("RL.CHECK", "k", "5/nothing"),
    "unknown commands": encode("GET", "k"),
    "large arguments": encode("ECHO", b"x" * 8000),
    "line ends in arguments": encode("ECHO", b"\r\n" * 50),
    "empty lines": b"\r\n" * 4096,
    "empty arrays": b"*0\r\n" * 2048,
    "lines": b"PING\n" * 2048,
    "quoted lines": b'ECHO "' + b"\\x41" * 1000 + b'"\r\n',
    "failed log-ins": encode("AUTH", "cg_nobody"),
}


@pytest.mark.parametrize("data", FLOODS.values(), ids=FLOODS.keys())
def test_flood_leaves_time_for_others(serve: Serve, report: Report, data: bytes) -> None:
    service = serve(environment=RESP)
    whole = data * max(1, 100_000 // len(data))
    measure(service, lambda: attack(service, whole, 3, connections=4), report, ALL_CONNECTIONS)


@pytest.mark.parametrize("data", [CHECK, encode("INFO"), encode("HELLO")], ids=["check", "info", "hello"])
def test_pipelined_commands_without_reading(serve: Serve, report: Report, data: bytes) -> None:
    service = serve(environment=RESP)
    measure(
        service,
        lambda: attack(service, data * 10_000, 3, reads=False, max_bytes=33 * MIB),
        report,
        ONE_CONNECTION,
    )


UNFINISHED = {
    "huge bulk": b"*1\r\n$8192\r\n" + b"x" * 8191,
    "large command": b"*3\r\n" + b"$7000\r\n%b\r\n" % (b"x" * 7000) * 2,
    "many arguments": b"*128\r\n" + b"$1\r\nx\r\n" * 127,
    "line": b"x" * 8000,
}


@pytest.mark.parametrize("data", UNFINISHED.values(), ids=UNFINISHED.keys())
def test_unfinished_commands_on_many_connections(own_files: None, serve: Serve, report: Report, data: bytes) -> None:
    service = serve(environment=RESP)
    measure(
        service,
        lambda: attack(service, data, 4, connections=CONNECTIONS, reads=False, repeat=False),
        report,
        ALL_CONNECTIONS,
    )


def test_announced_lengths_allocate_nothing(serve: Serve) -> None:
    """A client that announces gigabytes gets an error, and the connection is closed."""
    service = serve(environment=RESP)
    host, _, port = service.resp.rpartition(":")
    before = memory_bytes(service)
    for data in (b"*2147483647\r\n", b"*1\r\n$2147483647\r\n", b"*1\r\n$9999999999\r\n", b"*-5\r\n$1\r\n"):
        with socket.create_connection((host, int(port)), 30) as one:
            one.sendall(data)
            one.shutdown(socket.SHUT_WR)
            received = b""
            while piece := one.recv(1000):
                received += piece
        assert received.startswith(b"-ERR Protocol error") or data.startswith(b"*-5")
    assert memory_bytes(service) - before < ONE_CONNECTION


def test_idle_connections_shut_nobody_out(
    own_files: None, serve: Serve, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """More than the worker may have: another client still gets in, over RESP and over HTTP."""
    program = tmp_path / "python-with-few-files"
    program.write_text(f'#!/bin/sh\nulimit -n {FILES}\nexec "{sys.executable}" "$@"\n')
    program.chmod(0o755)
    with monkeypatch.context() as patch:
        patch.setattr(sys, "executable", str(program))
        service = serve(environment=RESP)
    host, _, port = service.resp.rpartition(":")
    with ExitStack() as stack:
        for _ in range(FILES + 100):
            stack.enter_context(socket.create_connection((host, int(port)), 30))
        deadline = time.monotonic() + 60
        while True:
            with socket.create_connection((host, int(port)), 30) as one:
                one.sendall(CHECK)
                try:
                    if one.recv(1000).startswith(b"*5\r\n"):
                        break
                except ConnectionResetError:
                    pass
            assert time.monotonic() < deadline
        with service.client() as http:
            assert http.get("/healthz").status_code == 200
