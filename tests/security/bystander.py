"""A caller who does nothing wrong, and what it waits while somebody else attacks the service.

It runs in a process of its own, so that an attacker in the test's process does not slow it down: it asks the service
again and again, one request at a time, and notes when each began and how long it took. `time.monotonic` is the same
clock in all processes of the machine, so the test says afterwards which part of the record it means.
"""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from types import TracebackType

from integration.service.serving import Service

__all__ = ["Bystander", "memory_bytes", "p99", "peak_memory_bytes", "unharmed"]

_PROGRAM = Path(__file__).with_name("bystander_process.py")
PATIENCE = 60.0
NOISE = 0.01
"""Seconds below which waits are the scheduler's business: nothing is concluded from a factor of less than that."""
FACTOR = 10


class Bystander:
    """Asks `GET /healthz`, or whatever path is named, until the end of its `with` block."""

    def __init__(self, service: Service, path: str = "/healthz", fresh: bool = False) -> None:
        """`fresh`: a new connection for each request."""
        self._command = [sys.executable, str(_PROGRAM), service.url, path, str(int(fresh))]
        self._record: list[tuple[float, float, int]] = []

    def __enter__(self) -> Bystander:
        self._process = subprocess.Popen(
            self._command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
        )
        assert self._process.stdout is not None
        assert self._process.stdout.readline() == "ready\n", self._process.communicate()[1]
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.stop()

    def stop(self) -> None:
        """End it, and take over its record. The request under way is waited for: it may be the slowest."""
        if self._process.poll() is None:
            out, err = self._process.communicate("stop\n", PATIENCE + 30)
            assert self._process.returncode == 0, err
            self._record = [tuple(row) for row in json.loads(out)]

    def waits(self, start: float, end: float) -> list[float]:
        """Seconds that the requests took which were under way between two instants of `time.monotonic`."""
        found = [took for began, took, _ in self._record if began < end and began + took > start]
        assert found, "the bystander asked nothing in that time"
        return found

    def statuses(self, start: float, end: float) -> set[int]:
        """What they were answered; 0 for one that was not."""
        return {status for began, took, status in self._record if began < end and began + took > start}


def p99(waits: list[float]) -> float:
    ordered = sorted(waits)
    return ordered[min(len(ordered) - 1, len(ordered) * 99 // 100)]


def unharmed(quiet: list[float], attacked: list[float]) -> str:
    """Assert that an attack cost others at most ten times what they wait anyway; the figures, to be reported."""
    before, during = p99(quiet), p99(attacked)
    figures = (
        f"p99 {before * 1000:.1f} ms quiet ({len(quiet)} requests), {during * 1000:.1f} ms under attack "
        f"({len(attacked)}), slowest {max(attacked) * 1000:.1f} ms"
    )
    assert during <= FACTOR * max(before, NOISE), figures
    return figures


def memory_bytes(service: Service) -> int:
    """Resident memory of a service, all of its processes together."""
    return _memory(service, "VmRSS:")


def peak_memory_bytes(service: Service) -> int:
    """The most that it ever had."""
    return _memory(service, "VmHWM:")


def _memory(service: Service, field: str) -> int:
    total = 0
    for pid in (service.pid, *service.worker_pids):
        for line in Path(f"/proc/{pid}/status").read_text().splitlines():
            if line.startswith(field):
                total += int(line.split()[1]) * 1024
    return total
