"""Fresh interpreters that a test starts, talks to, stops and kills. Every wait for them is bounded.

A child runs one of the programs of `participants` (or of the module named with it). It talks in lines of JSON: it
writes to its standard output what the test hears, and reads from its standard input what the test says.
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

__all__ = ["PATIENCE", "Child", "stopped", "until"]

PATIENCE = 60.0
"""Seconds after which a test gives up on a child. Nothing that works comes near it."""

_TESTS = Path(__file__).resolve().parent.parent


class Child:
    """One running program; killed, if it still runs, at the end of its `with` block."""

    def __init__(self, program: str, **arguments: object) -> None:
        self.program = program
        environment = dict(os.environ)
        environment["PYTHONPATH"] = os.pathsep.join([str(_TESTS), *(folder for folder in sys.path if folder)])
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
        self._heard = b""

    @property
    def pid(self) -> int:
        return self.process.pid

    def say(self, word: object) -> None:
        os.write(self._in, json.dumps(word).encode() + b"\n")

    def hear(self, patience: float = PATIENCE) -> Any:
        """The next thing the child says."""
        deadline = time.monotonic() + patience
        while b"\n" not in self._heard:
            left = deadline - time.monotonic()
            if left <= 0 or not select.select([self._out], [], [], left)[0]:
                raise AssertionError(f"{self.program} ({self.pid}) said nothing for {patience:g} s")
            piece = os.read(self._out, 65536)
            if not piece:
                raise AssertionError(f"{self.program} ({self.pid}) ended early, with {self.process.wait(PATIENCE)}")
            self._heard += piece
        line, _, self._heard = self._heard.partition(b"\n")
        return json.loads(line)

    def silent(self, seconds: float) -> bool:
        """Whether the child says nothing for so long."""
        return not self._heard and not select.select([self._out], [], [], seconds)[0]

    def signal(self, number: signal.Signals) -> None:
        os.kill(self.pid, number)

    def finish(self) -> Any:
        """The last thing the child says; it then ends well."""
        last = self.hear()
        assert self.process.wait(PATIENCE) == 0, f"{self.program} ({self.pid}) failed"
        return last

    def kill(self) -> None:
        """SIGKILL, and gone."""
        self.process.kill()
        self.process.wait(PATIENCE)

    def __enter__(self) -> Child:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.kill()
        for stream in (self.process.stdin, self.process.stdout):
            if stream is not None:
                stream.close()


def stopped(pid: int) -> bool:
    """Whether a process is stopped by a signal."""
    return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] == "T"


def until(what: str, true: Any, patience: float = PATIENCE) -> None:
    """Look again and again, for what no event tells, until it is true."""
    deadline = time.monotonic() + patience
    while not true():
        assert time.monotonic() < deadline, f"not within {patience:g} s: {what}"
        time.sleep(0.001)
