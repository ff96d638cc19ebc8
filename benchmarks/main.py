"""The parts of the benchmarks, or one of them, and the page that they share: run.py goes on here.

Each part writes its own section of the page and leaves the others as they are.
"""

from __future__ import annotations

import argparse
import json
import sys
import time
from dataclasses import asdict
from pathlib import Path

from benchmarks import children, compare, page, picture, rule_sets
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
PARTS = ("machine", "network", "rules", "service", "frameworks", "rpc")
TITLES = (network_page.TITLE, rule_sets.TITLE, service_page.TITLE, frameworks_page.TITLE, rpc_page.TITLE)
"""What every section but the first begins with."""


def main() -> int:
    parser = argparse.ArgumentParser()
    parser.add_argument("--quick", action="store_true")
    parser.add_argument("--only", choices=PARTS)
    arguments = parser.parse_args()
    children.end_them_when_asked_to_stop()
    kept = ROOT / ".bench-venv"
    pages = kept / "quick" if arguments.quick else ROOT / "docs"
    pages.mkdir(parents=True, exist_ok=True)
    began = time.monotonic()
    if arguments.only in (None, "machine"):
        results = compare.measure(ROOT, arguments.quick)
        (kept / "results.json").write_text(json.dumps(asdict(results), indent=1) + "\n")
        picture.draw(results, pages / "benchmarks.svg")
        replace_section(pages / "benchmarks.md", 0, page.write(results))
        print(page.targets(results))
    if arguments.only in (None, "network"):
        print("across a network:", flush=True)
        across = network.measure(ROOT, arguments.quick)
        (kept / "network.json").write_text(json.dumps(asdict(across), indent=1) + "\n")
        network_picture.draw(across, pages / "benchmarks-network.svg")
        replace_section(pages / "benchmarks.md", 1, network_page.write(across))
        print(network_page.targets(across))
    if arguments.only in (None, "rules"):
        print("rules:", flush=True)
        many = rule_sets.measure(ROOT, arguments.quick)
        (kept / "rules.json").write_text(json.dumps(asdict(many), indent=1) + "\n")
        replace_section(pages / "benchmarks.md", 2, rule_sets.write(many))
        print(rule_sets.targets(many))
    if arguments.only in (None, "service"):
        print("the service:", flush=True)
        served = service.measure(ROOT, arguments.quick)
        (kept / "service.json").write_text(json.dumps(asdict(served), indent=1) + "\n")
        service_picture.draw(served, pages / "benchmarks-service.svg")
        replace_section(pages / "benchmarks.md", 3, service_page.write(served))
        print(service_page.targets(served))
    if arguments.only in (None, "frameworks"):
        print("frameworks:", flush=True)
        limited = frameworks.measure(ROOT, arguments.quick)
        (kept / "frameworks.json").write_text(json.dumps(asdict(limited), indent=1) + "\n")
        frameworks_picture.draw(limited, pages / "benchmarks-frameworks.svg")
        replace_section(pages / "benchmarks.md", 4, frameworks_page.write(limited))
        print(frameworks_page.targets(limited))
    if arguments.only in (None, "rpc"):
        print("gRPC:", flush=True)
        called = rpc.measure(ROOT, arguments.quick)
        (kept / "rpc.json").write_text(json.dumps(asdict(called), indent=1) + "\n")
        rpc_picture.draw(called, pages / "benchmarks-rpc.svg")
        replace_section(pages / "benchmarks.md", 5, rpc_page.write(called))
        print(rpc_page.targets(called))
    print(f"measured in {time.monotonic() - began:.0f} s; {pages.relative_to(ROOT)}/benchmarks.md is written")
    return 0


def replace_section(path: Path, number: int, text: str) -> None:
    """Sections follow one another, and each but the first is found by its title."""
    found = path.read_text() if path.exists() else "# Benchmarks\n"
    marks = [0, *(found.find(title) for title in TITLES), len(found)]
    sections = []
    for begin, ends in ((mark, marks[place + 1 :]) for place, mark in enumerate(marks[:-1])):
        sections.append("" if begin < 0 else found[begin : next(end for end in ends if end >= 0)])
    sections[number] = text
    path.write_text("\n\n".join(part.strip() for part in sections if part.strip()) + "\n")


if __name__ == "__main__":
    sys.exit(main())
