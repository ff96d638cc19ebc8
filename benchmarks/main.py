"""Both parts of the benchmarks, or one of them, and the page that they share: run.py goes on here.

Each part writes its half of the page and leaves the other as it is.
"""

from __future__ import annotations

import argparse
import json
import sys
import time
from dataclasses import asdict
from pathlib import Path

from benchmarks import children, compare, page, picture
from benchmarks.network import measure as network
from benchmarks.network import page as network_page
from benchmarks.network import picture as network_picture

__all__ = ["PARTS"]

ROOT = Path(__file__).resolve().parent.parent
PARTS = ("machine", "network")


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
        replace_half(pages / "benchmarks.md", 0, page.write(results))
        print(page.targets(results))
    if arguments.only in (None, "network"):
        print("across a network:", flush=True)
        across = network.measure(ROOT, arguments.quick)
        (kept / "network.json").write_text(json.dumps(asdict(across), indent=1) + "\n")
        network_picture.draw(across, pages / "benchmarks-network.svg")
        replace_half(pages / "benchmarks.md", 1, network_page.write(across))
        print(network_page.targets(across))
    print(f"measured in {time.monotonic() - began:.0f} s; {pages.relative_to(ROOT)}/benchmarks.md is written")
    return 0


def replace_half(path: Path, half: int, text: str) -> None:
    """The second half begins with its title."""
    found = path.read_text() if path.exists() else "# Benchmarks\n"
    first, title, second = found.partition(network_page.TITLE)
    halves = [first.rstrip(), (title + second).rstrip()]
    halves[half] = text.rstrip()
    path.write_text("\n\n".join(part for part in halves if part) + "\n")


if __name__ == "__main__":
    sys.exit(main())
