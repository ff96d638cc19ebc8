"""Formatting of figures for the parts that call servers: ratios with their noise, and targets met or missed."""

from __future__ import annotations

from collections.abc import Sequence

from benchmarks.figures import Spread
from benchmarks.network.results import Aim
from benchmarks.page import table

__all__ = ["in_times", "milliseconds", "missed", "targets_table"]


def in_times(times: Spread) -> str:
    digits = 2 if times.high < 10 else 1
    return f"{times.median:.{digits}f} ({times.low:.{digits}f}–{times.high:.{digits}f})"


def milliseconds(p50: float, p99: float) -> str:
    """Of microseconds."""
    return f"{p50 / 1000:.2f} / {p99 / 1000:.2f}"


def targets_table(aims: Sequence[Aim]) -> str:
    """Every target with its measurement, as a table that is also readable in a terminal."""
    rows = [[aim.what, aim.target, in_times(aim.measured), "met" if aim.met else "**missed**"] for aim in aims]
    return table(["what", "target", "measured", ""], rows)


def missed(aims: Sequence[Aim]) -> str:
    """The content of the table in a sentence."""
    found = [aim for aim in aims if not aim.met]
    if not found:
        narrow = [aim.what for aim in aims if aim.measured.low < aim.bound]
        return "All were met" + (f", though not in nine rounds of ten: {'; '.join(narrow)}." if narrow else ".")
    return "Missed: " + "; ".join(f"{aim.what} ({aim.measured.median:.2f}, {aim.target})" for aim in found) + "."
