"""A folder with planted keys is not used, and files of the service are accessible to their owner only."""

from __future__ import annotations

import os
import stat
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from crestgate import Limiter
from integration.service.service_process import ANY_PORTS, TIMEOUT, Service

COMMANDS = [
    "serve",
    "keys list",
    "rules list",
    "check k --limit 1/s",
    "reset k --limit 1/s",
    "check --user bob",
    "db upgrade",
]


def run(folder: Path, command: str) -> subprocess.CompletedProcess[str]:
    surroundings = {name: value for name, value in os.environ.items() if not name.startswith("CRESTGATE_")}
    surroundings |= {"PYTHONPATH": os.pathsep.join(path for path in sys.path if path), **ANY_PORTS}
    return subprocess.run(
        [sys.executable, "-m", "crestgate", *command.split()],
        cwd=folder,
        env=surroundings,
        capture_output=True,
        text=True,
        timeout=TIMEOUT,
        check=False,
    )


@pytest.fixture
def planted(tmp_path: Path) -> Path:
    """A folder with a planted key."""
    assert run(tmp_path, "keys create backdoor --scope write").returncode == 0
    return tmp_path / ".crestgate"


def refuses(folder: Path, words: str) -> None:
    for command in COMMANDS:
        done = run(folder, command)
        assert (done.returncode, done.stdout) == (2, ""), command
        assert words in done.stderr, command


def test_folder_that_others_can_write_to_is_not_used(planted: Path) -> None:
    planted.chmod(0o777)
    refuses(planted.parent, "can be written by others (mode 777)")


@pytest.mark.skipif(os.geteuid() != 0, reason="only root gives files away")
def test_folder_of_another_user_is_not_used(planted: Path) -> None:
    os.chown(planted, 12345, 12345)
    refuses(planted.parent, "belongs to 12345, and this runs as root")


def test_all_files_are_accessible_to_their_owner_only(tmp_path: Path, serve: Callable[..., Service]) -> None:
    before = os.umask(0)  # which the service inherits
    try:
        service = serve()
        with service.client(service.key) as client:
            rule = {"name": "r", "dimension": "user", "limit": 1, "window_seconds": 60}
            client.post("/api/v1/rules", json=rule).raise_for_status()
            check = {"dimension": "user", "identifier": "42"}
            client.post("/api/v1/check", json=check, headers={"idempotency-key": "1"}).raise_for_status()
        modes = {path.name: stat.S_IMODE(path.stat().st_mode) for path in (tmp_path / ".crestgate").iterdir()}
        assert {"counters", "counters.once", "rules.db"} <= {*modes}
        assert {*modes.values()} == {0o600}, modes
        assert stat.S_IMODE((tmp_path / ".crestgate").stat().st_mode) == 0o700
    finally:
        os.umask(before)


def test_sqlite_counters_are_accessible_to_their_owner_only(tmp_path: Path) -> None:
    before = os.umask(0)
    try:
        with Limiter(f"sqlite:///{tmp_path}/counters.db?timeout_ms=30000") as limiter:
            assert limiter.check("k", "1/day").allowed
            modes = {path.name: stat.S_IMODE(path.stat().st_mode) for path in tmp_path.iterdir()}
    finally:
        os.umask(before)
    assert {"counters.db", "counters.db-wal", "counters.db-shm"} <= {*modes}
    assert {*modes.values()} == {0o600}, modes
