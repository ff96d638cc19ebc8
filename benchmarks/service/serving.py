"""Servers as child processes on free ports of loopback, each in its own temporary folder."""

from __future__ import annotations

import http.client
import json
import os
import secrets
import socket
import subprocess
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

from benchmarks.children import child, environment

__all__ = ["START_SECONDS", "Server", "application", "echo", "free_port", "service", "started"]

START_SECONDS = 30
ALLOWED, BLOCKED, WORKERS = "crestgate_allowed_total", "crestgate_blocked_total", "crestgate_workers"


class Server:
    """A running server."""

    def __init__(self, process: subprocess.Popen[bytes], port: int, log: Path, token: str, admin: str) -> None:
        self.port = port
        self.token = token
        """What its checks need, empty where they are open."""
        self._process = process
        self._log = log
        self._admin = admin

    def url(self, path: str) -> str:
        return f"http://127.0.0.1:{self.port}{path}"

    def processor_seconds(self) -> float:
        """The processor time of all its processes so far."""
        ticks = sum(int(fields[11]) + int(fields[12]) for fields in self._stats())
        return ticks / os.sysconf("SC_CLK_TCK")

    def resident_megabytes(self) -> float:
        """The resident memory of all its processes; shared memory counts in each."""
        return sum(int(fields[21]) for fields in self._stats()) * os.sysconf("SC_PAGE_SIZE") / 1e6

    def _stats(self) -> Iterator[list[str]]:
        """The fields of /proc/PID/stat of each of its processes, from the state on."""
        for stat in Path("/proc").glob("[0-9]*/stat"):
            with suppress(OSError):  # it has ended meanwhile
                fields = stat.read_text().rpartition(")")[2].split()
                if int(fields[2]) == self._process.pid:  # its process group, which its workers are in, too
                    yield fields

    def wait(self, path: str) -> None:
        """Wait until it answers on this path."""
        deadline = time.monotonic() + START_SECONDS
        while True:
            with suppress(OSError):
                if self.call("GET", path)[0] == 200:
                    return
            if self._process.poll() is not None or time.monotonic() > deadline:
                raise RuntimeError("\n".join(["a server does not start:", *self._log.read_text().splitlines()[-10:]]))
            time.sleep(0.05)

    def call(self, method: str, path: str, body: str | None = None, token: str = "") -> tuple[int, bytes]:
        connection = http.client.HTTPConnection("127.0.0.1", self.port, timeout=5)
        headers = {"Content-Type": "application/json"} | ({"Authorization": f"Bearer {token}"} if token else {})
        try:
            connection.request(method, path, body, headers)
            response = connection.getresponse()
            return response.status, response.read()
        finally:
            connection.close()

    def written(self) -> str:
        """The content of its log so far."""
        return self._log.read_text(errors="replace")

    def totals(self) -> tuple[int, int, int]:
        """The numbers of allowed and blocked decisions, and of workers that report them."""
        status, body_received = self.call("GET", "/metrics", token=self._admin)
        assert status == 200, body_received
        sums = {ALLOWED: 0.0, BLOCKED: 0.0, WORKERS: 0.0}
        for line in body_received.decode().splitlines():
            name, _, value = line.rpartition(" ")
            name = name.partition("{")[0]
            if name in sums:
                sums[name] += float(value)
        return round(sums[ALLOWED]), round(sums[BLOCKED]), round(sums[WORKERS])


@contextmanager
def application(
    root: Path, python: Path, folder: Path, name: str, *options: str, variables: dict[str, str] | None = None
) -> Iterator[Server]:
    """An application of the benchmarks, on the fastest setup of uvicorn."""
    port = free_port()
    command = [str(python), "-m", "uvicorn", name, "--port", str(port), "--loop", "uvloop", "--http", "httptools"]
    command += ["--no-access-log", "--log-level", "error", *options]
    with started(command, root, folder, variables or {}, port) as server:
        server.wait("/")
        yield server


@contextmanager
def echo(root: Path, python: Path, workers: int, folder: Path) -> Iterator[Server]:
    """The application that does nothing."""
    options = ("--workers", str(workers), "--lifespan", "off")
    with application(root, python, folder, "benchmarks.service.echo:app", *options) as server:
        yield server


@contextmanager
def service(
    python: Path, workers: int, folder: Path, settings: dict[str, Any], *, needs_key: bool = False, grpc_port: int = 0
) -> Iterator[Server]:
    """`crestgate serve`, with counters and rules where it keeps them by default: below the folder it is started in."""
    (folder / "crestgate.yaml").write_text(json.dumps(settings))  # which is YAML, too
    crestgate = str(python.with_name("crestgate"))
    token = ""
    if needs_key:
        command = [crestgate, "keys", "create", "benchmark", "--scope", "check"]
        made = subprocess.run(
            command, cwd=folder, env=environment(), check=True, timeout=60, capture_output=True, text=True
        )
        token = made.stdout.strip()
    port = free_port()
    variables = {"CRESTGATE_SERVER__HTTP": f"127.0.0.1:{port}", "CRESTGATE_SERVER__GRPC": f"127.0.0.1:{grpc_port}"}
    variables["CRESTGATE_ADMIN_KEY"] = secrets.token_hex(16)
    command = [crestgate, "serve", "--workers", str(workers)]
    with started(command, folder, folder, variables, port, token) as server:
        server.wait("/readyz")
        deadline = time.monotonic() + START_SECONDS
        while server.totals()[2] < workers:
            if time.monotonic() > deadline:
                raise RuntimeError(f"{workers} workers were asked for, and there are {server.totals()[2]}")
            time.sleep(0.1)
        yield server


@contextmanager
def started(
    command: list[str], cwd: Path, folder: Path, variables: dict[str, str], port: int, token: str = ""
) -> Iterator[Server]:
    """A server by its command; it need not answer yet."""
    log = folder / "log"
    variables = variables | {"TMPDIR": str(folder)}  # files of a killed server are removed with the folder
    with (
        log.open("wb") as written,
        child(command, folder=cwd, variables=variables, stdout=subprocess.DEVNULL, stderr=written) as process,
    ):
        yield Server(process, port, log, token, variables.get("CRESTGATE_ADMIN_KEY", ""))


def free_port() -> int:
    with socket.create_server(("127.0.0.1", 0)) as found:
        port: int = found.getsockname()[1]
    return port
