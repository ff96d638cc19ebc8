"""A service that starts before its stores waits for them, if it is told to; bounded, logged, and ended by a signal."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import threading
import time
from pathlib import Path

import pytest

from integration.service.processes.concurrent_clients import wait_until
from integration.service.service_process import ANY_PORTS, TIMEOUT, Service
from servers.machine import free_port
from servers.redis import RedisServer

WAITS = "store unreachable, waiting up to "


def start(folder: Path, config: str) -> subprocess.Popen[str]:
    """A service that may not be able to start; its log is in the file `log`."""
    env = {name: value for name, value in os.environ.items() if not name.startswith("CRESTGATE_")}
    env |= {"PYTHONPATH": os.pathsep.join(entry for entry in sys.path if entry), **ANY_PORTS}
    (folder / "crestgate.yaml").write_text(config)
    with (folder / "log").open("wb") as log:
        command = [sys.executable, "-m", "crestgate", "serve"]
        return subprocess.Popen(command, cwd=folder, env=env, stdout=subprocess.PIPE, stderr=log, text=True)


@pytest.mark.parametrize("setting", ["store", "rules_store"])
@pytest.mark.parametrize("workers", [1, 2])
def test_start_waits_for_a_store(setting: str, workers: int, tmp_path: Path) -> None:
    server = RedisServer()
    config = f"{setting}: {server.url}?timeout_ms=2000\nserver: {{store_wait_seconds: 300, workers: {workers}}}\n"
    log = tmp_path / "log"
    log.touch()

    def start_later() -> None:
        wait_until("the service waits", lambda: WAITS in log.read_text(), TIMEOUT)
        server.start()

    starting = threading.Thread(target=start_later)
    starting.start()
    try:
        with Service(tmp_path, config) as service:
            assert str(server.port) in service.logged.splitlines()[0], "the store that it waits for is named"
            assert "all stores are reachable, after " in service.logged
            with service.client() as client:
                assert client.post("/api/v1/check", json={"key": "somebody"}).json()["reason"] == "ok"
            assert service.stop() == 0
    finally:
        starting.join()
        server.stop()


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_signal_ends_the_wait_at_once(number: signal.Signals, tmp_path: Path) -> None:
    config = f"store: redis://127.0.0.1:{free_port()}/0\nserver: {{store_wait_seconds: 3600}}\n"
    with start(tmp_path, config) as process:
        wait_until("the service waits", lambda: WAITS in (tmp_path / "log").read_text(), TIMEOUT)
        process.send_signal(number)
        output, _ = process.communicate(timeout=TIMEOUT)
    assert process.returncode == 0
    assert output == "", "nothing was started"
    assert "Traceback" not in (tmp_path / "log").read_text()


def test_wait_is_bounded(tmp_path: Path) -> None:
    port = free_port()
    started = time.monotonic()
    with start(tmp_path, f"store: redis://127.0.0.1:{port}/0\nserver: {{store_wait_seconds: 2}}\n") as process:
        process.communicate(timeout=TIMEOUT)
    log = (tmp_path / "log").read_text()
    assert process.returncode == 2, log
    assert time.monotonic() - started < TIMEOUT
    assert f"{port}" in log.splitlines()[-1]
    assert "(server.store_wait_seconds)" in log.splitlines()[-1]
    assert not (tmp_path / ".crestgate" / "first").exists()


def test_without_the_setting_a_start_fails_at_once(tmp_path: Path) -> None:
    with start(tmp_path, f"store: redis://127.0.0.1:{free_port()}/0\n") as process:
        process.communicate(timeout=TIMEOUT)
    assert process.returncode == 2
    assert WAITS not in (tmp_path / "log").read_text()
