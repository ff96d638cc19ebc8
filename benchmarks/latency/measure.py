"""The latency part: one service for each store, all on one core, and one client on another, turn by turn."""

from __future__ import annotations

import json
import os
import tempfile
import time
from contextlib import ExitStack
from dataclasses import dataclass, replace
from pathlib import Path

from benchmarks import environments, machine
from benchmarks.latency.client import call_once, on_cores, run_turn
from benchmarks.latency.entry import ENTRIES, SHARES, STORES, Entry, requests_of, settings
from benchmarks.latency.load import Order
from benchmarks.latency.results import Measured, Results, Turn
from benchmarks.private_servers import KINDS, private_server, server_version
from benchmarks.rpc.entry import LIMITS_FILE, limits
from benchmarks.service import serving
from benchmarks.service.serving import Server

__all__ = ["measure"]

LIBRARIES = ("crestgate", "uvloop", "hiredis", "PyMySQL")
DEADLINE_MS = 5000
"""Of the stores: what is late is slow here, and not an error."""


@dataclass(frozen=True)
class Pace:
    """Rounds, and the seconds of a turn."""

    rounds: int
    seconds: float


REAL, QUICK = Pace(3, 1.5), Pace(2, 0.3)


@dataclass(frozen=True)
class Running:
    """A service that answers both protocols."""

    server: Server
    ports: dict[str, int]


def measure(root: Path, quick: bool) -> Results:
    described = machine.described()
    pace = QUICK if quick else REAL
    builds = environments.installed(root)
    build = "compiled" if "compiled" in builds else "pure"
    began = time.monotonic()
    left_out: list[str] = []
    with tempfile.TemporaryDirectory(prefix="crestgate-bench-", dir=machine.memory_folder()) as folder:
        measured = Run(environments.python(root, build), Path(folder)).held(pace, left_out)
    servers = {KINDS[kind]: server_version(kind) for kind in ("redis", "mariadb")}
    return Results(
        quick=quick,
        date=machine.today(),
        machine=described,
        versions=machine.library_versions(*LIBRARIES) | servers,
        build=builds[build],
        measured=measured,
        rounds=pace.rounds,
        turn_seconds=pace.seconds,
        seconds=time.monotonic() - began,
        left_out=left_out,
    )


class Run:
    """One run: services on the first core; Redis, MariaDB and the client on the others."""

    def __init__(self, python: Path, folder: Path) -> None:
        self.python = python
        self.folder = folder
        cores = sorted(os.sched_getaffinity(0))
        self.serving, self.asking = {cores[0]}, set(cores[1:]) or {cores[0]}
        self.bodies = {protocol: requests_of(protocol) for protocol in {entry.protocol for entry in ENTRIES}}
        self.turns = 0

    def held(self, pace: Pace, left_out: list[str]) -> list[Measured]:
        """One store after another, since a database writes to its disk for a while after its turns."""
        measured: dict[Entry, Measured] = {}
        with on_cores(self.asking):
            for store in STORES:
                print(f"  {STORES[store]}", flush=True)
                with ExitStack() as stack:
                    running = self.started(stack, store)
                    for entry in (entry for entry in ENTRIES if entry.store == store):
                        try:
                            measured[entry] = self.measured(running, entry, pace)
                        except RuntimeError as error:
                            left_out.append(f"{entry.label}: {error}")
        return [measured[entry] for entry in ENTRIES if entry in measured]

    def started(self, stack: ExitStack, store: str) -> Running:
        folder = self.folder / store
        folder.mkdir()
        url = {"memory": "memory://", "shared": ""}.get(store)
        if url is None:
            url = f"{stack.enter_context(private_server(store))}?timeout_ms={DEADLINE_MS}"
        port = serving.free_port()
        (folder / LIMITS_FILE).write_text(json.dumps(limits()))  # which is YAML, too
        with on_cores(self.serving):  # which its processes inherit
            server = stack.enter_context(serving.service(self.python, 1, folder, settings(url), grpc_port=port))
        return Running(server, {"http": server.port, "grpc": port})

    def measured(self, running: Running, entry: Entry, pace: Pace) -> Measured:
        """Turns without a pause, and then at the shares of their rate, in rotating order."""
        order = self.order(running, entry, pace)
        call_once(order)
        run_turn(running.server, order)
        full = [self.turn(running, order) for _ in range(pace.rounds)]
        capacity = sorted(turn.per_second for turn in full)[len(full) // 2]
        at: dict[str, list[Turn]] = {f"{share:.0%}".replace("%", " %"): [] for share in SHARES}
        for number in range(pace.rounds):
            places = list(zip(at, SHARES, strict=True))
            begin = number % len(places)
            for name, share in places[begin:] + places[:begin]:
                at[name].append(self.turn(running, replace(order, rate=capacity * share)))
        return Measured(entry, full, at)

    def turn(self, running: Running, order: Order) -> Turn:
        self.turns += 1
        return run_turn(running.server, replace(order, seed=self.turns, first=self.turns * 997))

    def order(self, running: Running, entry: Entry, pace: Pace) -> Order:
        return Order(
            protocol=entry.protocol,
            port=running.ports[entry.protocol],
            path=entry.path,
            bodies=self.bodies[entry.protocol],
            first=0,
            seconds=pace.seconds,
            connections=entry.connections,
            in_flight=entry.in_flight,
        )
