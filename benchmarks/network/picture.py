"""The chart of stores across a network: checks per second, and the time of a check."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from benchmarks.aims import Aim
from benchmarks.network.results import REQUIRED_PER_SECOND, Measured, Results, aims
from benchmarks.picture import COLOURS, INK

__all__ = ["OURS", "SINGLE", "THEIRS", "draw", "figure", "frame", "targets"]

OURS, THEIRS, SINGLE = COLOURS["compiled"], "#c9c9c9", COLOURS["pure"]
MET, MISSED = "#2e7d4f", "#b3372f"
DATABASES = {"mariadb": "MariaDB", "postgresql": "PostgreSQL", "sqlite": "SQLite"}


def draw(results: Results, path: Path) -> None:
    """Redis above, the databases below it, and at the bottom every target with what was measured."""
    import matplotlib as mpl

    mpl.use("Agg")
    mpl.rcParams["svg.hashsalt"] = "crestgate"  # the same figures give the same file
    import matplotlib.pyplot as plt

    on_redis = list(results.outcomes["redis"].measured) if "redis" in results.outcomes else []
    on_redis.sort(key=lambda one: -one.median("per_second"))
    on_disk = [
        (f"{title}: {one.entry.label}", one)
        for name, title in DATABASES.items()
        if name in results.outcomes
        for one in results.outcomes[name].measured
    ]
    reached = aims(results)
    heights = [len(on_redis) + 2, len(on_disk) + 2, len(reached) + 3]
    drawing, (above, middle, below) = plt.subplots(
        3,
        1,
        figsize=(10, 0.27 * sum(heights)),
        facecolor="white",
        layout="constrained",
        gridspec_kw={"height_ratios": heights},
    )
    _rates(above, [(one.entry.label, one) for one in on_redis], "Redis, 100 tasks on 1,000 keys: checks per second")
    _rates(middle, on_disk, "Databases: checks per second")
    middle.axvline(REQUIRED_PER_SECOND, color=INK, linestyle="--", linewidth=1.2, zorder=3)
    middle.annotate(
        f"required: {REQUIRED_PER_SECOND:,}",
        (REQUIRED_PER_SECOND, 1),
        xycoords=("data", "axes fraction"),
        xytext=(3, 3),
        textcoords="offset points",
        color=INK,
        fontsize=9,
    )
    targets(below, reached)
    drawing.savefig(path, metadata={"Date": None} if path.suffix == ".svg" else None, dpi=110)
    plt.close(drawing)


def _rates(axes: Any, named: Sequence[tuple[str, Measured]], title: str) -> None:
    """A bar for each contender: Crestgate, Crestgate one by one, and the others, each in its own colour."""
    colours = {"crestgate": OURS, "crestgate leased": OURS, "crestgate one by one": SINGLE}
    rates = [one.median("per_second") for _, one in named]
    axes.barh(range(len(named)), rates, height=0.7, color=[colours.get(one.entry.library, THEIRS) for _, one in named])
    for row, rate in enumerate(rates):
        figure(axes, rate, row, f"{rate:,.0f}")
    frame(axes, [name for name, _ in named], title)
    axes.set_xlim(0, max(rates, default=1.0) * 1.12)
    axes.xaxis.set_major_formatter(lambda value, _: f"{value:,.0f}")


def targets(axes: Any, reached: Sequence[Aim]) -> None:
    """Each ratio on a scale of halves and doubles, with a mark where its target is."""
    for row, aim in enumerate(reached):
        colour = MET if aim.met else MISSED
        axes.plot([aim.measured.low, aim.measured.high], [row, row], color=colour, linewidth=1.3, zorder=2)
        axes.plot([aim.measured.median], [row], "o", color=colour, markersize=6, zorder=3)
        axes.plot([aim.bound], [row], "|", color=INK, markersize=15, markeredgewidth=2, zorder=4)
        word = "met" if aim.met else "missed"
        figure(axes, max(aim.measured.high, aim.bound), row, f"{aim.measured.median:.2f}×, {aim.target} {word}")
    axes.set_xscale("log", base=2)
    low, high = axes.get_xlim()
    axes.set_xlim(low, high * 8)
    axes.xaxis.set_major_formatter(lambda value, _: f"{value:g}×")
    names = [aim.what for aim in reached]
    frame(axes, names, "Targets (|) and ratios: median, 10th to 90th percentile")


def frame(axes: Any, names: Sequence[str], title: str) -> None:
    """A panel of rows with their names, and nothing around it."""
    axes.set_yticks(range(len(names)), names)
    axes.set_ylim(len(names) - 0.4, -0.6)
    axes.set_title(title, loc="left", color=INK, fontsize=11, pad=18)
    axes.tick_params(colors=INK, length=0, labelsize=9)
    for side in ("top", "right", "left"):
        axes.spines[side].set_visible(False)


def figure(axes: Any, position: float, row: int, text: str) -> None:
    """A figure at the end of a row's bar."""
    axes.annotate(
        text,
        (position, row),
        xytext=(6, 0),
        textcoords="offset points",
        va="center",
        color=INK,
        fontsize=9,
        bbox={"facecolor": "white", "edgecolor": "none", "pad": 1},
        zorder=5,
    )
