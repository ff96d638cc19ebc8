"""Runs the benchmarks, all parts or one. Each part writes its page and its chart into docs/."""

from __future__ import annotations

import argparse
import json
import sys
import time
from collections.abc import Callable
from dataclasses import asdict
from pathlib import Path
from typing import Any, NamedTuple

from benchmarks import children, compare, imports, leases, page, picture, resp, rule_sets
from benchmarks.frameworks import measure as frameworks
from benchmarks.frameworks import page as frameworks_page
from benchmarks.frameworks import picture as frameworks_picture
from benchmarks.network import measure as network
from benchmarks.network import page as network_page
from benchmarks.network import picture as network_picture
from benchmarks.rpc import measure as rpc
from benchmarks.rpc import page as rpc_page
from benchmarks.rpc import picture as rpc_picture
from benchmarks.service import measure as service
from benchmarks.service import page as service_page
from benchmarks.service import picture as service_picture

__all__ = ["PARTS"]

ROOT = Path(__file__).resolve().parent.parent


class Part(NamedTuple):
    """One part: its measurement, page and chart."""

    file: str
    measure: Callable[[Path, bool], Any]
    page: Any
    picture: Any = None


PARTS = {
    "machine": Part("benchmarks", compare.measure, page, picture),
    "network": Part("benchmarks-network", network.measure, network_page, network_picture),
    "rules": Part("benchmarks-rules", rule_sets.measure, rule_sets),
    "imports": Part("benchmarks-imports", imports.measure, imports),
    "leases": Part("benchmarks-leases", leases.measure, leases),
    "service": Part("benchmarks-service", service.measure, service_page, service_picture),
    "frameworks": Part("benchmarks-frameworks", frameworks.measure, frameworks_page, frameworks_picture),
    "rpc": Part("benchmarks-rpc", rpc.measure, rpc_page, rpc_picture),
    "resp": Part("benchmarks-resp", resp.measure, resp),
}


def main() -> int:
    parser = argparse.ArgumentParser()
    parser.add_argument("--quick", action="store_true")
    parser.add_argument("--only", choices=tuple(PARTS))
    arguments = parser.parse_args()
    children.exit_on_signals()
    results_folder = ROOT / ".bench-venv"
    pages = results_folder / "quick" if arguments.quick else ROOT / "docs"
    pages.mkdir(parents=True, exist_ok=True)
    started = time.monotonic()
    for name, part in PARTS.items():
        if arguments.only in (None, name):
            print(f"{name}:", flush=True)
            results = part.measure(ROOT, arguments.quick)
            (results_folder / f"{name}.json").write_text(json.dumps(asdict(results), indent=1) + "\n")
            if part.picture is not None:
                part.picture.draw(results, pages / f"{part.file}.svg")
            (pages / f"{part.file}.md").write_text(part.page.write(results).strip() + "\n")
            print(part.page.targets(results))
    print(f"measured in {time.monotonic() - started:.0f} s; the pages are in {pages.relative_to(ROOT)}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
