"""A process, or a thread of a client, that does nothing but wait, and writes down how late it wakes.

The process shows what the machine does to everybody, the thread what it does to this client: one that computes waits
for a core, and its threads for each other, when a process that only waits does not.
"""

from __future__ import annotations

import json
import os
import select
import sys
import threading
import time
from collections.abc import Iterable
from pathlib import Path

__all__ = ["read_stalls", "start_thread"]

INTERVAL_NS = 10_000_000
NOTED_NS = 1_000_000
MAX_SECONDS = 1800


def start_thread(path: str) -> None:
    """Write a line for each time that this process did not run, from when until when."""
    file = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600)

    def watch() -> None:
        while True:
            due = time.monotonic_ns() + INTERVAL_NS
            time.sleep(INTERVAL_NS / 1e9)
            now = time.monotonic_ns()
            if now - due > NOTED_NS:
                os.write(file, f"{due} {now}\n".encode())

    threading.Thread(target=watch, daemon=True).start()


def read_stalls(path: Path) -> list[tuple[int, int]]:
    """What `start_thread` wrote."""
    lines: Iterable[str] = path.read_text().splitlines() if path.exists() else ()
    return [(int(due), int(now)) for due, _, now in (line.partition(" ") for line in lines)]


def main() -> None:
    late: list[tuple[int, float]] = []
    os.write(1, b'"ready"\n')
    began = last = time.monotonic_ns()
    while not select.select([sys.stdin], [], [], INTERVAL_NS / 1e9)[0] and last - began < MAX_SECONDS * 10**9:
        now = time.monotonic_ns()
        if now - last - INTERVAL_NS > NOTED_NS:
            late.append((now, (now - last - INTERVAL_NS) / 1e9))
        last = now
    sys.stdout.write(json.dumps(late) + "\n")
    sys.stdout.flush()


if __name__ == "__main__":
    main()
