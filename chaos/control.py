"""A process that does nothing but wait, and writes down how late it wakes: what the machine does to everybody."""

from __future__ import annotations

import json
import os
import select
import sys
import time

INTERVAL_NS = 10_000_000
NOTED_NS = 1_000_000
MAX_SECONDS = 1800


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
