"""All services run on one core; Redis and the client, which asks one of them at a time, on another."""

from __future__ import annotations

import json
import os
import tempfile
import time
from contextlib import ExitStack
from dataclasses import dataclass, replace
from pathlib import Path
from urllib.parse import urlsplit

from benchmarks import environments, machine
from benchmarks.latency.client import call_once, on_cores, run_turn
from benchmarks.latency.entry import settings
from benchmarks.latency.load import Order
from benchmarks.latency.results import Turn
from benchmarks.latency.wire import FailedCallError
from benchmarks.peer_services.entry import (
    ENTRIES,
    KEYS,
    RATELIMIT_ENVIRONMENT,
    Entry,
    gubernator_environment,
    is_admitted,
    requests_of,
)
from benchmarks.peer_services.install import (
    GUBERNATOR,
    NOT_PACKAGED,
    RATELIMIT,
    NotInstalledError,
    install_program,
)
from benchmarks.peer_services.results import LIGHT, Measured, Results
from benchmarks.private_servers import private_server, server_version
from benchmarks.rpc.entry import LIMITS_FILE, limits
from benchmarks.service import serving
from benchmarks.service.serving import START_SECONDS, Server

__all__ = ["measure"]

CONNECTIONS, IN_FLIGHT = 4, 64
DEADLINE_MS = 5000
"""Of Crestgate's Redis: what is late is slow here, and not an error."""
PIPELINE_WINDOW = "150us"
"""What ratelimit's client for Redis waits by default where nothing is said; ratelimit itself does not wait."""
PROGRAMS = {"ratelimit": RATELIMIT, "gubernator": GUBERNATOR}


@dataclass(frozen=True)
class Pace:
    """Rounds that count, and the seconds of a turn."""

    rounds: int
    seconds: float


REAL, QUICK = Pace(4, 1.0), Pace(2, 0.3)


@dataclass(frozen=True)
class Running:
    """A service, and its port for gRPC."""

    server: Server
    port: int


def measure(root: Path, quick: bool) -> Results:
    described = machine.described()
    pace = QUICK if quick else REAL
    builds = environments.installed(root)
    build = "compiled" if "compiled" in builds else "pure"
    began = time.monotonic()
    left_out = [NOT_PACKAGED]
    programs: dict[str, Path] = {}
    for name, program in PROGRAMS.items():
        try:
            programs[name] = install_program(root, program)
        except NotInstalledError as error:
            left_out.append(str(error))
    with (
        tempfile.TemporaryDirectory(prefix="crestgate-bench-", dir=machine.memory_folder()) as folder,
        ExitStack() as stack,
    ):
        run = Run(environments.python(root, build), Path(folder), programs)
        measured = run.held(stack, pace, left_out)
    versions = {PROGRAMS[name].name: PROGRAMS[name].version for name in programs}
    return Results(
        quick=quick,
        date=machine.today(),
        machine=described,
        versions=machine.library_versions("crestgate") | versions | {"redis-server": server_version("redis")},
        build=builds[build],
        measured=measured,
        rounds=pace.rounds,
        turn_seconds=pace.seconds,
        seconds=time.monotonic() - began,
        left_out=left_out,
    )


class Run:
    """One run, with a folder for the files of its servers."""

    def __init__(self, python: Path, folder: Path, programs: dict[str, Path]) -> None:
        self.python = python
        self.folder = folder
        self.programs = programs
        cores = sorted(os.sched_getaffinity(0))
        self.serving, self.asking = {cores[0]}, set(cores[1:]) or {cores[0]}
        self.turns = 0

    def held(self, stack: ExitStack, pace: Pace, left_out: list[str]) -> list[Measured]:
        """Each service has a turn in each round, in rotating order; the first round does not count."""
        with on_cores(self.asking):
            redis_url = stack.enter_context(private_server("redis"))
            running: dict[Entry, Running] = {}
            for entry in ENTRIES:
                if entry.served != "crestgate" and entry.served not in self.programs:
                    continue
                try:
                    running[entry] = self.started(stack, entry, redis_url)
                except RuntimeError as error:
                    if entry.served == "crestgate":
                        raise  # a benchmark of Crestgate needs Crestgate
                    left_out.append(f"{entry.label}: {error}")
            return [one for keys in KEYS for one in self.contest(running, keys, pace)]

    def contest(self, running: dict[Entry, Running], keys: int, pace: Pace) -> list[Measured]:
        print(f"  {len(running)} services, keys: {keys:,}", flush=True)
        orders = {entry: self.order(entry, one.port, keys, pace) for entry, one in running.items()}
        full: dict[Entry, list[Turn]] = {entry: [] for entry in running}
        light: dict[Entry, list[Turn]] = {entry: [] for entry in running}
        entries = list(running)
        for done in range(pace.rounds + 1):
            begin = done % len(entries)
            for rate, turns in ((0, full), (LIGHT, light)):
                for entry in entries[begin:] + entries[:begin]:
                    self.turns += 1
                    order = replace(orders[entry], rate=rate, seed=self.turns, first=self.turns * 997)
                    turn = run_turn(running[entry].server, order)
                    if done:
                        turns[entry].append(turn)
        return [Measured(entry, keys, full[entry], light[entry]) for entry in entries]

    def order(self, entry: Entry, port: int, keys: int, pace: Pace) -> Order:
        bodies = requests_of(entry, keys)
        return Order("grpc", port, entry.method, bodies, 0, pace.seconds, CONNECTIONS, IN_FLIGHT)

    def started(self, stack: ExitStack, entry: Entry, redis_url: str) -> Running:
        """The service, when it has answered a call."""
        folder = self.folder / entry.name
        folder.mkdir()
        port = serving.free_port()
        with on_cores(self.serving):  # which its processes inherit
            if entry.served == "crestgate":
                url = {"memory": "memory://", "shared": ""}.get(entry.store, f"{redis_url}?timeout_ms={DEADLINE_MS}")
                (folder / LIMITS_FILE).write_text(json.dumps(limits()))  # which is YAML, too
                server = stack.enter_context(serving.service(self.python, 1, folder, settings(url), grpc_port=port))
            else:
                variables = self.variables(entry, folder, port, redis_url)
                command = [str(self.programs[entry.served])]
                server = stack.enter_context(serving.started(command, folder, folder, variables, port))
        _answers(server, entry, self.order(entry, port, 1, QUICK))
        return Running(server, port)

    def variables(self, entry: Entry, folder: Path, port: int, redis_url: str) -> dict[str, str]:
        """The environment of a peer, which configures it."""
        if entry.served == "gubernator":
            return gubernator_environment(port, serving.free_port(), serving.free_port())
        config = folder / "ratelimit" / "config"
        config.mkdir(parents=True)
        (config / "limits.yaml").write_text(json.dumps(limits()))
        return RATELIMIT_ENVIRONMENT | {
            "PORT": str(serving.free_port()),
            "DEBUG_PORT": str(serving.free_port()),
            "GRPC_PORT": str(port),
            "RUNTIME_ROOT": str(folder),
            "REDIS_URL": urlsplit(redis_url).netloc,
            **({"REDIS_PIPELINE_WINDOW": PIPELINE_WINDOW} if entry.pipelines else {}),
        }


def _answers(server: Server, entry: Entry, order: Order) -> None:
    """Wait until a call is answered, and check that the answer is an admission."""
    deadline = time.monotonic() + START_SECONDS
    while True:
        try:
            message = call_once(order)
        except (OSError, FailedCallError) as error:
            if time.monotonic() > deadline:
                log = server.written().splitlines()[-5:]
                raise RuntimeError(f"does not answer ({error}): {' '.join(log)[-500:]}") from None
            time.sleep(0.1)
        else:
            if not is_admitted(entry, message):
                raise RuntimeError(f"answered with {message!r}")
            return
