"""The service that runs in this folder, as its workers publish it: no key and no network are needed.

`crestgate serve` writes ./.crestgate/service.json, which names the directory where each worker publishes its metrics
about every second. Only the user who runs the service can read them.
"""

from __future__ import annotations

import os
import time
from typing import Any

from crestgate.config.default_folder import read_service_file
from crestgate.errors import ConfigError
from crestgate.service.observability.node_status import is_current, node_status
from crestgate.service.observability.snapshot import Snapshot, WorkerStatus
from crestgate.service.observability.worker_snapshots import WorkerSnapshots

__all__ = ["LocalService", "find_local_service", "no_local_service"]

READER = 0
"""The number of a worker; files are only read here."""


class LocalService:
    """A running service of this user on this machine."""

    def __init__(self, url: str, snapshots: str, workers: int) -> None:
        self.title = url
        self._workers = workers
        self._files = WorkerSnapshots(snapshots, READER)

    def is_running(self) -> bool:
        """Whether a worker published lately: a service that was killed leaves its files behind."""
        now_us = time.time_ns() // 1000
        return any(is_current(snapshot, now_us) for snapshot in self._snapshots().values())

    def status(self) -> dict[str, Any]:
        """Workers, decisions and what the failure policy does; ConfigError if it has stopped."""
        now_us = time.time_ns() // 1000
        snapshots = self._snapshots()
        if not any(is_current(snapshot, now_us) for snapshot in snapshots.values()):
            raise no_local_service()
        return node_status(snapshots, now_us, self._workers)

    def workers(self) -> list[WorkerStatus]:
        """What each worker published lately."""
        now_us = time.time_ns() // 1000
        return [one.worker for one in self._snapshots().values() if one.worker is not None and is_current(one, now_us)]

    def _snapshots(self) -> dict[int, Snapshot]:
        try:
            return self._files.by_worker()
        except OSError:  # it has just stopped
            return {}


def find_local_service() -> LocalService | None:
    """The service that runs in this folder, if any."""
    found = read_service_file()
    if found is None or not os.path.isdir(found["snapshots"]):
        return None
    service = LocalService(str(found.get("url")), found["snapshots"], found["workers"])
    return service if service.is_running() else None


def no_local_service() -> ConfigError:
    return ConfigError(
        "no service runs in this folder (./.crestgate): start one with `crestgate serve`, or name one with --url, such "
        "as http://127.0.0.1:8080"
    )
