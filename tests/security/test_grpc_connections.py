"""Idle gRPC connections must not lock out other callers, over gRPC or HTTP."""

from __future__ import annotations

import resource
import sys
import time
from collections.abc import Callable
from contextlib import ExitStack
from pathlib import Path

import pytest

from crestgate.runtime.connection_budget import ConnectionBudget, max_connections
from crestgate.service.grpc.transport.listener import QUIET_SECONDS
from integration.service.service_process import Service
from security.bystander import Bystander, Control, unharmed
from security.rpc_attack import HELLO, RpcBystander, call, connect, head

CONNECTIONS = 1100
FILES = 1024
PAUSE_SECONDS = 0.6


@pytest.fixture
def own_files() -> None:
    """The attacker needs its own file descriptors."""
    hard = resource.getrlimit(resource.RLIMIT_NOFILE)[1]
    wanted = 4 * CONNECTIONS
    assert hard == resource.RLIM_INFINITY or hard >= wanted
    resource.setrlimit(resource.RLIMIT_NOFILE, (wanted, hard))


def limit_files(service: Service, files: int) -> None:
    """Lower or raise the soft limit of a running service."""
    hard = resource.prlimit(service.pid, resource.RLIMIT_NOFILE)[1]
    resource.prlimit(service.pid, resource.RLIMIT_NOFILE, (files, hard))


@pytest.fixture
def limited(serve: Callable[..., Service], monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Service:
    """A service that was started under `ulimit -n 1024`, hard and soft."""
    program = tmp_path / "python-with-few-files"
    program.write_text(f'#!/bin/sh\nulimit -n {FILES}\nexec "{sys.executable}" "$@"\n')
    program.chmod(0o755)
    monkeypatch.setattr(sys, "executable", str(program))
    try:
        return serve()
    finally:
        monkeypatch.undo()


WATCH = call(1, head(b"/grpc.health.v1.Health/Watch"))


@pytest.mark.parametrize("first", [HELLO, b"", HELLO + call(1)], ids=["idle", "silent", "idle after a call"])
def test_idle_connections_do_not_shut_others_out(
    own_files: None, limited: Service, report: Callable[[str], None], first: bytes
) -> None:
    soft, hard = resource.prlimit(limited.pid, resource.RLIMIT_NOFILE)
    assert (soft, hard) == (FILES, FILES)
    with (
        ExitStack() as stack,
        Bystander(limited, fresh=True) as http,
        RpcBystander(limited) as rpc,
        RpcBystander(limited, fresh=True) as newcomer,
        Control() as control,
    ):
        start = time.monotonic()
        time.sleep(PAUSE_SECONDS)  # real requests in real time: there is no other clock to drive
        middle = time.monotonic()
        for number in range(CONNECTIONS):
            stack.enter_context(connect(limited, first))
            if number % 20 == 0:
                time.sleep(0.02)  # idle connections, not a flood
        time.sleep(PAUSE_SECONDS)
        end = time.monotonic()
    for bystander, protocol in ((http, "HTTP"), (rpc, "gRPC"), (newcomer, "gRPC, new connections")):
        assert bystander.statuses(start, end) == {200}, protocol
        waits = bystander.waits(start, middle), bystander.waits(middle, end), control.waits(middle, end)
        report(f"{protocol}: {unharmed(*waits)}")
    files = len(list(Path(f"/proc/{limited.pid}/fd").iterdir())) if limited.process.poll() is None else 0
    assert files < FILES


def test_connections_with_open_calls_make_room(
    own_files: None, limited: Service, report: Callable[[str], None]
) -> None:
    """HTTP has room immediately, and gRPC when those calls have been open for a while."""
    most = ConnectionBudget(max_connections(FILES)).max_per_listener
    with ExitStack() as stack:
        for _ in range(most):
            assert stack.enter_context(connect(limited, HELLO + WATCH)).recv(9)
        start = time.monotonic()
        with limited.client() as client:
            assert client.get("/healthz").status_code == 200
        refused = 0
        while not answered(limited):
            refused += 1
            assert time.monotonic() - start < 3 * QUIET_SECONDS, "open calls lock others out"
            time.sleep(0.25)  # until real connections are old enough
        report(f"{refused} connections were refused in {time.monotonic() - start:.1f} s")
        assert limited.logged.count("gRPC connections refused") <= 1


def answered(service: Service) -> bool:
    """Whether a new connection is answered at all."""
    try:
        with connect(service, HELLO + call(1)) as connection:
            return connection.recv(1) != b""
    except ConnectionError:
        return False


def test_a_service_out_of_files_does_not_spin(own_files: None, serve: Callable[..., Service]) -> None:
    service = serve()
    limit_files(service, len(list(Path(f"/proc/{service.pid}/fd").iterdir())))
    with ExitStack() as stack:
        for _ in range(20):
            stack.enter_context(connect(service, b""))
        before = cpu_seconds(service)
        time.sleep(1.0)  # of a real process
        assert cpu_seconds(service) - before < 0.5
        limit_files(service, FILES)
        with RpcBystander(service) as bystander:
            start = time.monotonic()
            time.sleep(PAUSE_SECONDS)
        assert bystander.statuses(start, time.monotonic()) == {200}


def cpu_seconds(service: Service) -> float:
    fields = Path(f"/proc/{service.pid}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / 100
