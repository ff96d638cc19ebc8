"""One chart that shows the factors and the targets at a glance."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from benchmarks.candidates import ALGORITHMS
from benchmarks.figures import Build, Contest, Results
from benchmarks.page import MEMORY_AIM, SHARED_AIM

__all__ = ["COLOURS", "INK", "draw"]

COLOURS = {"compiled": "#5b9bd0", "pure": "#f2b56b"}
DARK = {"compiled": "#12406b", "pure": "#9c5300"}
BUILD_LABELS = {"compiled": "compiled", "pure": "plain Python"}
INK = "#2b2b2b"
THICK = 0.36


def draw(results: Results, path: Path) -> None:
    """Bars of times faster, memory above and shared memory below, with the targets as lines."""
    import matplotlib as mpl

    mpl.use("Agg")
    mpl.rcParams["svg.hashsalt"] = "crestgate"  # the same figures give the same file
    import matplotlib.pyplot as plt

    figure, (above, below) = plt.subplots(2, 1, figsize=(9, 9.6), facecolor="white", layout="constrained")
    _panel(above, results, lambda build: build.admitted, "A check in memory: times faster than the fastest peer")
    _panel(
        below,
        results,
        lambda build: build.shared,
        "A check in shared memory: times faster than the fastest peer's call to a Redis on loopback",
    )
    _target(above, MEMORY_AIM, "target, memory", DARK["compiled"])
    _target(below, SHARED_AIM, "target, shared memory", INK)
    below.set_xlabel("times faster; thin lines reach from the 10th to the 90th percentile of the rounds", color=INK)
    # The bars first, then the lines of the targets.
    known = [axes.get_legend_handles_labels() for axes in (above, below)]
    named = {label: handle for handles, labels in known for handle, label in zip(handles, labels, strict=True)}
    order = sorted(named, key=lambda label: label.startswith("target"))
    handles = [named[label] for label in order]
    figure.legend(handles, order, loc="outside upper center", ncols=len(order), frameon=False, labelcolor=INK)
    figure.savefig(path, metadata={"Date": None} if path.suffix == ".svg" else None, dpi=110)
    plt.close(figure)


def _panel(axes: Any, results: Results, contests: Callable[[Build], Sequence[Contest]], title: str) -> None:
    most = 1.0
    for index, build in enumerate(results.builds):
        found = {one.algorithm: one for one in contests(build) if one.form == "bound"}
        algorithms = [algorithm for algorithm in ALGORITHMS if algorithm in found]
        rows = [
            ALGORITHMS.index(algorithm) + (index - (len(results.builds) - 1) / 2) * THICK for algorithm in algorithms
        ]
        times = [found[algorithm].fastest.times for algorithm in algorithms]
        axes.barh(
            rows,
            [one.median for one in times],
            height=THICK,
            color=COLOURS[build.name],
            label=BUILD_LABELS[build.name],
            xerr=[[one.median - one.low for one in times], [one.high - one.median for one in times]],
            error_kw={"ecolor": "#4d4d4d", "elinewidth": 1},
        )
        for row, one in zip(rows, times, strict=True):
            axes.annotate(
                f"{one.median:.1f}×",
                (one.high, row),
                xytext=(5, 0),
                textcoords="offset points",
                va="center",
                color=INK,
                fontsize=9,
                bbox={"facecolor": "white", "edgecolor": "none", "pad": 2},  # a target's line stops at the figure
                zorder=4,
            )
            most = max(most, one.high)
    axes.set_xlim(0, most * 1.12)
    axes.set_yticks(range(len(ALGORITHMS)), [algorithm.replace("_", " ") for algorithm in ALGORITHMS])
    axes.set_ylim(len(ALGORITHMS) - 0.4, -0.6)
    axes.set_title(title, loc="left", color=INK, fontsize=11, pad=20)
    axes.tick_params(colors=INK, length=0)
    for side in ("top", "right", "left"):
        axes.spines[side].set_visible(False)


def _target(axes: Any, times: float, label: str, colour: str) -> None:
    """A line across the bars, with its figure above the panel, where no bar is."""
    axes.set_xlim(0, max(axes.get_xlim()[1], times * 1.12))
    axes.axvline(times, color=colour, linestyle="--", linewidth=1.3, zorder=3, label=label)
    axes.annotate(
        f"{times:g}×",
        (times, 1),
        xycoords=("data", "axes fraction"),
        xytext=(0, 3),
        textcoords="offset points",
        ha="center",
        va="bottom",
        color=colour,
        fontsize=9,
    )
