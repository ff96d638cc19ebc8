"""Runs the benchmarks, all parts or one. Each writes its page and its chart into docs/, and the front page anew."""

from __future__ import annotations

import argparse
import json
import os
import sys
import time
from collections.abc import Callable
from dataclasses import asdict
from pathlib import Path
from typing import Any, NamedTuple

from benchmarks import children, compare, front_page, imports, leases, page, picture, resp, summaries, summary
from benchmarks.frameworks import measure as frameworks
from benchmarks.frameworks import page as frameworks_page
from benchmarks.frameworks import picture as frameworks_picture
from benchmarks.growth import measure as growth
from benchmarks.growth import page as growth_page
from benchmarks.growth import picture as growth_picture
from benchmarks.latency import measure as latency
from benchmarks.latency import page as latency_page
from benchmarks.network import measure as network
from benchmarks.network import page as network_page
from benchmarks.network import picture as network_picture
from benchmarks.peer_services import measure as peer_services
from benchmarks.peer_services import page as peer_services_page
from benchmarks.rpc import measure as rpc
from benchmarks.rpc import page as rpc_page
from benchmarks.rpc import picture as rpc_picture
from benchmarks.service import measure as service
from benchmarks.service import page as service_page
from benchmarks.service import picture as service_picture

__all__ = ["PARTS"]

ROOT = Path(__file__).resolve().parent.parent


class Part(NamedTuple):
    """One part: its measurement, its page, its chart, and what it tells the front page."""

    measure: Callable[[Path, bool], Any]
    page: Any
    picture: Any = None
    summary: Callable[[Any], summary.Summary] | None = None


PARTS = {
    "machine": Part(compare.measure, page, picture, summaries.machine),
    "network": Part(network.measure, network_page, network_picture, summaries.network),
    "service": Part(service.measure, service_page, service_picture, summaries.service),
    "rpc": Part(rpc.measure, rpc_page, rpc_picture, summaries.rpc),
    "latency": Part(latency.measure, latency_page, None, summaries.latency),
    "peers_services": Part(peer_services.measure, peer_services_page, None, summaries.peers),
    "growth": Part(growth.measure, growth_page, growth_picture, summaries.growth),
    "frameworks": Part(frameworks.measure, frameworks_page, frameworks_picture, summaries.frameworks),
    "leases": Part(leases.measure, leases),
    "resp": Part(resp.measure, resp, None, summaries.resp),
    "imports": Part(imports.measure, imports),
}


def main() -> int:
    parser = argparse.ArgumentParser()
    parser.add_argument("--quick", action="store_true")
    parser.add_argument("--only", choices=tuple(PARTS), action="append")
    arguments = parser.parse_args()
    children.exit_on_signals()
    results_folder = ROOT / ".bench-venv"
    pages = results_folder / "quick" if arguments.quick else ROOT / "docs"
    pages.mkdir(parents=True, exist_ok=True)
    measured = pages / "measured.json" if arguments.quick else summary.FILE
    started = time.monotonic()
    for name, part in PARTS.items():
        if not arguments.only or name in arguments.only:
            print(f"{name}:", flush=True)
            began = time.monotonic()
            results = part.measure(ROOT, arguments.quick)
            (results_folder / f"{name}.json").write_text(json.dumps(asdict(results), indent=1) + "\n")
            _write_part(name, part, results, pages)
            if part.summary is not None:
                _write_front(name, part.summary(results), measured, pages)
            print(part.page.targets(results))
            print(f"{name} took {time.monotonic() - began:.0f} s", flush=True)
    print(f"measured in {time.monotonic() - started:.0f} s; the pages are in {pages.relative_to(ROOT)}")
    return 0


def _write_part(name: str, part: Part, results: Any, pages: Path) -> None:
    file = front_page.DETAILS[name].file
    if part.picture is not None:
        part.picture.draw(results, pages / f"{file}.svg")
    (pages / f"{file}.md").write_text(part.page.write(results).strip() + "\n")


def _write_front(name: str, one: summary.Summary, measured: Path, pages: Path) -> None:
    """With the other parts as they were measured last."""
    known = summary.load(measured) | {name: one}
    known = {part: known[part] for part in PARTS if part in known}
    summary.save(measured, known)
    front_page.draw(known, pages / "benchmarks.svg")
    (pages / "benchmarks.md").write_text(front_page.write(known, str(os.cpu_count()), pages).strip() + "\n")


if __name__ == "__main__":
    sys.exit(main())
