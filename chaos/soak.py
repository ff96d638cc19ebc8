"""A steady load on healthy stores for minutes, and a day on virtual time: memory, fds, threads and files stay flat."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from collections.abc import Sequence
from contextlib import ExitStack
from pathlib import Path
from statistics import median
from typing import Any

from chaos import ROOT
from chaos.environments import Environment, ServiceEnvironment, create_environment
from chaos.network import Network
from chaos.virtual_day import resident_bytes, virtual_day

__all__ = ["compare", "run_soak"]

STORES = ("memory", "shared", "redis", "sqlite", "crestgate")
GROWTH = 1.1
ROOM = {"bytes": 8 << 20, "files": 1 << 20, "server bytes": 16 << 20, "fds": 2, "threads": 2, "admitted": 0}
"""What counts as noise, beside the growth."""


def compare(what: str, measure: str, values: Sequence[float]) -> dict[str, Any]:
    """The second quarter of the samples beside the last: flat, or growing."""
    quarter = max(1, len(values) // 4)
    early, late = median(values[quarter : 2 * quarter] or values[:1]), median(values[-quarter:])
    flat = late <= early * GROWTH + ROOM[measure]
    return {"what": what, "measure": measure, "early": int(early), "late": int(late), "flat": flat}


def run_soak(seconds: float, results: Path) -> int:
    rows = []
    day = virtual_day()
    for measure in ("bytes", "fds", "threads"):
        rows.append(compare("24 h of virtual time", measure, [sample[measure] for sample in day]))
    busiest = max(sample["admitted"] for sample in day)
    # The day's limit is 300; a window that begins at midnight has just begun when the day ends.
    rows.append(
        {"what": "24 h of virtual time", "measure": "admitted", "early": 300, "late": busiest, "flat": busiest <= 300}
    )
    rows += _real(seconds)
    results.mkdir(parents=True, exist_ok=True)
    (results / "soak.json").write_text(json.dumps(rows, indent=1))
    for row in rows:
        verdict = "flat" if row["flat"] else "GROWS"
        print(f"{row['what']:22} {row['measure']:13} {row['early']:12} {row['late']:12} {verdict}")
    return 0 if all(row["flat"] for row in rows) else 1


def _real(seconds: float) -> list[dict[str, Any]]:
    rows: list[dict[str, Any]] = []
    with ExitStack() as stack:
        network = stack.enter_context(Network())
        environments: dict[str, Environment] = {}
        children: dict[str, subprocess.Popen[str]] = {}
        paths = os.pathsep.join([str(ROOT / "src"), str(ROOT), str(ROOT / "tests"), *filter(None, sys.path)])
        for store in STORES:
            environment = create_environment(store, network, {})
            stack.callback(environment.close)
            environment.start()
            environments[store] = environment
            task = json.dumps({"url": environment.url(1.0), "seconds": seconds, "seed": 1})
            children[store] = subprocess.Popen(
                [
                    *network.prefix,
                    "setpriv",
                    "--pdeathsig",
                    "KILL",
                    "--",
                    sys.executable,
                    "-m",
                    "chaos.soak_client",
                    task,
                ],
                stdout=subprocess.PIPE,
                env={**os.environ, "PYTHONPATH": paths},
                text=True,
            )
            stack.callback(children[store].kill)
        outside: dict[str, list[dict[str, int]]] = {store: [] for store in STORES}
        ending = time.monotonic() + seconds
        while time.monotonic() < ending:
            for store, environment in environments.items():
                outside[store].append({"files": _files(environment), "server bytes": _server_bytes(environment)})
            time.sleep(max(0.1, seconds / 60))
        for store, child in children.items():
            out, _ = child.communicate(timeout=seconds + 120)
            samples = json.loads(out)
            rows += [compare(store, measure, [s[measure] for s in samples]) for measure in ("bytes", "fds", "threads")]
            rows += [compare(store, m, [s[m] for s in outside[store]]) for m in ("files", "server bytes")]
    return rows


def _files(environment: Environment) -> int:
    """Bytes of its files on disk; the service's log counts, too."""
    return sum(path.stat().st_size for path in environment.folder.rglob("*") if path.is_file())


def _server_bytes(environment: Environment) -> int:
    if isinstance(environment, ServiceEnvironment):
        assert environment.service is not None
        return sum(map(resident_bytes, [environment.service.pid, *environment.service.worker_pids]))
    return sum(resident_bytes(pid) for server in environment.servers for pid in server.pids)
