"""Nothing that happens to a worker, or to the machine, ends the one who replaces workers."""

from __future__ import annotations

import errno
import socket
from dataclasses import replace

import pytest

from headgate.config.settings import Server, Settings
from headgate.service.listening import Listening
from headgate.service.node import Node
from headgate.service.supervisor import LONGEST_WAIT, Supervisor, _signal_name


@pytest.mark.parametrize(("number", "name"), [(9, "SIGKILL"), (15, "SIGTERM"), (35, "signal 35")])
def test_every_signal_has_a_name(number: int, name: str) -> None:
    assert _signal_name(number) == name


class NoRoom:
    """What a process is that cannot be started."""

    def __init__(self, **_: object) -> None:
        pass

    def start(self) -> None:
        raise OSError(errno.EAGAIN, "Resource temporarily unavailable")


def test_a_machine_without_room_is_asked_again_later(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    settings = replace(Settings(), server=Server(workers=2))
    with socket.socket() as http, socket.socket() as grpc:
        supervisor = Supervisor(settings, Node("nowhere"), Listening(http, grpc))
        monkeypatch.setattr(supervisor._context, "Process", NoRoom)
        supervisor._look(100.0)
    assert [place.process for place in supervisor._places] == [None, None]
    assert {place.not_before for place in supervisor._places} == {100.0 + LONGEST_WAIT}
    assert "worker 1 cannot be started, and will be tried again: Resource temporarily unavailable" in caplog.text
