"""The second part: all contests, each on its server."""

from __future__ import annotations

import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from itertools import groupby
from pathlib import Path

from benchmarks import environments, machine
from benchmarks.network.contests import CONTESTS, Contest
from benchmarks.network.results import Measured, Outcome, Results
from benchmarks.network.rounds import Pace, take_turns
from benchmarks.private_servers import KINDS, private_server, server_version

__all__ = ["measure"]

LIBRARIES = ("crestgate", "limits", "throttled-py", "pyrate-limiter", "redis", "hiredis", "coredis", "uvloop")
DRIVERS = ("PyMySQL", "psycopg")
QUICK_ROUNDS = 2


def measure(root: Path, quick: bool) -> Results:
    described = machine.described() | {"flush": machine.flush_time()}
    builds = environments.installed(root)
    began = time.monotonic()
    outcomes: dict[str, Outcome] = {}
    left_out: list[str] = []
    for kind, contests in groupby(CONTESTS, key=lambda contest: contest.server):
        with _server(kind) as url:
            for contest in contests:
                print(f"  {contest.name}", flush=True)
                outcomes[contest.name] = _held(root, contest, url, quick, builds, left_out)
    return Results(
        quick=quick,
        date=machine.today(),
        machine=described,
        versions=machine.library_versions(*LIBRARIES, *DRIVERS)
        | {program: server_version(kind) for kind, program in KINDS.items()},
        outcomes=outcomes,
        left_out=sorted(set(left_out)),
        seconds=time.monotonic() - began,
    )


def _held(root: Path, contest: Contest, url: str, quick: bool, builds: dict[str, str], left_out: list[str]) -> Outcome:
    pace = Pace(QUICK_ROUNDS, contest.pace.seconds / 2) if quick else contest.pace
    entries = contest.entries(url)
    if "compiled" not in builds:  # there is no compiler: everything is plain Python
        entries = [replace(entry, build="pure") for entry in entries]
    rounds = take_turns(root, entries, pace)
    left_out += rounds.left_out
    measured = [Measured(entry, turns) for entry, turns in rounds.turns.items()]
    return Outcome(contest.name, measured, pace.rounds, rounds.seconds)


@contextmanager
def _server(kind: str) -> Iterator[str]:
    if kind in KINDS:
        with private_server(kind) as url:
            yield url
        return
    with tempfile.TemporaryDirectory(prefix="crestgate-bench-") as folder:
        yield f"sqlite:///{folder}/counters.db"
