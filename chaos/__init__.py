"""Breaks every store in every way while several processes use it, and checks the recorded history.

    python -m chaos --store redis --fault server-kill --seed 7 --seconds 30      one cell
    python -m chaos --all --seconds 30                                           all cells, and docs/reliability.md

The servers, the proxy and the child processes are those of the tests, so their folder is put on the path.
"""

from __future__ import annotations

import sys
from pathlib import Path

__all__ = ["ROOT"]

ROOT = Path(__file__).resolve().parent.parent
"""The repository."""

for _folder in (ROOT / "tests" / "model", ROOT / "tests"):
    if str(_folder) not in sys.path:
        sys.path.insert(0, str(_folder))
