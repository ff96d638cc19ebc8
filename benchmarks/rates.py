"""The chart of the parts that call servers: requests per second above, and targets below where there are any."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from statistics import median
from typing import Any

from benchmarks.aims import Aim
from benchmarks.network.picture import figure, frame, targets
from benchmarks.picture import INK

__all__ = ["Row", "draw"]


@dataclass(frozen=True)
class Row:
    """A bar: its name, and the rates of all its turns. `more` follows the figure."""

    name: str
    colour: str
    rates: Sequence[float]
    more: str = ""


def draw(rows: Sequence[Row], title: str, reached: Sequence[Aim], path: Path) -> None:
    import matplotlib as mpl

    mpl.use("Agg")
    mpl.rcParams["svg.hashsalt"] = "crestgate"  # the same figures give the same file
    import matplotlib.pyplot as plt

    ratios = [aim for aim in reached if aim.is_ratio]
    heights = [len(rows) + 2] + [len(ratios) + 3] * bool(ratios)
    drawing, panels = plt.subplots(
        len(heights),
        1,
        figsize=(10, 0.32 * sum(heights)),
        facecolor="white",
        layout="constrained",
        gridspec_kw={"height_ratios": heights},
        squeeze=False,
    )
    _rates(panels[0][0], rows, f"{title} (lines: slowest to fastest turn)")
    if ratios:
        targets(panels[1][0], ratios)
    drawing.savefig(path, metadata={"Date": None} if path.suffix == ".svg" else None, dpi=110)
    plt.close(drawing)


def _rates(axes: Any, rows: Sequence[Row], title: str) -> None:
    medians = [median(row.rates) for row in rows]
    lows, highs = [min(row.rates) for row in rows], [max(row.rates) for row in rows]
    axes.barh(
        range(len(rows)),
        medians,
        height=0.7,
        color=[row.colour for row in rows],
        xerr=[
            [rate - low for rate, low in zip(medians, lows, strict=True)],
            [high - rate for rate, high in zip(medians, highs, strict=True)],
        ],
        error_kw={"ecolor": INK, "elinewidth": 1},
    )
    for position, row in enumerate(rows):
        figure(axes, highs[position], position, f"{medians[position]:,.0f}{row.more}")
    frame(axes, [row.name for row in rows], title)
    axes.set_xlim(0, max(highs) * 1.12)
    axes.xaxis.set_major_formatter(lambda value, _: f"{value:,.0f}")
