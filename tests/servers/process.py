"""The base of all test servers: a child process with its own port and folder, which exits with the tests.

A server keeps its port and its data when it is stopped or killed and started again; both are given up at the end of
its `with` block. It is started when it answers, not before. Should the tests be killed, the kernel kills it too: that
is asked for with the parent-death signal.
"""

from __future__ import annotations

import atexit
import os
import signal
import subprocess
from abc import ABC, abstractmethod
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType
from typing import ClassVar, Self

from servers import machine
from servers.machine import PATIENCE, ServerError, find, free_port, gone, private_folder, remove, stat, until

__all__ = ["GivenServer", "Server", "ServerProcess"]

_us = os.getpid()
_servers: list[ServerProcess] = []
_starter = ThreadPoolExecutor(1, "starts servers")
"""The parent-death signal comes when the thread that started a child ends; so one that lasts starts them all."""


@dataclass(frozen=True, slots=True)
class GivenServer:
    """An external server that the tests use and do not start."""

    url: str


class Server(ABC):
    """A server that can be started and stopped: one process, or a group."""

    @property
    @abstractmethod
    def url(self) -> str:
        """The store URL for a limiter."""

    @property
    @abstractmethod
    def pids(self) -> list[int]:
        """Its running processes."""

    @abstractmethod
    def start(self) -> None:
        """Start it, on the same port and with the same data as before, and wait until it answers."""

    @abstractmethod
    def stop(self) -> None:
        """Terminate it, and wait until it has exited."""

    @abstractmethod
    def kill(self) -> None:
        """SIGKILL, and wait until it has exited."""

    @abstractmethod
    def pause(self) -> None:
        """SIGSTOP: connections stay open without answers."""

    @abstractmethod
    def resume(self) -> None:
        """SIGCONT."""

    @abstractmethod
    def close(self) -> None:
        """Kill what still runs and remove its data."""

    def restart(self) -> None:
        self.stop()
        self.start()

    def __enter__(self) -> Self:
        try:
            self.start()
        except BaseException:
            self.close()
            raise
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        try:
            self.stop()
        finally:
            self.close()


class ServerProcess(Server):
    """A server that is one process (and what that process starts itself)."""

    kind: ClassVar[str]
    user: tuple[int, int] | None = None
    """The user and group it runs as, where that is not us."""
    farewell: ClassVar[signal.Signals] = signal.SIGTERM
    """What tells it to end now, without waiting for its clients."""

    def __init__(self, port: int | None = None) -> None:
        if not machine.may_start_servers:
            import pytest  # the benchmarks start servers, too, and have no pytest

            pytest.skip(f"starts {self.kind}")
        self.port = free_port() if port is None else port
        self.folder = private_folder(self.kind)
        self.log = self.folder / "log"
        self._process: subprocess.Popen[bytes] | None = None
        _servers.append(self)

    @abstractmethod
    def command(self) -> Sequence[str | Path]:
        """The program and its arguments."""

    @abstractmethod
    def ready(self) -> bool:
        """Whether this server answers, and not another one on its port; it may also raise the reason why not yet."""

    @property
    def pid(self) -> int:
        assert self._process is not None, "not started"
        return self._process.pid

    @property
    def pids(self) -> list[int]:
        return [self.pid] if self.running else []

    @property
    def running(self) -> bool:
        return self._process is not None and self._process.poll() is None

    @property
    def answers(self) -> bool:
        """Whether it runs, and is not paused."""
        return self.running and stat(self.pid)[:1] != ["T"]

    def start(self) -> None:
        self.launch()
        self.wait_ready()

    def launch(self) -> None:
        """Start it without waiting, so that several come up at the same time."""
        assert not self.running, "already started"
        who = () if self.user is None else ("--reuid", self.user[0], "--regid", self.user[1], "--clear-groups")
        environment = dict(os.environ)
        # Into the server alone: as another user, it could not use what the library shares with setpriv.
        preloaded = [f"LD_PRELOAD={environment.pop('LD_PRELOAD')}"] if "LD_PRELOAD" in environment else []
        command = [*(["env", *preloaded] if preloaded else []), *self.command()]
        with self.log.open("ab") as log:
            self._process = _starter.submit(
                subprocess.Popen,
                [find("setpriv", "util-linux"), "--pdeathsig", "KILL", *map(str, who), "--", *command],
                env=environment,
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=subprocess.STDOUT,
                cwd=self.folder,
                start_new_session=True,  # an interrupt from the keyboard is for the tests, which then stop it
            ).result()

    def wait_ready(self) -> None:
        def ready() -> bool:
            if not self.running:
                raise ServerError(f"{self.kind} on port {self.port} ended early; its log ends:\n{self.log_tail()}")
            try:
                return self.ready()
            except (ServerError, subprocess.TimeoutExpired):
                return False

        try:
            until(f"{self.kind} on port {self.port} answers", ready)
        except TimeoutError as error:
            raise ServerError(f"{error}; its log ends:\n{self.log_tail()}") from error

    def log_tail(self, lines: int = 20) -> str:
        return "\n".join(self.log.read_text(errors="replace").splitlines()[-lines:])

    def stop(self) -> None:
        if self.running:
            self.resume()
            self._send(self.farewell)
            self._wait_for_exit()

    def kill(self) -> None:
        if self.running:
            self._send(signal.SIGKILL)
            self._wait_for_exit()

    def pause(self) -> None:
        self._send(signal.SIGSTOP)
        until(f"{self.kind} ({self.pid}) is stopped", lambda: stat(self.pid)[:1] == ["T"] or gone(self.pid))

    def resume(self) -> None:
        self._send(signal.SIGCONT)

    def close(self) -> None:
        self.kill()
        remove(self.folder)
        if self in _servers:
            _servers.remove(self)

    def _send(self, number: signal.Signals) -> None:
        assert self._process is not None, "not started"
        self._process.send_signal(number)

    def _wait_for_exit(self) -> None:
        assert self._process is not None
        try:
            self._process.wait(PATIENCE)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait(PATIENCE)
            raise ServerError(f"{self.kind} did not stop; its log ends:\n{self.log_tail()}") from None


@atexit.register
def _close_all() -> None:
    if os.getpid() == _us:  # a fork of the tests ends none of their servers
        for server in list(_servers):
            server.close()
