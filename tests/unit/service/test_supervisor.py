"""The supervisor survives failures of workers and of the machine."""

from __future__ import annotations

import errno
import socket
from dataclasses import replace
from typing import Any

import pytest

from crestgate.config.envoy import Envoy
from crestgate.config.settings import ServerSettings, Settings
from crestgate.envoy.xds.settings import Xds
from crestgate.service.node import ListenSockets, NodeDirectory
from crestgate.service.supervisor import MAX_BACKOFF_SECONDS, Supervisor, _signal_name, can_fork


@pytest.mark.parametrize(("number", "name"), [(9, "SIGKILL"), (15, "SIGTERM"), (35, "signal 35")])
def test_every_signal_has_a_name(number: int, name: str) -> None:
    assert _signal_name(number) == name


class FailingProcess:
    """A process that cannot be started."""

    def __init__(self, **_: object) -> None:
        pass

    def start(self) -> None:
        raise OSError(errno.EAGAIN, "Resource temporarily unavailable")


def test_failed_process_start_is_retried_later(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    settings = replace(Settings(), server=ServerSettings(workers=2))
    with socket.socket() as http, socket.socket() as grpc:
        supervisor = Supervisor(settings, NodeDirectory("nowhere"), ListenSockets(http, grpc))
        monkeypatch.setattr(supervisor._context, "Process", FailingProcess)
        supervisor._check(100.0)
    assert [slot.process for slot in supervisor._slots] == [None, None]
    assert {slot.start_after for slot in supervisor._slots} == {100.0 + MAX_BACKOFF_SECONDS}
    assert "cannot start worker 1, will retry: Resource temporarily unavailable" in caplog.text


@pytest.mark.parametrize(
    ("platform", "threads", "envoy", "forks"),
    [
        ("linux", 1, Envoy(), True),
        ("linux", 2, Envoy(), False),
        ("linux", 1, Envoy(xds=Xds("control:18000", "node")), False),
        ("darwin", 1, Envoy(), False),
    ],
)
def test_workers_are_forked_where_that_is_safe(
    platform: str, threads: int, envoy: Envoy, forks: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("crestgate.service.supervisor.sys.platform", platform)
    monkeypatch.setattr("threading.active_count", lambda: threads)
    assert can_fork(replace(Settings(), envoy=envoy)) is forks


class EndedProcess:
    """A process that has ended."""

    def __init__(self, exitcode: int) -> None:
        self.exitcode = exitcode

    def close(self) -> None:
        pass


@pytest.mark.parametrize(
    ("code", "level", "message"),
    [
        (0, "INFO", "worker 1 was stopped on request; starting another"),
        (-15, "INFO", "worker 1 was stopped on request; starting another"),
        (-9, "ERROR", "worker 1 was killed by SIGKILL; restarting it"),
        (3, "ERROR", "worker 1 ended with exit code 3; restarting it"),
    ],
)
def test_worker_that_was_stopped_on_request_is_no_error(
    code: int, level: str, message: str, caplog: pytest.LogCaptureFixture
) -> None:
    settings = replace(Settings(), server=ServerSettings(workers=2))
    with socket.socket() as http, socket.socket() as grpc, caplog.at_level("INFO", "crestgate"):
        supervisor = Supervisor(settings, NodeDirectory("nowhere"), ListenSockets(http, grpc))
        process: Any = EndedProcess(code)
        supervisor._handle_death(supervisor._slots[1], process, 100.0)
    assert [(record.levelname, record.getMessage()) for record in caplog.records] == [(level, message)]
