"""A well-behaved client, whose response times are measured while another client attacks the service.

It runs in its own process, so that an attacker in the test's process does not slow it down. It sends one request after
the other, and records when each started and how long it took. `time.monotonic` is the same clock in all processes of
the machine, so the test selects the part of the record afterwards.

A busy machine delays every client. So the time that the bystander or the service waits for a processor is not counted
(see run_delay.py), and `Control` calls a server that is not attacked, at the same time.
"""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from types import TracebackType

from integration.service.service_process import Service

__all__ = ["Bystander", "Control", "memory_bytes", "p99", "peak_memory_bytes", "unharmed"]

_TESTS = Path(__file__).parent.parent
_CONTROL = Path(__file__).with_name("control_process.py")
TIMEOUT = 300.0
"""Seconds. Nothing takes so long unless it has failed."""
NOISE = 0.01
"""Seconds below which waits are the scheduler's business: nothing is concluded from a factor of less than that."""
FACTOR = 10
MAX_WAIT = 1.0
"""Seconds that others may wait at most, unless the machine is busy with something else."""
BUSY = 0.1
"""Seconds that the control waits on such a machine."""


class Bystander:
    """Calls `GET /healthz`, or another path, until the end of its `with` block."""

    def __init__(self, service: Service, path: str = "/healthz", fresh: bool = False) -> None:
        """`fresh`: a new connection for each request."""
        self._command = _command(service.url, path, fresh, [service.pid, *service.worker_pids])
        self._record: list[tuple[float, float, int]] = []

    def __enter__(self) -> Bystander:
        self._process = subprocess.Popen(
            self._command,
            cwd=_TESTS,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )
        assert self._process.stdout is not None
        assert self._process.stdout.readline() == "ready\n", self._process.communicate()[1]
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.stop()

    def stop(self) -> None:
        """Stop it, and read its record. Waits for the request in progress: it may be the slowest."""
        if self._process.poll() is None:
            out, err = self._process.communicate("stop\n", TIMEOUT + 30)
            assert self._process.returncode == 0, err
            self._record = [tuple(row) for row in json.loads(out)]

    def waits(self, start: float, end: float) -> list[float]:
        """Durations in seconds of the requests in progress between two times of `time.monotonic`."""
        found = [took for began, took, _ in self._record if began < end and began + took > start]
        assert found, "the bystander sent no request in that time"
        return found

    def statuses(self, start: float, end: float) -> set[int]:
        """Their statuses; 0 for a request without a response."""
        return {status for began, took, status in self._record if began < end and began + took > start}


class Control(Bystander):
    """Calls its own server, which is not attacked."""

    def __init__(self) -> None:
        self._record = []

    def __enter__(self) -> Control:
        self._server = subprocess.Popen(
            [sys.executable, str(_CONTROL)], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
        )
        try:
            assert self._server.stdout is not None
            port = int(self._server.stdout.readline())
            self._command = _command(f"http://127.0.0.1:{port}", "/", False, [self._server.pid])
            super().__enter__()
        except BaseException:
            self._stop_server()
            raise
        return self

    def stop(self) -> None:
        try:
            super().stop()
        finally:
            self._stop_server()

    def _stop_server(self) -> None:
        if self._server.poll() is None:
            self._server.communicate("", TIMEOUT)


def _command(url: str, path: str, fresh: bool, pids: list[int]) -> list[str]:
    return [sys.executable, "-m", "security.bystander_process", url, path, str(int(fresh)), *map(str, pids)]


def p99(waits: list[float]) -> float:
    """One wait is not the 99th percentile of fewer than a hundred: any process may be interrupted once."""
    return sorted(waits)[(len(waits) - 1) * 99 // 100]


def unharmed(quiet: list[float], attacked: list[float], control: list[float]) -> str:
    """Assert that an attack delays others at most tenfold; returns the figures to report.

    `control` are the waits of `Control` during the attack: delays of the whole machine are not caused by the attack.
    """
    before, during, machine = p99(quiet), p99(attacked), p99(control)
    figures = (
        f"p99 {before * 1000:.1f} ms quiet ({len(quiet)} requests), {during * 1000:.1f} ms under attack "
        f"({len(attacked)}), slowest {max(attacked) * 1000:.1f} ms, control {machine * 1000:.1f} ms"
    )
    assert during <= FACTOR * max(before, machine, NOISE), figures
    assert machine > BUSY or during <= MAX_WAIT, figures
    return figures


def memory_bytes(service: Service) -> int:
    """Resident memory of all processes of a service."""
    return _memory(service, "VmRSS:")


def peak_memory_bytes(service: Service) -> int:
    """The peak of its resident memory."""
    return _memory(service, "VmHWM:")


def _memory(service: Service, field: str) -> int:
    total = 0
    for pid in (service.pid, *service.worker_pids):
        for line in Path(f"/proc/{pid}/status").read_text().splitlines():
            if line.startswith(field):
                total += int(line.split()[1]) * 1024
    return total
