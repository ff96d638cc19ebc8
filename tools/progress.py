"""Runs what takes long and says little, and shows that it is alive."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Mapping, Sequence

__all__ = ["StepError", "minutes", "run_step"]

HEARTBEAT_SECONDS = 15.0 if sys.stdout.isatty() else 60.0  # for somebody who waits, or for a log


class StepError(Exception):
    """A command failed; the message is its output."""


def minutes(seconds: float) -> str:
    """`75.2` as `1:15`."""
    return f"{int(seconds) // 60}:{int(seconds) % 60:02}"


def run_step(title: str, command: Sequence[str], environ: Mapping[str, str] | None = None) -> None:
    """Run a command and show its output only if it fails, in a StepError. One line says what runs, and how long."""
    print(title, end=" …", flush=True)
    signal.signal(signal.SIGTERM, signal.default_int_handler)
    start = time.monotonic()
    with tempfile.TemporaryFile() as output:
        process = subprocess.Popen(
            command,
            stdout=output,
            stderr=subprocess.STDOUT,
            env={**os.environ, **(environ or {})},
            start_new_session=True,  # so that it can be stopped with all that it has started
        )
        try:
            while process.poll() is None:
                try:
                    process.wait(HEARTBEAT_SECONDS)
                except subprocess.TimeoutExpired:
                    print(f" {minutes(time.monotonic() - start)}", end="", flush=True)
        finally:
            if process.poll() is None:
                os.killpg(process.pid, signal.SIGKILL)
                process.wait()
        if process.returncode != 0:
            print(" failed", flush=True)
            output.seek(0)
            raise StepError(output.read().decode(errors="replace").strip() or f"exit code {process.returncode}")
    print(f" done in {time.monotonic() - start:.0f} s", flush=True)
