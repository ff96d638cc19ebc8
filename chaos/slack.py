"""What a fault may cost, as docs/reliability.md states it: the page is written first, and a run reads it.

The page has three tables, each after a marker: the constants, what a store forgets when its server is killed, and for
every fault what it may cost at most. The words in code font are read; the sentences beside them are for people.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from pathlib import Path

from chaos import ROOT

__all__ = ["PAGE", "Slack", "read_slack"]

PAGE = ROOT / "docs" / "reliability.md"
EXCESS = ("none", "store", "all", "split", "lag", "step")


@dataclass(frozen=True, slots=True)
class Slack:
    """The stated bounds."""

    deadline_seconds: float
    recovery_seconds: float
    lag_seconds: float
    forgets: dict[str, str]
    """By store, what is lost when its server is killed: `none`, `all`, or `split`: all, while two servers decide."""
    excess: dict[str, str]
    """By fault, what may be admitted beyond the limit: `none`, `store` (what the store forgets), `lag` or `step`."""

    def excess_of(self, store: str, fault: str) -> str:
        stated = self.excess[fault]
        return self.forgets[store] if stated == "store" else stated


def read_slack(page: Path = PAGE) -> Slack:
    text = page.read_text()
    constants = {name: float(value) for name, value in _rows(text, "constants")}
    forgets = dict(_rows(text, "stores"))
    excess = dict(_rows(text, "faults"))
    unknown = {*forgets.values(), *excess.values()} - {*EXCESS}
    if unknown:
        raise ValueError(f"{page.name}: unknown bounds {sorted(unknown)}: one of {', '.join(EXCESS)}")
    return Slack(
        constants["deadline_ms"] / 1000, constants["recovery_seconds"], constants["lag_seconds"], forgets, excess
    )


def _rows(text: str, table: str) -> list[tuple[str, str]]:
    """The first two words in code font of each row of a table."""
    found = re.search(rf"<!-- slack: {table} -->\n(.*?)\n\n", text, re.DOTALL)
    if found is None:
        raise ValueError(f"{PAGE.name} has no table after <!-- slack: {table} -->")
    rows = [re.findall(r"`([^`]+)`", line) for line in found[1].splitlines()[2:]]
    return [(row[0], row[1]) for row in rows]
