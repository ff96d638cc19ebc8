"""The growth part: keys, chains, rules, callers, processes and workers, one after another."""

from __future__ import annotations

import json
import subprocess
import tempfile
import time
from dataclasses import replace
from pathlib import Path
from typing import Any

from benchmarks import children, environments, machine
from benchmarks.growth import processes, rule_sets, workers
from benchmarks.growth.in_process import KEYS
from benchmarks.growth.results import Results
from benchmarks.network.entry import Entry
from benchmarks.network.results import Measured, Outcome
from benchmarks.network.rounds import Pace, take_turns
from benchmarks.private_servers import private_server

__all__ = ["CALLERS", "measure"]

CALLERS = (1, 10, 100, 1_000)
LARGEST, NEEDED_BYTES = 10_000_000, 8 * 10**9
"""As many keys only with so much memory free."""
SHARED_LARGEST = 1_000_000
QUICK_LARGEST = 100_000


def measure(root: Path, quick: bool) -> Results:
    described = machine.described()
    builds = environments.installed(root)
    build = "compiled" if "compiled" in builds else "pure"
    python = environments.python(root, build)
    began = time.monotonic()

    def in_process(*words: object) -> Any:
        print(f"  {words[0]}, {words[1]}", flush=True)
        command = [str(python), "-m", "benchmarks.growth.in_process", *map(str, words)]
        done = subprocess.run(
            command, cwd=root, env=children.environment(), check=True, stdout=subprocess.PIPE, timeout=300
        )
        return json.loads(done.stdout)

    rounds = 10 if quick else 60
    keys = {
        "memory": in_process("keys", "memory", rounds, QUICK_LARGEST if quick else _largest()),
        "shared": in_process("keys", "shared", rounds, QUICK_LARGEST if quick else SHARED_LARGEST),
    }
    chain = {store: in_process("chain", store, rounds) for store in ("memory", "shared")}
    print("  rules", flush=True)
    rules = rule_sets.ask(python, root, quick)
    print("  callers of a Redis", flush=True)
    callers = _callers(root, build, quick)
    print("  processes", flush=True)
    crowds = _processes(python, root, quick)
    print("  workers", flush=True)
    return Results(
        quick=quick,
        date=machine.today(),
        machine=described,
        build=builds[build],
        keys=keys,
        chain=chain,
        rules=rules,
        callers=callers,
        processes=crowds,
        workers=workers.held(python, 2 if quick else 4, 1),
        seconds=time.monotonic() - began,
    )


def _largest() -> int:
    lines = Path("/proc/meminfo").read_text().splitlines()
    free = next(int(line.split()[1]) * 1024 for line in lines if line.startswith("MemAvailable:"))
    return LARGEST if free > NEEDED_BYTES else max(size for size in KEYS if size < LARGEST)


def _callers(root: Path, build: str, quick: bool) -> Outcome:
    pace = Pace(2, 0.2) if quick else Pace(7, 0.4)
    with private_server("redis") as url:
        default = Entry("", "crestgate", url, build=build)
        entries = [replace(default, label=f"{count:,}", callers=count) for count in CALLERS]
        rounds = take_turns(root, entries, pace)
    measured = [Measured(entry, turns) for entry, turns in rounds.turns.items()]
    return Outcome("callers", measured, pace.rounds, rounds.seconds)


def _processes(python: Path, root: Path, quick: bool) -> dict[str, dict[str, list[dict[str, float]]]]:
    turns, seconds = (2, 0.2) if quick else (5, 0.4)
    found: dict[str, dict[str, list[dict[str, float]]]] = {}
    with tempfile.TemporaryDirectory(prefix="crestgate-bench-", dir=machine.memory_folder()) as folder:
        for name, url in {"memory": "memory://", "shared": f"shared://{folder}/counters"}.items():
            found[name] = {
                str(count): processes.held(python, root, url, count, turns, seconds) for count in processes.PROCESSES
            }
    return found
