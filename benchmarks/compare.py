"""The first part, on one machine: the measurements, their order and their duration.

Four comparisons, each with both builds of Crestgate: an admitted check in memory, a denied check in memory, the bytes
that a key costs, and a check in shared memory against the peers' calls to a Redis on loopback.
"""

from __future__ import annotations

import tempfile
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from statistics import median

from benchmarks import environments, figures, machine, turns, worker_process
from benchmarks.candidates import ALGORITHMS, MEMORY_PEERS, NOTHING, REDIS_PEERS, Setup
from benchmarks.private_servers import private_server, server_version
from benchmarks.turns import Pace

__all__ = ["measure"]

LIBRARIES = ("crestgate", "limits", "throttled-py", "pyrate-limiter", "redis", "hiredis")
PLENTY = 1_000_000


@dataclass(frozen=True)
class Plan:
    """The amounts. A turn takes some milliseconds at most; a key gets about two hundred checks in total."""

    memory: Pace
    shared: Pace
    keys_for_bytes: int


REAL = Plan(Pace(100, 1000, 1000, 1000, 5.0), Pace(60, 1000, 150, 1000, 25.0), 50_000)
QUICK = Plan(Pace(11, 1000, 1000, 1000, 0.5), Pace(9, 1000, 100, 1000, 2.0), 2_000)


class Run:
    """One run with one plan; also records contenders that could not take part."""

    def __init__(self, plan: Plan, builds: dict[str, str], root: Path, folder: Path) -> None:
        self.plan = plan
        self.builds = builds
        self.root = root
        self.folder = folder
        self.left_out: list[str] = []

    def build(self, name: str, redis_url: str) -> figures.Build:
        """All measurements in turns with one build; plain Python beside it is measured in one form, and admitted."""
        python = environments.python(self.root, name)
        beside = name == "pure" and len(self.builds) > 1
        forms = ("bound",) if beside else figures.FORMS
        admitted = [one for which in ALGORITHMS for one in self.memory(python, which, PLENTY, "minute", forms)]
        algorithms = () if beside else ALGORITHMS
        denied = [one for which in algorithms for one in self.memory(python, which, 1, "hour", forms)]
        return figures.Build(
            name,
            self.builds[name],
            admitted=admitted,
            denied=denied,
            shared=self.shared(name, python, redis_url),
            bytes_per_key={algorithm: self.bytes(python, "crestgate", algorithm) for algorithm in ALGORITHMS},
            empty_call=self.empty_call(python),
        )

    def memory(
        self, python: Path, algorithm: str, amount: int, period: str, forms: Sequence[str]
    ) -> list[figures.Contest]:
        log(f"  memory, {algorithm}, {'admitted' if amount > 1 else 'denied'}")
        ours = [Setup("crestgate", algorithm, "memory://", amount, period, form) for form in forms]
        theirs = [Setup(peer, algorithm, "memory://", amount, period) for peer in MEMORY_PEERS[algorithm]]
        times = self.turns(python, [*ours, *theirs], self.plan.memory, admitted=amount > 1)
        contests = [figures.contest(one, theirs, times) for one in ours]
        return [one for one in contests if one is not None]

    def empty_call(self, python: Path) -> float:
        setup = Setup(NOTHING, "", "memory://", PLENTY, "minute")
        times = self.turns(python, [setup], self.plan.memory, admitted=True)[setup]
        return 0.0 if isinstance(times, str) else median(times) / 1000

    def shared(self, name: str, python: Path, redis_url: str) -> list[figures.Contest]:
        """All algorithms in shared memory and all calls to Redis, in the same rounds."""
        log("  shared memory and Redis")
        ours = [
            Setup("crestgate", algorithm, f"shared://{self.folder}/{name}-{algorithm}", PLENTY, "minute")
            for algorithm in ALGORITHMS
        ]
        theirs = [Setup(library, algorithm, redis_url, PLENTY, "minute") for library, algorithm in REDIS_PEERS]
        times = self.turns(python, [*ours, *theirs], self.plan.shared, admitted=True)
        contests = [figures.contest(one, theirs, times) for one in ours]
        return [one for one in contests if one is not None]

    def turns(
        self, python: Path, setups: Sequence[Setup], pace: Pace, *, admitted: bool
    ) -> dict[Setup, list[float] | str]:
        times = turns.take_turns(python, self.root, setups, pace, admitted=admitted)
        self.left_out += [problem for problem in times.values() if isinstance(problem, str)]
        return times

    def bytes(self, python: Path, library: str, algorithm: str) -> float:
        log(f"  bytes per key, {library}, {algorithm}")
        store = f"memory://?max_keys={PLENTY}" if library == "crestgate" else "memory://"
        setup = Setup(library, algorithm, store, PLENTY, "hour")
        return turns.bytes_per_key(python, self.root, setup, self.plan.keys_for_bytes)

    def peers_bytes(self) -> dict[str, dict[str, float]]:
        """Once is enough: the peers are the same in both environments."""
        python = environments.python(self.root, "pure")
        found: dict[str, dict[str, float]] = {}
        for algorithm, peers in MEMORY_PEERS.items():
            found[algorithm] = {}
            for peer in peers:
                try:
                    found[algorithm][peer] = self.bytes(python, peer, algorithm)
                except worker_process.ContenderError as error:
                    self.left_out.append(str(error))
        return found


def measure(root: Path, quick: bool) -> figures.Results:
    """A complete run of this part."""
    described = machine.described()
    with tempfile.TemporaryDirectory(prefix="crestgate-bench-", dir=machine.memory_folder()) as folder:
        run = Run(QUICK if quick else REAL, environments.installed(root), root, Path(folder))
        if "compiled" not in run.builds:
            log("no C compiler (apt-get install gcc python3-dev): only plain Python is measured, and the page says so")
        with private_server("redis") as redis_url:
            builds = []
            for name in run.builds:
                log(f"{run.builds[name]}:")
                builds.append(run.build(name, redis_url))
        log("the peers:")
        return figures.Results(
            quick=quick,
            date=machine.today(),
            machine=described,
            versions=machine.library_versions(*LIBRARIES) | {"redis-server": server_version("redis")},
            builds=builds,
            peers_bytes_per_key=run.peers_bytes(),
            keys_for_bytes=run.plan.keys_for_bytes,
            left_out=sorted(set(run.left_out)),
        )


def log(text: str) -> None:
    print(text, flush=True)
