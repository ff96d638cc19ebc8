"""Formatting of figures, for all parts: tables, ratios with their noise, and targets met or missed."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from benchmarks.aims import Aim
from benchmarks.figures import Spread

__all__ = ["described", "in_times", "milliseconds", "missed", "table", "targets_table"]


def in_times(times: Spread) -> str:
    if times.median >= 1000:
        return f"{times.median:,.0f} ({times.low:,.0f}–{times.high:,.0f})"
    digits = 2 if times.high < 10 else 1
    return f"{times.median:.{digits}f} ({times.low:.{digits}f}–{times.high:.{digits}f})"


def milliseconds(p50: float, p99: float) -> str:
    """Of microseconds."""
    return f"{p50 / 1000:.2f} / {p99 / 1000:.2f}"


def targets_table(aims: Sequence[Aim]) -> str:
    """Every target with its measurement, as a table that is also readable in a terminal."""
    rows = []
    for aim in aims:
        word = "met" if aim.met else "**missed**"
        rows.append([aim.what, aim.target, in_times(aim.measured), word + (f" ({aim.note})" if aim.note else "")])
    return table(["what", "target", "measured", ""], rows)


def described(values: Mapping[str, str]) -> str:
    """A machine or versions, in a line."""
    return ", ".join(f"{name} {value}" for name, value in values.items())


def missed(aims: Sequence[Aim]) -> str:
    """The content of the table in a sentence."""
    found = [aim for aim in aims if not aim.met]
    if not found:
        narrow = [aim.what for aim in aims if aim.measured.low < aim.bound]
        return "All were met" + (f", though not in nine rounds of ten: {'; '.join(narrow)}." if narrow else ".")
    return "Missed: " + "; ".join(f"{aim.what} ({aim.measured.median:.2f}, {aim.target})" for aim in found) + "."


def table(header: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    """A table that is also readable in a terminal."""
    widths = [max(1, *(len(row[column]) for row in [header, *rows])) for column in range(len(header))]
    lines = [header, ["-" * width for width in widths], *rows]
    return "\n".join(
        "| " + " | ".join(cell.ljust(width) for cell, width in zip(line, widths, strict=True)) + " |" for line in lines
    )
