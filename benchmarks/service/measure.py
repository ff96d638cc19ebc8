"""The service part: all servers of a contest run, and wrk calls one of them at a time."""

from __future__ import annotations

import json
import subprocess
import tempfile
import time
from contextlib import ExitStack
from dataclasses import dataclass
from itertools import count
from pathlib import Path

from benchmarks import children, environments, machine
from benchmarks.private_servers import private_server, server_version
from benchmarks.service import serving, wrk
from benchmarks.service.entry import CONTESTS, FORMS, Contest, Entry, Served, bodies
from benchmarks.service.results import Measured, Outcome, Results, Turn
from benchmarks.service.serving import Server

__all__ = ["counted", "measure"]

LIBRARIES = ("crestgate", "uvicorn", "uvloop", "httptools", "msgspec", "structlog", "hiredis")
COUNTED_SECONDS = 5
"""A worker tells its numbers every second; it may be late where all are busy."""


@dataclass(frozen=True)
class Pace:
    """Rounds that count, the seconds of a turn, and rounds of the measurement without a server."""

    rounds: int
    seconds: int
    countings: int


REAL, QUICK = Pace(7, 1, 40), Pace(2, 1, 10)


def measure(root: Path, quick: bool) -> Results:
    described = machine.described()
    pace = QUICK if quick else REAL
    builds = environments.installed(root)
    build = "compiled" if "compiled" in builds else "pure"
    python = environments.python(root, build)
    began = time.monotonic()
    counting = _counting(root, python, pace.countings)
    with tempfile.TemporaryDirectory(prefix="crestgate-bench-") as folder, private_server("redis") as redis_url:
        run = Run(root, python, Path(folder), redis_url)
        outcomes = [run.held(contest, pace) for contest in CONTESTS]
    return Results(
        quick=quick,
        date=machine.today(),
        machine=described,
        versions=machine.library_versions(*LIBRARIES) | {"wrk": wrk.version(), "redis-server": server_version("redis")},
        build=builds[build],
        outcomes=outcomes,
        counting=counting,
        seconds=time.monotonic() - began,
    )


class Run:
    """One run, with a folder for the request bodies and for the files of the servers."""

    def __init__(self, root: Path, python: Path, folder: Path, redis_url: str) -> None:
        self.root = root
        self.python = python
        self.folder = folder
        self.redis_url = redis_url
        self.bodies = {form: folder / f"{form}.txt" for form in FORMS}
        for form, path in self.bodies.items():
            path.write_text("".join(f"{body}\n" for body in bodies(form)))
        self.numbers = count()

    def held(self, contest: Contest, pace: Pace) -> Outcome:
        """Each contender has a turn in each round, in rotating order; the first round does not count."""
        with ExitStack() as stack:
            print(f"  {len(contest.servers)} servers, workers each: {contest.workers}", flush=True)
            servers = {one.name: self.started(stack, one, contest.workers) for one in contest.servers}
            totals = dict.fromkeys(servers, 0)
            turns: dict[Entry, list[Turn]] = {entry: [] for entry in contest.entries}
            for entry in contest.entries:
                self.try_once(servers[entry.served], entry)
            for done in range(pace.rounds + 1):
                begin = done % len(contest.entries)
                for entry in contest.entries[begin:] + contest.entries[:begin]:
                    answered, turn = self.turn(servers[entry.served], entry, pace.seconds if done else 1)
                    totals[entry.served] += answered * entry.decisions
                    if done:
                        turns[entry].append(turn)
            for one in contest.servers:
                if not one.echo:
                    counted(servers[one.name], one.name, totals[one.name], contest.workers)
        measured = [Measured(entry, mine) for entry, mine in turns.items()]
        return Outcome(contest.workers, measured, pace.rounds, pace.seconds)

    def started(self, stack: ExitStack, served: Served, workers: int) -> Server:
        folder = self.folder / f"{served.name}-{workers}"
        folder.mkdir()
        if served.echo:
            return stack.enter_context(serving.echo(self.root, self.python, workers, folder))
        settings = served.written(self.redis_url)
        return stack.enter_context(serving.service(self.python, workers, folder, settings, needs_key=served.needs_key))

    def try_once(self, server: Server, entry: Entry) -> None:
        """Check that a request gets the correct response, and that a check that needs a key is refused without one."""
        with self.bodies[entry.form].open() as file:
            body = file.readline().rstrip("\n")
        status, response_body = server.call("POST", entry.path, body, server.token)
        answer = json.loads(response_body)
        if entry.served == "echo":
            right = answer == json.loads(body)
        else:
            decisions = answer.get("decisions", [answer])
            right = len(decisions) == entry.decisions and all(
                one.get("allowed") is True and one.get("reason") == "ok" for one in decisions
            )
        if status != 200 or not right:
            raise RuntimeError(
                f"{entry.label} was answered with {status} {response_body.decode(errors='replace')[:500]}"
            )
        if server.token and server.call("POST", entry.path, body)[0] != 401:
            raise RuntimeError(f"{entry.label}: a key is needed, and without one a check is answered")

    def turn(self, server: Server, entry: Entry, seconds: int) -> tuple[int, Turn]:
        """The number of answered requests, and their figures."""
        fresh = f"turn-{next(self.numbers)}-" if entry.fresh else ""
        before = server.processor_seconds()
        found = wrk.ask(server.url(entry.path), self.bodies[entry.form], seconds, token=server.token, fresh=fresh)
        used = server.processor_seconds() - before
        turn = Turn(found.requests / found.seconds, found.p50, found.p99, used * 1e6 / found.requests)
        return found.requests, turn


def counted(server: Server, name: str, answered: int, workers: int) -> None:
    """Check that the service counted the answered requests, or a few more: wrk disconnects during the last ones."""
    deadline = time.monotonic() + COUNTED_SECONDS
    allowed, blocked, alive = server.totals()
    while (allowed < answered or alive < workers) and time.monotonic() < deadline:
        time.sleep(0.1)
        allowed, blocked, alive = server.totals()
    if allowed < answered or blocked or alive < workers:
        raise RuntimeError(
            f"the service {name!r} answered {answered} checks, and says that {allowed} were allowed and {blocked} "
            f"blocked, by {alive} of {workers} workers"
        )


def _counting(root: Path, python: Path, rounds: int) -> dict[str, list[float]]:
    print("  what metrics cost", flush=True)
    command = [str(python), "-m", "benchmarks.service.counting", str(rounds)]
    done = subprocess.run(
        command, cwd=root, env=children.environment(), check=True, stdout=subprocess.PIPE, timeout=600
    )
    found: dict[str, list[float]] = json.loads(done.stdout)
    return found
