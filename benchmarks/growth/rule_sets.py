"""Rules: the cost of finding those of a request among few and among many, and of loading many.

`ask` has one build of Crestgate measure itself in processes of its own (this file, run as a program): one that resolves
against sets of 3 to 100,000 rules in turns, and one for each way of loading 100,000.
"""

from __future__ import annotations

import json
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterable
from pathlib import Path
from statistics import median
from typing import Any

from benchmarks import children

__all__ = ["LOADED", "SIZES", "SOURCES", "ask"]

SIZES = (3, 100, 1_000, 10_000, 100_000)
"""The three that apply, and with others."""
LOADED = 100_000
ROUNDS, RESOLVES = 100, 200
SOURCES = {"objects": "rules that are there as plain data", "sqlite": "a SQLite file", "yaml": "a YAML file"}


def ask(python: Path, root: Path, quick: bool) -> dict[str, Any]:
    """What finding costs by the number of rules, and loading by their source."""

    def run(*words: object) -> Any:
        command = [str(python), "-m", "benchmarks.growth.rule_sets", *map(str, words)]
        done = subprocess.run(
            command, cwd=root, env=children.environment(), check=True, stdout=subprocess.PIPE, timeout=300
        )
        return json.loads(done.stdout)

    sources = ("objects",) if quick else tuple(SOURCES)
    return {
        "resolving": run("resolve", ROUNDS // 10 if quick else ROUNDS),
        "loading": {source_kind: run("load", source_kind) for source_kind in sources},
    }


# What follows runs in a process of the build that is measured.


def data(count: int) -> Iterable[dict[str, Any]]:
    """`count` rules that do not apply to the resolved request."""
    for n in range(count):
        rule: dict[str, Any] = {"rule_id": f"rule-{n}", "limit": 100, "window_seconds": 60, "tier": ("*", "pro")[n % 2]}
        rule["dimension"] = ("user", "ip", "apikey", "client")[n % 4]
        kind = n % 10
        if kind < 5:
            rule["endpoint_pattern"] = f"/api/v1/path-{n}/*"
        elif kind < 8:
            rule |= {
                "identifier": f"somebody-{n}",
                "endpoint_pattern": "/api/v1/orders/*",
                "method": ("*", "POST")[n % 2],
            }
        elif kind == 8:
            rule["endpoint_pattern"] = f"/api/{{version}}/path-{n}/items"
        else:
            rule["identifier"] = f"somebody-{n}"
        yield rule


def applying() -> list[dict[str, Any]]:
    """The three rules that apply."""
    common = {"limit": 100, "window_seconds": 60}
    return [
        {"rule_id": "orders", "dimension": "user", "endpoint_pattern": "/api/v1/orders/*", **common},
        {"rule_id": "address", "dimension": "ip", **common},
        {"rule_id": "all", "dimension": "global", "endpoint_pattern": "/api/*", **common},
    ]


def resolve(rounds: int) -> dict[str, Any]:
    from crestgate import RequestContext
    from crestgate.rules.rule import Rule
    from crestgate.rules.ruleset import RuleSet

    context = RequestContext(user="alice", ip="10.0.0.1", api_key="key", path="/api/v1/orders/5/items", method="GET")
    sets = {}
    for size in SIZES:
        rules = [Rule.read(item) for item in (*data(size - 3), *applying())]
        sets[size] = RuleSet.empty().edited(rule for rule in rules if rule is not None)
        assert len(sets[size].resolve(context, 0)) == 3
    times: dict[int, list[float]] = {size: [] for size in SIZES}
    for turn in range(rounds):
        begin = turn % len(SIZES)
        order = SIZES[begin:] + SIZES[:begin]
        for size in order:
            found = sets[size]
            for _ in range(RESOLVES // 5):
                found.resolve(context, 0)
            began = time.thread_time_ns()
            for _ in range(RESOLVES):
                found.resolve(context, 0)
            times[size].append((time.thread_time_ns() - began) / RESOLVES / 1000)
    answer = {}
    for size, mine in times.items():
        ratios = sorted(us / least for us, least in zip(mine, times[SIZES[0]], strict=True))
        answer[str(size)] = {
            "us": median(mine),
            "ratio": median(ratios),
            "low": ratios[len(ratios) // 10],
            "high": ratios[-1 - len(ratios) // 10],
        }
    return answer


def load(source_kind: str) -> dict[str, float]:
    from crestgate.rules.catalog import Catalog
    from crestgate.rules.port import Actor, Changes, Repository, Source
    from crestgate.rules.records import edit_of, record_of
    from crestgate.rules.rule import Rule
    from crestgate.rules.storage.factory import open_repository

    class Plain:
        """A source with its records in memory."""

        title = "plain data"

        def changes(self, since: int) -> Changes | None:
            if since:
                return None
            return Changes(1, True, [record_of(rule) for rule in map(Rule.read, data(LOADED)) if rule is not None])

        def listen(self, wake: Callable[[], None]) -> None:
            """Nothing changes."""

        def close(self) -> None:
            """Nothing is open."""

    with tempfile.TemporaryDirectory() as folder:
        url = f"sqlite:///{folder}/rules.db?timeout_ms=60000"
        if source_kind != "objects":
            subprocess.run(
                [sys.executable, "-m", "benchmarks.growth.rule_sets", "prepare", source_kind, folder], check=True
            )
        before = _resident()
        began = time.perf_counter()
        source: Source = (
            Plain()
            if source_kind == "objects"
            else open_repository(f"{folder}/rules.yaml" if source_kind == "yaml" else url)
        )
        catalog = Catalog([source], 3600.0)
        seconds = time.perf_counter() - began
        assert len(catalog.current.rules) == LOADED
        answer = {"seconds": seconds, "megabytes": (_highest() - before) / 1e6}
        if source_kind == "sqlite":
            writer: Repository = open_repository(url)
            changed = Rule.read({**next(iter(data(1))), "limit": 7})
            assert changed is not None
            writer.write([edit_of(changed)], Actor("benchmark"))
            began = time.perf_counter()
            assert catalog.refresh()
            answer["change_ms"] = (time.perf_counter() - began) * 1000
            assert catalog.current.rules["rule-0"].limit == 7
            writer.close()
        catalog.close()
    return answer


def prepare(source_kind: str, folder: str) -> None:
    """Write the rules in a separate process, so that its memory does not count as memory of loading."""
    from crestgate.rules.port import Actor
    from crestgate.rules.records import edit_of
    from crestgate.rules.rule import Rule
    from crestgate.rules.storage.factory import open_repository

    if source_kind == "yaml":
        import yaml

        with open(f"{folder}/rules.yaml", "w", encoding="utf-8") as file:
            yaml.dump({"rules": list(data(LOADED))}, file, Dumper=getattr(yaml, "CSafeDumper", yaml.SafeDumper))
        return
    repository = open_repository(f"sqlite:///{folder}/rules.db?timeout_ms=60000")
    rules = [rule for rule in map(Rule.read, data(LOADED)) if rule is not None]
    for first in range(0, LOADED, 5000):
        repository.write([edit_of(rule) for rule in rules[first : first + 5000]], Actor("benchmark"))
    repository.close()


def _resident() -> int:
    return _memory("VmRSS")


def _highest() -> int:
    return _memory("VmHWM")


def _memory(name: str) -> int:
    lines = Path("/proc/self/status").read_text().splitlines()
    return next(int(line.split()[1]) * 1024 for line in lines if line.startswith(f"{name}:"))


if __name__ == "__main__":
    task, *given = sys.argv[1:]
    if task == "prepare":
        prepare(*given)
    else:
        print(json.dumps(resolve(int(given[0])) if task == "resolve" else load(given[0])))
