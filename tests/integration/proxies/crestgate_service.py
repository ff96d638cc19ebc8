"""Crestgate behind a proxy: it can be killed and restarted on the same ports with its counters."""

from __future__ import annotations

import sys
from collections.abc import Mapping
from pathlib import Path
from types import TracebackType

from integration.service.service_process import Service
from servers.machine import free_port
from servers.process import ServerProcess

__all__ = ["CrestgateService", "print_logs"]


class CrestgateService:
    """`crestgate serve` with the settings of deploy/, in a fixed folder and on fixed ports."""

    def __init__(self, folder: Path, files: Mapping[str, str]) -> None:
        self.folder = folder
        self.http, self.grpc = free_port(), free_port()
        for name, text in files.items():
            self.write(name, text)
        self.service = self._start(None)

    def write(self, name: str, text: str) -> None:
        """Replace one of its files atomically."""
        new_file = self.folder / f".{name}.new"
        new_file.write_text(text)
        new_file.replace(self.folder / name)

    def kill(self) -> None:
        self.service.kill()

    def restart(self) -> None:
        self.service = self._start(self.service.key)

    def metric(self, name: str, label: str) -> float:
        """The sum of a metric over all series that have this label."""
        with self.service.client(self.service.key) as client:
            rows = [line.rpartition(" ") for line in client.get("/metrics").raise_for_status().text.splitlines()]
        return sum(float(value) for series, _, value in rows if series.startswith(f"{name}{{") and label in series)

    def _start(self, key: str | None) -> Service:
        ports = {
            "CRESTGATE_SERVER__HTTP": f"127.0.0.1:{self.http}",
            "CRESTGATE_SERVER__GRPC": f"127.0.0.1:{self.grpc}",
        }
        return Service(self.folder, environment=ports, key=key)

    def __enter__(self) -> CrestgateService:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.service.__exit__(kind, error, trace)
        assert "Traceback" not in self.service.logged, self.service.logged


def print_logs(proxy: ServerProcess, crestgate: CrestgateService) -> None:
    """Print the logs of a proxy and of Crestgate: pytest captures them and shows them if the test fails."""
    sys.stdout.write(f"{proxy.kind}:\n{proxy.log_tail()}\nCrestgate:\n{crestgate.service.logged[-3000:]}\n")
