"""A real service in its own process: started in an empty folder, called over sockets, stopped by a signal.

It listens on ports chosen by the system and prints them. The first admin key is read from its standard output. The log
goes to a file, because tests search it for data that must not be logged.
"""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
import time
from collections.abc import Mapping
from pathlib import Path
from types import TracebackType

import httpx

__all__ = ["ANY_PORTS", "GENEROUS", "TIMEOUT", "Service"]

TIMEOUT = 60.0
"""Seconds after which a test gives up on a service. A working service never takes that long."""

GENEROUS = {
    "CRESTGATE_SERVER__LIMITS__READS": "1000000/minute",
    "CRESTGATE_SERVER__LIMITS__WRITES": "1000000/minute",
    "CRESTGATE_SERVER__LIMITS__FAILED_LOGINS": "1000000/minute",
}
"""Settings that keep the service's own limits from affecting the tests."""

ANY_PORTS = {"CRESTGATE_SERVER__HTTP": "127.0.0.1:0", "CRESTGATE_SERVER__GRPC": "127.0.0.1:0"}
"""Settings that let the system choose free ports; the service prints them."""

_LISTENS = re.compile(r"^Crestgate listens on (https?)://(.+):(\d+) with", re.MULTILINE)
_RPC = re.compile(r"^  gRPC       (\S+)", re.MULTILINE)
_RESP = re.compile(r"^  RESP       (\S+)", re.MULTILINE)
_KEY = re.compile(r"^  admin key  (cg_\S+)$", re.MULTILINE)


class Service:
    """`crestgate serve` in a folder; stopped, if it still runs, at the end of its `with` block.

    `config` is written to crestgate.yaml there. `environment` is added to the test's environment variables, from which
    all CRESTGATE_ settings are removed. A folder in which a service ran before keeps its counters, rules and keys: the
    second service prints no key, so pass the first one's as `key=`. `ready=False` does not wait for readiness.
    """

    def __init__(
        self,
        folder: Path,
        config: str | None = None,
        environment: Mapping[str, str] | None = None,
        arguments: tuple[str, ...] = (),
        key: str | None = None,
        ready: bool = True,
    ) -> None:
        self.folder = folder
        self.key = key or ""
        self._out = folder / "output"
        self._log = folder / "log"
        if config is not None:
            (folder / "crestgate.yaml").write_text(config)
        env = {name: value for name, value in os.environ.items() if not name.startswith("CRESTGATE_")}
        env.pop("PYTHONUNBUFFERED", None)  # output must be flushed without it
        # Add the sources only if this process uses them: tests of the installed package keep testing that package.
        env["PYTHONPATH"] = os.pathsep.join(folder for folder in sys.path if folder)
        env |= ANY_PORTS
        env |= environment or {}
        with self._out.open("wb") as out, self._log.open("ab") as log:
            self.process = subprocess.Popen(
                [sys.executable, "-m", "crestgate", "serve", *arguments],
                cwd=folder,
                env=env,
                stdin=subprocess.DEVNULL,
                stdout=out,
                stderr=log,
            )
        try:
            self._await_address()
            if key is None and (admin_key := _KEY.search(self.output)) is not None:
                self.key = admin_key[1]
            if not self.key:
                self.key = env.get("CRESTGATE_ADMIN_KEY", "")
            if ready:
                self.await_ready()
        except BaseException:
            self.kill()
            raise

    @property
    def pid(self) -> int:
        return self.process.pid

    @property
    def worker_pids(self) -> list[int]:
        """PIDs of the supervisor's workers, including starting ones; empty if a single process does everything."""
        children = Path(f"/proc/{self.pid}/task/{self.pid}/children").read_text().split()
        return [pid for pid in map(int, children) if b"resource_tracker" not in _read_command_line(pid)]

    @property
    def url(self) -> str:
        return f"{self.scheme}://{self.host}:{self.port}"

    @property
    def output(self) -> str:
        """Its standard output."""
        return self._out.read_text()

    @property
    def logged(self) -> str:
        """Its log, as text."""
        return self._log.read_text(errors="replace")

    @property
    def admin(self) -> dict[str, str]:
        """The header with the admin key."""
        return {"authorization": f"Bearer {self.key}"}

    def client(self, key: str | None = None, **options: object) -> httpx.Client:
        """An HTTP client with its own connections, and with an API key if one is given."""
        headers = {"authorization": f"Bearer {key}"} if key is not None else {}
        return httpx.Client(base_url=self.url, headers=headers, timeout=TIMEOUT, verify=False, **options)  # type: ignore[arg-type]

    def await_ready(self, timeout: float = TIMEOUT) -> None:
        """Wait until /readyz responds with 200."""
        deadline = time.monotonic() + timeout
        with self.client() as client:
            while True:
                try:
                    if client.get("/readyz").status_code == 200:
                        return
                except httpx.TransportError:
                    pass
                self._check_running(deadline, "was not ready")
                time.sleep(0.02)

    def signal(self, number: signal.Signals) -> None:
        os.kill(self.pid, number)

    def stop(self) -> int:
        """Send SIGTERM and return the exit code."""
        if self.process.poll() is None:
            self.process.terminate()
        return self.process.wait(TIMEOUT)

    def kill(self) -> None:
        """Send SIGKILL and wait for the exit."""
        self.process.kill()
        self.process.wait(TIMEOUT)

    def __enter__(self) -> Service:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        try:
            self.stop()
        except subprocess.TimeoutExpired:
            self.kill()
            raise

    def _await_address(self) -> None:
        deadline = time.monotonic() + TIMEOUT
        while (listening := _LISTENS.search(self.output)) is None or "/docs" not in self.output:
            self._check_running(deadline, "printed no address")
            time.sleep(0.01)
        self.scheme, self.host, self.port = listening[1], listening[2], int(listening[3])
        rpc = _RPC.search(self.output)
        assert rpc is not None, self.output
        self.rpc = rpc[1]
        """The gRPC address for clients: host:port."""
        resp = _RESP.search(self.output)
        self.resp = "" if resp is None else resp[1]
        """The same for Redis clients; empty where there is none."""

    def _check_running(self, deadline: float, failure: str) -> None:
        if self.process.poll() is not None:
            raise AssertionError(f"the service ended with {self.process.returncode}: {self.output}{self.logged}")
        if time.monotonic() > deadline:
            raise AssertionError(f"the service {failure} within {TIMEOUT:g} s: {self.output}{self.logged}")


def _read_command_line(pid: int) -> bytes:
    try:
        return Path(f"/proc/{pid}/cmdline").read_bytes()
    except (FileNotFoundError, ProcessLookupError):
        return b""
