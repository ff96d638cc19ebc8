"""All cells, one or a few at a time, each in a process of its own that ends by itself or is ended."""

from __future__ import annotations

import argparse
import json
import os
import signal
import subprocess
import sys
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from chaos.matrix import FAULTS, cells
from chaos.report import violations_of, write_report
from servers.machine import TEMPLATES

__all__ = ["read_results", "run_all"]


def run_all(arguments: argparse.Namespace) -> int:
    """Run the cells that were asked for, write the page, and say how many have violations."""
    folder: Path = arguments.results
    folder.mkdir(parents=True, exist_ok=True)
    if not arguments.report:
        # Databases are made once for all cells.
        with ThreadPoolExecutor(arguments.jobs) as pool, TemporaryDirectory(prefix="crestgate-chaos-") as templates:
            Path(templates).chmod(0o755)  # a database runs as another user
            environment = {**os.environ, TEMPLATES: templates}
            running = []
            for store, fault in cells():
                file = folder / f"{store}.{fault}.json"
                wanted = arguments.store in (None, store) and arguments.fault in (None, fault)
                if wanted and not (arguments.resume and file.exists()):
                    running.append(pool.submit(_run, store, fault, arguments, file, environment))
            for cell in running:
                cell.result()
        if arguments.soak is not None:
            command = [sys.executable, "-m", "chaos", "--soak", str(arguments.soak), "--results", str(folder)]
            subprocess.run(command, check=False, timeout=arguments.soak * 2 + 1200)
    results = read_results(folder)
    soak = folder / "soak.json"
    write_report(results, json.loads(soak.read_text()) if soak.exists() else [])
    bad = [result for result in results if violations_of(result)]
    ran = [result for result in results if not result["skipped"]]
    print(f"{len(results)} cells: {len(ran)} run, {len(bad)} with violations")
    for result in bad:
        print(f"  {result['store']} × {result['fault']}: {'; '.join(violations_of(result))[:300]}")
    return 1 if bad else 0


def _run(store: str, fault: str, arguments: argparse.Namespace, file: Path, environment: dict[str, str]) -> None:
    """One cell. A crash of the cell itself is a result, too."""
    blank = {"store": store, "fault": fault, "seed": arguments.seed, "seconds": arguments.seconds}
    if reason := FAULTS[fault].unsupported(store):
        from chaos.judge import Result

        file.write_text(json.dumps(Result(**blank, skipped=reason).as_dict()))
        return
    file.unlink(missing_ok=True)
    began = time.monotonic()
    command = [sys.executable, "-m", "chaos", "--store", store, "--fault", fault, "--seed", str(arguments.seed)]
    command += ["--seconds", str(arguments.seconds), "--json", str(file)]
    process = subprocess.Popen(
        command,
        env=environment,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.PIPE,
        start_new_session=True,
        text=True,
    )
    try:
        _, errors = process.communicate(timeout=arguments.seconds * 3 + 300)
    except subprocess.TimeoutExpired:
        os.killpg(process.pid, signal.SIGKILL)
        errors = f"did not end by itself: {process.communicate()[1]}"
    if not file.exists():
        from chaos.judge import Result

        failure = f"the cell failed: {errors.strip()[-600:]}"
        file.write_text(json.dumps(Result(**blank, violations=[failure]).as_dict()))
    result = json.loads(file.read_text())
    found = violations_of(result)
    state = f"VIOLATED {found}" if found else "ok"
    print(f"{store:11} {fault:19} {time.monotonic() - began:6.1f} s  {result['decisions']:7} decisions  {state}"[:400])
    sys.stdout.flush()


def read_results(folder: Path) -> list[dict[str, Any]]:
    """In the order of the table."""
    files = [folder / f"{store}.{fault}.json" for store, fault in cells()]
    return [json.loads(file.read_text()) for file in files if file.exists()]
