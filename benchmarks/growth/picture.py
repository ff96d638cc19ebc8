"""The chart of growth: how many times what it costs with one key, and with one limit."""

from __future__ import annotations

from pathlib import Path
from statistics import median
from typing import Any

from benchmarks.growth.results import Results, Times, growth
from benchmarks.picture import COLOURS, INK

__all__ = ["draw"]

LINES = {
    ("memory", "crestgate"): ("a check in memory", COLOURS["compiled"]),
    ("shared", "crestgate"): ("a check in shared memory", COLOURS["pure"]),
    ("memory", "dict"): ("a bare dict", "#8a8a8a"),
}


def draw(results: Results, path: Path) -> None:
    import matplotlib as mpl

    mpl.use("Agg")
    mpl.rcParams["svg.hashsalt"] = "crestgate"  # the same figures give the same file
    import matplotlib.pyplot as plt

    drawing, (left, right) = plt.subplots(1, 2, figsize=(10, 4), facecolor="white", layout="constrained")
    _panel(left, results.keys, "Keys: times the cost of a check on one")
    left.set_xscale("log")
    _panel(right, results.chain, "Limits in a chain: times the cost of one")
    right.set_xticks([1, 2, 4, 8])
    drawing.savefig(path, metadata={"Date": None} if path.suffix == ".svg" else None, dpi=110)
    plt.close(drawing)


def _panel(axes: Any, stores: dict[str, Times], title: str) -> None:
    for (store, kind), (name, colour) in LINES.items():
        times = stores.get(store, {}).get(kind)
        if times:
            first = times[next(iter(times))]
            ratios = [growth(mine, first) for mine in times.values()]
            sizes = [int(size) for size in times]
            label = f"{name}: {median(first):.2f} µs"
            medians = [one.median for one in ratios]
            axes.plot(sizes, medians, "o-", color=colour, linewidth=1.6, markersize=4, label=label)
            axes.fill_between(
                sizes, [one.low for one in ratios], [one.high for one in ratios], color=colour, alpha=0.2, linewidth=0
            )
    axes.set_ylim(0)
    axes.legend(loc="upper left", frameon=False, fontsize=8, labelcolor=INK)
    axes.set_title(title, loc="left", color=INK, fontsize=11)
    axes.tick_params(colors=INK)
    for side in ("top", "right"):
        axes.spines[side].set_visible(False)
