"""The imports part of the page: what a limiter adds to the start of a program.

Each case is a new process, and so is the bare interpreter that it is compared with. All take turns in rounds, and what
counts is the difference within a round. Processor time is measured beside the time on the clock, because a busy
machine changes the latter only.
"""

from __future__ import annotations

import resource
import subprocess
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from statistics import median

from benchmarks import children, environments, machine
from benchmarks.formatting import table

__all__ = ["ImportResults", "measure", "targets", "write"]

TITLE = "# Benchmarks of imports"
ROUNDS = 12
BARE = "python -c pass"
BUILDS = {"pure": "plain Python", "compiled": "compiled"}
IMPORT, VERSION = "import crestgate", "crestgate --version"
CASES = {
    IMPORT: "import crestgate",
    "import limits": "import limits",
    "import throttled": "import throttled",
    "crestgate, one check in memory": (
        "from crestgate import Limiter; assert Limiter('memory://').check('user:42', '5/minute')"
    ),
    "limits, one hit in memory": (
        "from limits import parse, storage, strategies; "
        "assert strategies.FixedWindowRateLimiter(storage.MemoryStorage()).hit(parse('5/minute'), 'user:42')"
    ),
    "throttled-py, one check in memory": (
        "from throttled import Throttled, rate_limiter; "
        "assert not Throttled('user:42', quota=rate_limiter.per_min(5)).limit().limited"
    ),
    "crestgate, AsyncLimiter": "from crestgate import AsyncLimiter",
}
"""What is measured, and its code."""
TARGETS = {IMPORT: 40.0, VERSION: 150.0}
"""Milliseconds on the clock: of the import on top of the interpreter, of the command as a whole."""


@dataclass(frozen=True)
class ImportResults:
    """Milliseconds by build and case: on the clock, and of the processor. The bare interpreter is not subtracted."""

    date: str
    machine: dict[str, str]
    versions: dict[str, str]
    wall: dict[str, dict[str, list[float]]]
    processor: dict[str, dict[str, list[float]]]


def measure(root: Path, quick: bool) -> ImportResults:
    wall: dict[str, dict[str, list[float]]] = {}
    processor: dict[str, dict[str, list[float]]] = {}
    described = machine.described()
    versions: dict[str, str] = {}
    for build, label in BUILDS.items():
        python = environments.python(root, build)
        if not python.exists():
            continue
        print(f"  {label}: starting processes", flush=True)
        commands = _commands(python)
        versions = versions or _versions(python)
        wall[build] = {name: [] for name in commands}
        processor[build] = {name: [] for name in commands}
        for turn in range(-1, 5 if quick else ROUNDS):  # the first is not counted: it writes the byte code
            names = list(commands)
            begin = turn % len(names)
            for name in names[begin:] + names[:begin]:
                seconds, used = _run(commands[name])
                if turn >= 0:
                    wall[build][name].append(seconds * 1000)
                    processor[build][name].append(used * 1000)
    return ImportResults(machine.today(), described, versions, wall, processor)


def write(results: ImportResults) -> str:
    described = ", ".join(f"{name} {value}" for name, value in results.machine.items())
    versions = ", ".join(f"{name} {value}" for name, value in results.versions.items())
    return "\n\n".join(
        [
            TITLE,
            "What a limiter adds to the start of a program or a command. `import crestgate` loads the public names "
            "when they are first used, so the first check pays for what it needs.",
            table(["process", *_columns(results), "at most"], list(_rows(results))),
            f"Milliseconds on top of a bare interpreter (`{BARE}`), except for the command, which is given as a "
            f"whole: on the clock, and in brackets of the processor. Medians of {_rounds(results)} rounds, in "
            "which all take turns in new processes.",
            f"{versions}. {results.date}. {described}.",
        ]
    )


def targets(results: ImportResults) -> str:
    rows = [row for row in _rows(results) if row[-1]]
    return table(["process", *_columns(results), "at most"], rows)


def _columns(results: ImportResults) -> list[str]:
    return [BUILDS[build] for build in results.wall]


def _rounds(results: ImportResults) -> int:
    return len(next(iter(results.wall.values()))[BARE])


def _rows(results: ImportResults) -> Iterator[list[str]]:
    for name in (*CASES, VERSION):
        limit = TARGETS.get(name)
        cells = [_cell(results.wall[build], results.processor[build], name, limit) for build in results.wall]
        yield [f"`{name}`" if name in (IMPORT, VERSION) else name, *cells, "" if limit is None else f"{limit:g} ms"]


def _cell(wall: dict[str, list[float]], processor: dict[str, list[float]], name: str, limit: float | None) -> str:
    shown = _median(wall, name)
    reached = "" if limit is None else " met" if shown <= limit else " **missed**"
    return f"{shown:.1f} ({_median(processor, name):.1f}){reached}"


def _median(times: dict[str, list[float]], name: str) -> float:
    if name == VERSION:
        return median(times[name])
    return median(mine - bare for mine, bare in zip(times[name], times[BARE], strict=True))


def _commands(python: Path) -> dict[str, list[str]]:
    program = str(python)
    cases = {name: [program, "-c", code] for name, code in CASES.items()}
    return {BARE: [program, "-c", "pass"], **cases, VERSION: [str(python.with_name("crestgate")), "--version"]}


def _versions(python: Path) -> dict[str, str]:
    code = "from importlib.metadata import version; print(*map(version, ('crestgate', 'limits', 'throttled-py')))"
    run = subprocess.run(
        [str(python), "-c", code], env=_environment(), check=True, capture_output=True, text=True, timeout=60
    )
    return dict(zip(("crestgate", "limits", "throttled-py"), run.stdout.split(), strict=True))


def _environment() -> dict[str, str]:
    """As programs run: with byte code that was written before."""
    return {name: value for name, value in children.environment().items() if name != "PYTHONDONTWRITEBYTECODE"}


def _run(command: Sequence[str]) -> tuple[float, float]:
    """Seconds on the clock, and of the processor."""
    before = resource.getrusage(resource.RUSAGE_CHILDREN)
    began = time.perf_counter()
    with subprocess.Popen(command, env=_environment(), stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL) as process:
        code = process.wait()
    seconds = time.perf_counter() - began
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    if code != 0:
        raise RuntimeError(f"{' '.join(command)} ended with {code}")
    used = after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime
    return seconds, used
