"""The frameworks part: all applications run, and wrk calls one of them at a time."""

from __future__ import annotations

import json
import tempfile
import time
from contextlib import ExitStack, closing
from dataclasses import dataclass
from pathlib import Path
from urllib.parse import urlsplit

from benchmarks import environments, machine
from benchmarks.frameworks.entry import AMOUNT, ANSWER, ENTRIES, OURS, PLENTY, STORE, Entry
from benchmarks.frameworks.redis_figures import RedisFigures
from benchmarks.frameworks.results import Measured, Results, Turn
from benchmarks.private_servers import private_server, server_version
from benchmarks.service import serving, wrk
from benchmarks.service.serving import Server

__all__ = ["CONNECTIONS", "DEADLINE_MS", "measure"]

CONNECTIONS = 64
DEADLINE_MS = 5000
"""Of Crestgate's checks in Redis: its usual one lets requests pass uncounted where a machine is busy with others."""
SERVING = ("crestgate", "fastapi", "starlette", "uvicorn", "uvloop", "httptools")
LIBRARIES = (*SERVING, "slowapi", "limits", "fastapi-limiter", "pyrate-limiter", "redis", "hiredis")
SCRIPT = Path(__file__).with_name("requests.lua")


@dataclass(frozen=True)
class Pace:
    """Rounds that count, and the seconds of a turn."""

    rounds: int
    seconds: int


REAL, QUICK = Pace(7, 1), Pace(2, 1)


def measure(root: Path, quick: bool) -> Results:
    described = machine.described()
    pace = QUICK if quick else REAL
    builds = environments.installed(root)
    build = "compiled" if "compiled" in builds else "pure"
    began = time.monotonic()
    with (
        tempfile.TemporaryDirectory(prefix="crestgate-bench-") as folder,
        private_server("redis") as redis_url,
        closing(RedisFigures(redis_url)) as redis,
    ):
        run = Run(root, environments.python(root, build), Path(folder), redis_url, redis)
        print("  does everybody refuse what is too much", flush=True)
        for entry in ENTRIES:
            if entry.store:
                run.try_limit(entry)
        redis.forget()
        measured = run.held(pace)
    return Results(
        quick=quick,
        date=machine.today(),
        machine=described,
        versions=machine.library_versions(*LIBRARIES) | {"wrk": wrk.version(), "redis-server": server_version("redis")},
        build=builds[build],
        measured=measured,
        rounds=pace.rounds,
        turn_seconds=pace.seconds,
        seconds=time.monotonic() - began,
    )


class Run:
    """One run, with a folder for the files of its servers, and a Redis in which each has its own database."""

    def __init__(self, root: Path, python: Path, folder: Path, redis_url: str, redis: RedisFigures) -> None:
        self.root = root
        self.python = python
        self.folder = folder
        self.redis_url = redis_url
        self.redis = redis

    def try_limit(self, entry: Entry) -> None:
        """With one request a minute, more of them are refused. (Two may pass where a minute ends between them.)"""
        with ExitStack() as stack:
            server = self.started(stack, entry, 1)  # its first request is answered when it has started
            statuses = [server.call("GET", "/")[0] for _ in range(3)]
        if 429 not in statuses or not set(statuses) <= {200, 429}:
            raise RuntimeError(f"{entry.label}: of one request a minute, more are answered with {statuses}")

    def held(self, pace: Pace) -> list[Measured]:
        """Each contender has a turn in each round, in rotating order; the first round does not count."""
        with ExitStack() as stack:
            print(f"  {len(ENTRIES)} applications, connections: {CONNECTIONS}", flush=True)
            servers = {entry: self.started(stack, entry, PLENTY) for entry in ENTRIES}
            turns: dict[Entry, list[Turn]] = {entry: [] for entry in ENTRIES}
            for entry in ENTRIES:
                _answers(servers[entry], entry)
            for done in range(pace.rounds + 1):
                begin = done % len(ENTRIES)
                for entry in ENTRIES[begin:] + ENTRIES[:begin]:
                    turn = self.turn(servers[entry], pace.seconds if done else 1)
                    if done:
                        turns[entry].append(turn)
            for entry in ENTRIES:
                _answers(servers[entry], entry)
        return [Measured(entry, mine) for entry, mine in turns.items()]

    def started(self, stack: ExitStack, entry: Entry, amount: int) -> Server:
        folder = self.folder / f"{ENTRIES.index(entry)}-{amount}"
        folder.mkdir()
        variables = {STORE: self.store(entry, folder), AMOUNT: str(amount)}
        server = serving.application(
            self.root, self.python, folder, entry.application, "--factory", variables=variables
        )
        return stack.enter_context(server)

    def store(self, entry: Entry, folder: Path) -> str:
        """The URL of its store."""
        if entry.store == "redis":
            database = urlsplit(self.redis_url)._replace(path=f"/{ENTRIES.index(entry)}").geturl()
            return f"{database}?timeout_ms={DEADLINE_MS}" if entry.library == OURS else database
        return {"memory": "memory://", "shared": f"shared://{folder}/counters"}.get(entry.store, "")

    def turn(self, server: Server, seconds: int) -> Turn:
        used, redis = server.processor_seconds(), self.redis.load()
        found = wrk.ask_with(SCRIPT, server.url("/"), seconds, CONNECTIONS)
        used_then, redis_then = server.processor_seconds(), self.redis.load()
        return Turn(
            per_second=found.requests / found.seconds,
            p50=found.p50,
            p99=found.p99,
            processor=(used_then - used) * 1e6 / found.requests,
            calls=(redis_then.reads - redis.reads - 1) / found.requests,  # one was ours
            redis_processor=(redis_then.processor_seconds - redis.processor_seconds) * 1e6 / found.requests,
        )


def _answers(server: Server, entry: Entry) -> None:
    """Check its response, and that its log has no errors, such as that its store does not answer."""
    status, body = server.call("GET", "/")
    if status != 200 or json.loads(body) != ANSWER:
        raise RuntimeError(f"{entry.label} answered with {status} {body.decode(errors='replace')[:500]}")
    if server.written():
        raise RuntimeError(f"{entry.label} is not well: {server.written()[:1000]}")
