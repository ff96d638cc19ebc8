"""Child processes that never outlive the benchmark: Ctrl-C or a kill of it ends them too.

Each child leads a process group of its own, so that its own children (a compiler, say) end with it, and so that a
Ctrl-C reaches only the benchmark, which then ends them in order.
"""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from types import FrameType
from typing import IO

__all__ = ["child", "environment", "exit_on_signals"]

PATIENCE_SECONDS = 3


def exit_on_signals() -> None:
    """Turn the signals that would end this process on the spot into an exit that passes through every `finally`."""

    def leave(number: int, frame: FrameType | None) -> None:
        sys.exit(128 + number)

    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        signal.signal(number, leave)


def environment(**more: str) -> dict[str, str]:
    """This process's environment without variables that select another Crestgate, or configure it."""
    unwanted = ("PYTHONPATH", "PYTHONHOME", "PYTHONSAFEPATH")
    remaining = {name: value for name, value in os.environ.items() if name not in unwanted}
    return {name: value for name, value in remaining.items() if not name.startswith("CRESTGATE_")} | more


@contextmanager
def child(
    command: Sequence[str],
    *,
    folder: Path,
    variables: dict[str, str] | None = None,
    stdin: int | None = subprocess.DEVNULL,
    stdout: int | IO[bytes] | None = None,
    stderr: int | IO[bytes] | None = None,
) -> Iterator[subprocess.Popen[bytes]]:
    """A process for the duration of the `with` block."""
    process = subprocess.Popen(
        command,
        cwd=folder,
        env=environment(**(variables or {})),
        stdin=stdin,
        stdout=stdout,
        stderr=stderr,
        start_new_session=True,
    )
    try:
        yield process
    finally:
        _end(process)


def _end(process: subprocess.Popen[bytes]) -> None:
    for number in (signal.SIGTERM, signal.SIGKILL):
        with suppress(ProcessLookupError):  # the whole group has ended already
            os.killpg(process.pid, number)
        with suppress(subprocess.TimeoutExpired):
            process.wait(PATIENCE_SECONDS)
            break
    for pipe in (process.stdin, process.stdout):
        if pipe is not None:
            with suppress(OSError):
                pipe.close()
