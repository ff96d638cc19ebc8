"""What is measured, in which order, and how long: the plan of a run.

Four comparisons, each with both builds of Headgate: an admitted check in memory, a denied check in memory, the bytes
that a key costs, and a check in shared memory against the peers' calls to a Redis on loopback.
"""

from __future__ import annotations

import argparse
import datetime as dt
import json
import os
import platform
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from importlib.metadata import version
from pathlib import Path

from benchmarks import children, environments, figures, page, picture, turns
from benchmarks.candidates import ALGORITHMS, MEMORY_PEERS, REDIS_PEERS, Setup
from benchmarks.redis_server import private_redis, redis_version
from benchmarks.turns import Pace

__all__: list[str] = []

ROOT = Path(__file__).resolve().parent.parent
DENIED = ("fixed_window", "sliding_window_counter", "sliding_window_log")
"""The algorithms of `limits`."""
PLENTY = 1_000_000


@dataclass(frozen=True)
class Plan:
    """How much of everything. A turn is some milliseconds at most; a key sees about two hundred checks in all."""

    memory: Pace
    shared: Pace
    keys_for_bytes: int


REAL = Plan(Pace(150, 1000, 1000, 1000, 6.0), Pace(100, 1000, 150, 1000, 40.0), 50_000)
QUICK = Plan(Pace(15, 1000, 1000, 1000, 1.0), Pace(11, 1000, 100, 1000, 4.0), 5_000)


class Run:
    """One run with one plan; what could not take part is remembered by the way."""

    def __init__(self, plan: Plan, builds: dict[str, str], folder: Path) -> None:
        self.plan = plan
        self.builds = builds
        self.folder = folder
        self.left_out: list[str] = []

    def build(self, name: str, redis_url: str) -> figures.Build:
        """Everything that is measured in turns with one build."""
        python = environments.python(ROOT, name)
        admitted = [self.memory(python, algorithm, PLENTY, "minute") for algorithm in ALGORITHMS]
        denied = [self.memory(python, algorithm, 1, "hour") for algorithm in DENIED]
        return figures.Build(
            name,
            self.builds[name],
            admitted=[one for one in admitted if one is not None],
            denied=[one for one in denied if one is not None],
            shared=self.shared(name, python, redis_url),
            bytes_per_key={algorithm: self.bytes(python, "headgate", algorithm) for algorithm in ALGORITHMS},
        )

    def memory(self, python: Path, algorithm: str, amount: int, period: str) -> figures.Contest | None:
        say(f"  memory, {algorithm}, {'admitted' if amount > 1 else 'denied'}")
        ours = Setup("headgate", algorithm, "memory://", amount, period)
        theirs = [Setup(peer, algorithm, "memory://", amount, period) for peer in MEMORY_PEERS[algorithm]]
        times = self.turns(python, [ours, *theirs], self.plan.memory, admitted=amount > 1)
        return figures.contest(ours, theirs, times)

    def shared(self, name: str, python: Path, redis_url: str) -> list[figures.Contest]:
        """All algorithms in shared memory and all calls to Redis, in the same rounds."""
        say("  shared memory and Redis")
        ours = [
            Setup("headgate", algorithm, f"shared://{self.folder}/{name}-{algorithm}", PLENTY, "minute")
            for algorithm in ALGORITHMS
        ]
        theirs = [Setup(library, algorithm, redis_url, PLENTY, "minute") for library, algorithm in REDIS_PEERS]
        times = self.turns(python, [*ours, *theirs], self.plan.shared, admitted=True)
        contests = [figures.contest(one, theirs, times) for one in ours]
        return [one for one in contests if one is not None]

    def turns(
        self, python: Path, setups: Sequence[Setup], pace: Pace, *, admitted: bool
    ) -> dict[Setup, list[float] | str]:
        times = turns.take_turns(python, ROOT, setups, pace, admitted=admitted)
        self.left_out += [problem for problem in times.values() if isinstance(problem, str)]
        return times

    def bytes(self, python: Path, library: str, algorithm: str) -> float:
        say(f"  bytes per key, {library}, {algorithm}")
        store = f"memory://?max_keys={PLENTY}" if library == "headgate" else "memory://"
        setup = Setup(library, algorithm, store, PLENTY, "hour")
        return turns.bytes_per_key(python, ROOT, setup, self.plan.keys_for_bytes)

    def peers_bytes(self) -> dict[str, dict[str, float]]:
        """Once is enough: the peers are the same in both environments."""
        python = environments.python(ROOT, "pure")
        found: dict[str, dict[str, float]] = {}
        for algorithm, peers in MEMORY_PEERS.items():
            found[algorithm] = {}
            for peer in peers:
                try:
                    found[algorithm][peer] = self.bytes(python, peer, algorithm)
                except turns.ContenderError as error:
                    self.left_out.append(str(error))
        return found


def main() -> int:
    parser = argparse.ArgumentParser()
    parser.add_argument("--quick", action="store_true")
    quick: bool = parser.parse_args().quick
    children.end_them_when_asked_to_stop()
    began = time.monotonic()
    load = f"{os.getloadavg()[0]:.2f}"
    with tempfile.TemporaryDirectory(prefix="headgate-bench-", dir=memory_folder()) as folder:
        run = Run(QUICK if quick else REAL, installed(), Path(folder))
        with private_redis(Path(folder)) as redis_url:
            builds = []
            for name in run.builds:
                say(f"{run.builds[name]}:")
                builds.append(run.build(name, redis_url))
        say("the peers:")
        results = figures.Results(
            quick=quick,
            date=dt.datetime.now(dt.UTC).date().isoformat(),
            machine=machine() | {"load when the run began": load},
            versions=versions(),
            builds=builds,
            peers_bytes_per_key=run.peers_bytes(),
            keys_for_bytes=run.plan.keys_for_bytes,
            left_out=sorted(set(run.left_out)),
        )
    pages = ROOT / ".bench-venv" / "quick" if quick else ROOT / "docs"
    pages.mkdir(parents=True, exist_ok=True)
    (ROOT / ".bench-venv" / "results.json").write_text(json.dumps(asdict(results), indent=1) + "\n")
    picture.draw(results, pages / "benchmarks.svg")
    (pages / "benchmarks.md").write_text(page.write(results))
    say(page.targets(results))
    say(f"measured in {time.monotonic() - began:.0f} s; {pages.relative_to(ROOT)}/benchmarks.md and .svg are written")
    return 0


def installed() -> dict[str, str]:
    """The builds to measure, by what they say of themselves. Without a C compiler there is only one."""
    builds = {}
    for name in environments.BUILDS:
        command = [str(environments.python(ROOT, name).with_name("headgate")), "--version"]
        said = subprocess.run(
            command, env=children.environment(), capture_output=True, text=True, check=True, timeout=60
        )
        builds[name] = said.stdout.strip()
    if "(pure Python)" not in builds["pure"]:
        raise RuntimeError(f"HEADGATE_PURE=1 was asked for, and installed is {builds['pure']}")
    if "(compiled)" not in builds["compiled"]:
        say("no C compiler (apt-get install gcc python3-dev): only plain Python is measured, and the page says so")
        del builds["compiled"]
    return builds


def memory_folder() -> str | None:
    """Where a file is memory; None, the usual temporary folder, where there is no such place."""
    return "/dev/shm" if Path("/dev/shm").is_dir() else None


def machine() -> dict[str, str]:
    model = "unknown"
    cpuinfo = Path("/proc/cpuinfo")
    if cpuinfo.exists():
        lines = cpuinfo.read_text().splitlines()
        model = next((line.partition(":")[2].strip() for line in lines if line.startswith("model name")), model)
    return {
        "processor": model,
        "cores": str(os.cpu_count()),
        "system": platform.system(),
        "Python": f"{platform.python_implementation()} {platform.python_version()}",
    }


def versions() -> dict[str, str]:
    names = ("headgate", "limits", "throttled-py", "pyrate-limiter", "redis", "hiredis")
    return {name: version(name) for name in names} | {"redis-server": redis_version()}


def say(text: str) -> None:
    print(text, flush=True)


if __name__ == "__main__":
    sys.exit(main())
