"""What the front page says of each part, in a file beside the code: so one part can be measured without the others."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from benchmarks.aims import Aim
from benchmarks.figures import Spread

__all__ = ["FILE", "Floor", "Offer", "Ratio", "Summary", "load", "save"]

FILE = Path(__file__).with_name("measured.json")


@dataclass(frozen=True)
class Offer:
    """What users get: decisions per second, and microseconds. Parts add to each other what they know of one offer."""

    what: str
    per_core: float | None = None
    per_machine: float | None = None
    p50: float | None = None
    p99: float | None = None


@dataclass(frozen=True)
class Ratio:
    """How many times faster than something else."""

    what: str
    beside: str
    measured: Spread


@dataclass(frozen=True)
class Floor:
    """What something costs beside the least that it can cost, each with its unit, and the ratio as a text."""

    what: str
    ours: str
    least: str
    times: str


@dataclass(frozen=True)
class Summary:
    """One part's contribution."""

    date: str
    build: str
    load: str
    """When the run began."""
    quick: bool
    offers: list[Offer] = field(default_factory=list)
    ratios: list[Ratio] = field(default_factory=list)
    floors: list[Floor] = field(default_factory=list)
    aims: list[Aim] = field(default_factory=list)
    gaps: list[str] = field(default_factory=list)
    """What could not be measured, and why."""


def load(file: Path) -> dict[str, Summary]:
    """By part; empty where nothing was measured yet."""
    if not file.exists():
        return {}
    parts: dict[str, dict[str, Any]] = json.loads(file.read_text(encoding="utf-8"))
    return {name: _summary(data) for name, data in parts.items()}


def save(file: Path, summaries: Mapping[str, Summary]) -> None:
    text = json.dumps({name: asdict(one) for name, one in summaries.items()}, indent=1, ensure_ascii=False)
    file.write_text(text + "\n", encoding="utf-8")


def _summary(data: dict[str, Any]) -> Summary:
    kinds: dict[str, type[Any]] = {"offers": Offer, "ratios": Ratio, "floors": Floor, "aims": Aim}
    lists = {name: [_item(kind, item) for item in data[name]] for name, kind in kinds.items()}
    return Summary(**{**data, **lists})


def _item(kind: type[Any], data: dict[str, Any]) -> Any:
    measured = {"measured": Spread(**data["measured"])} if "measured" in data else {}
    return kind(**{**data, **measured})
