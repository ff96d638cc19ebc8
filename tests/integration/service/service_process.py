"""A real service in a process of its own: started in an empty folder, asked over sockets, ended by a signal.

It listens on ports that the system chose, and says which; its first key is read from the terminal, as a person would.
What it writes to its log is kept in a file, because the tests look there for what must not be in it.
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

__all__ = ["ANY_PORTS", "GENEROUS", "PATIENCE", "Service"]

PATIENCE = 60.0
"""Seconds after which a test gives up on a service. Nothing that works comes near it."""

GENEROUS = {
    "CRESTGATE_SERVER__LIMITS__READS": "1000000/minute",
    "CRESTGATE_SERVER__LIMITS__WRITES": "1000000/minute",
    "CRESTGATE_SERVER__LIMITS__FAILED_LOGINS": "1000000/minute",
}
"""Settings of a service whose own limits are out of the tests' way."""

ANY_PORTS = {"CRESTGATE_SERVER__HTTP": "127.0.0.1:0", "CRESTGATE_SERVER__GRPC": "127.0.0.1:0"}
"""Settings of a service that is in nobody's way: it says which ports it has got."""

_LISTENS = re.compile(r"^Crestgate listens on (https?)://(.+):(\d+) with", re.MULTILINE)
_RPC = re.compile(r"^  gRPC       (\S+)", re.MULTILINE)
_KEY = re.compile(r"^  admin key  (cg_\S+)$", re.MULTILINE)


class Service:
    """`crestgate serve` in a folder; ended, if it still runs, at the end of its `with` block.

    `config` is written to crestgate.yaml there, `environment` is added to the surroundings, from which everything that
    would be a setting is taken out. A folder in which a service ran before still has its counters, rules and keys:
    the second one shows no key, and `key=` says the first one's. With `ready=False` it is not waited for until it is.
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
        self._out = folder / "said"
        self._log = folder / "log"
        if config is not None:
            (folder / "crestgate.yaml").write_text(config)
        surroundings = {name: value for name, value in os.environ.items() if not name.startswith("CRESTGATE_")}
        surroundings.pop("PYTHONUNBUFFERED", None)  # what is said must be seen without it
        # The sources in the way only where they are used already: a test of the installed package stays one.
        surroundings["PYTHONPATH"] = os.pathsep.join(folder for folder in sys.path if folder)
        surroundings |= ANY_PORTS
        surroundings |= environment or {}
        with self._out.open("wb") as out, self._log.open("ab") as log:
            self.process = subprocess.Popen(
                [sys.executable, "-m", "crestgate", "serve", *arguments],
                cwd=folder,
                env=surroundings,
                stdin=subprocess.DEVNULL,
                stdout=out,
                stderr=log,
            )
        try:
            self._await_address()
            if key is None and (shown := _KEY.search(self.said)) is not None:
                self.key = shown[1]
            if not self.key:
                self.key = surroundings.get("CRESTGATE_ADMIN_KEY", "")
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
        """The processes that its supervisor keeps, those that are starting too; none where one process does it all."""
        children = Path(f"/proc/{self.pid}/task/{self.pid}/children").read_text().split()
        return [pid for pid in map(int, children) if b"spawn_main" in _command(pid)]

    @property
    def url(self) -> str:
        return f"{self.scheme}://{self.host}:{self.port}"

    @property
    def said(self) -> str:
        """What it said on its terminal."""
        return self._out.read_text()

    @property
    def logged(self) -> str:
        """What it has logged, as text."""
        return self._log.read_text(errors="replace")

    @property
    def admin(self) -> dict[str, str]:
        """The header that lets its caller do everything."""
        return {"authorization": f"Bearer {self.key}"}

    def client(self, key: str | None = None, **options: object) -> httpx.Client:
        """A client of its own connections; with a key, if one is given."""
        headers = {"authorization": f"Bearer {key}"} if key is not None else {}
        return httpx.Client(base_url=self.url, headers=headers, timeout=PATIENCE, verify=False, **options)  # type: ignore[arg-type]

    def await_ready(self, patience: float = PATIENCE) -> None:
        """Until it answers that it is ready."""
        deadline = time.monotonic() + patience
        with self.client() as client:
            while True:
                try:
                    if client.get("/readyz").status_code == 200:
                        return
                except httpx.TransportError:
                    pass
                self._still_there(deadline, "was not ready")
                time.sleep(0.02)

    def signal(self, number: signal.Signals) -> None:
        os.kill(self.pid, number)

    def stop(self) -> int:
        """SIGTERM, and the exit code that follows."""
        if self.process.poll() is None:
            self.process.terminate()
        return self.process.wait(PATIENCE)

    def kill(self) -> None:
        """SIGKILL, and gone."""
        self.process.kill()
        self.process.wait(PATIENCE)

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
        deadline = time.monotonic() + PATIENCE
        while (found := _LISTENS.search(self.said)) is None or "/docs" not in self.said:
            self._still_there(deadline, "said no address")
            time.sleep(0.01)
        self.scheme, self.host, self.port = found[1], found[2], int(found[3])
        rpc = _RPC.search(self.said)
        assert rpc is not None, self.said
        self.rpc = rpc[1]
        """Where it listens for gRPC, as clients are told: host:port."""

    def _still_there(self, deadline: float, what: str) -> None:
        if self.process.poll() is not None:
            raise AssertionError(f"the service ended with {self.process.returncode}: {self.said}{self.logged}")
        if time.monotonic() > deadline:
            raise AssertionError(f"the service {what} within {PATIENCE:g} s: {self.said}{self.logged}")


def _command(pid: int) -> bytes:
    try:
        return Path(f"/proc/{pid}/cmdline").read_bytes()
    except (FileNotFoundError, ProcessLookupError):
        return b""
