"""Child processes that a test starts, exchanges messages with, stops and kills. Every wait for them is bounded.

A child runs a function of a module of these tests through `child_main`. Messages are lines of JSON: the child writes
them to its standard output and reads them from its standard input.
"""

from __future__ import annotations

import json
import os
import select
import signal
import subprocess
import sys
import time
from pathlib import Path
from types import TracebackType
from typing import Any

__all__ = ["TIMEOUT", "ChildProcess", "is_stopped", "wait_until"]

TIMEOUT = 300.0
"""Seconds after which a test gives up on a child. A working child never takes that long."""

TESTS_FOLDER = Path(__file__).resolve().parent.parent


class ChildProcess:
    """One child process; killed, if it still runs, at the end of its `with` block."""

    def __init__(self, program: str, **arguments: object) -> None:
        self.program = program
        environment = dict(os.environ)
        environment["PYTHONPATH"] = os.pathsep.join([str(TESTS_FOLDER), *(folder for folder in sys.path if folder)])
        self.process = subprocess.Popen(
            [sys.executable, "-m", "integration.child_main", program, json.dumps(arguments)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            env=environment,
            bufsize=0,
        )
        assert self.process.stdin is not None
        assert self.process.stdout is not None
        self._in = self.process.stdin.fileno()
        self._out = self.process.stdout.fileno()
        self._buffer = b""

    @property
    def pid(self) -> int:
        return self.process.pid

    def send(self, message: object) -> None:
        os.write(self._in, json.dumps(message).encode() + b"\n")

    def receive(self, timeout: float = TIMEOUT) -> Any:
        """The next message of the child."""
        deadline = time.monotonic() + timeout
        while b"\n" not in self._buffer:
            seconds_left = deadline - time.monotonic()
            if seconds_left <= 0 or not select.select([self._out], [], [], seconds_left)[0]:
                raise AssertionError(f"{self.program} ({self.pid}) sent nothing for {timeout:g} s")
            data = os.read(self._out, 65536)
            if not data:
                raise AssertionError(f"{self.program} ({self.pid}) ended early, with {self.process.wait(TIMEOUT)}")
            self._buffer += data
        line, _, self._buffer = self._buffer.partition(b"\n")
        return json.loads(line)

    def is_silent(self, seconds: float) -> bool:
        """Whether the child sends nothing for so many seconds."""
        return not self._buffer and not select.select([self._out], [], [], seconds)[0]

    def signal(self, number: signal.Signals) -> None:
        os.kill(self.pid, number)

    def finish(self) -> Any:
        """Receive the last message and wait for a successful exit."""
        result = self.receive()
        assert self.process.wait(TIMEOUT) == 0, f"{self.program} ({self.pid}) failed"
        return result

    def kill(self) -> None:
        """Send SIGKILL and wait for the exit."""
        self.process.kill()
        self.process.wait(TIMEOUT)

    def __enter__(self) -> ChildProcess:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.kill()
        for stream in (self.process.stdin, self.process.stdout):
            if stream is not None:
                stream.close()


def is_stopped(pid: int) -> bool:
    """Whether a process is stopped by a signal."""
    return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] == "T"


def wait_until(what: str, condition: Any, timeout: float = TIMEOUT) -> None:
    """Poll until the condition is true."""
    deadline = time.monotonic() + timeout
    while not condition():
        assert time.monotonic() < deadline, f"not within {timeout:g} s: {what}"
        time.sleep(0.001)
