"""The usage history as `/api/v1/stats` and `crestgate stats` report it."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from crestgate.history.port import History, Step, SubjectUsage, UsagePoint
from crestgate.rules.timestamps import format_timestamp

__all__ = ["DEFAULT_SPAN_US", "usage_report"]

HOUR_US = 3_600_000_000
DEFAULT_SPAN_US = {"minute": HOUR_US, "hour": 24 * HOUR_US}
"""The default time range."""
Sums = dict[Any, list[int]]


def usage_report(
    history: History, since_us: int, until_us: int, step: Step, rule: str | None, top: int
) -> dict[str, Any]:
    """Totals, a series over time, totals by rule, and the top subjects. ValueError if the range has too many points."""
    points = history.usage(since_us, until_us, step, rule)
    by_rule = sorted(_sums((point.rule, point) for point in points).items(), key=_most_denied)
    return {
        "since": format_timestamp(since_us),
        "until": format_timestamp(until_us),
        "step": step,
        "rule": rule,
        "totals": _totals(_sums((None, point) for point in points).get(None, [0, 0, 0])),
        "series": [
            {"at": format_timestamp(at_us), **_totals(counts)}
            for at_us, counts in sorted(_sums((point.at_us, point) for point in points).items())
        ],
        "rules": [{"rule": rule, **_totals(counts)} for rule, counts in by_rule],
        "top": _subjects(history.top(since_us, until_us, top) if top else ()),
        "top_denied": _subjects(history.top(since_us, until_us, top, "denied") if top else ()),
    }


def _subjects(top: Iterable[SubjectUsage]) -> list[dict[str, Any]]:
    return [{"subject": one.subject, "allowed": one.allowed, "denied": one.denied} for one in top]


def _sums(points: Iterable[tuple[Any, UsagePoint]]) -> Sums:
    """Totals of the points of each group."""
    sums: Sums = {}
    for name, point in points:
        counts = sums.setdefault(name, [0, 0, 0])
        counts[0] += point.allowed
        counts[1] += point.denied
        counts[2] += point.shadowed
    return sums


def _most_denied(item: tuple[str, list[int]]) -> tuple[int, int, str]:
    rule, (allowed, denied, _) = item
    return -denied, -allowed, rule


def _totals(counts: list[int]) -> dict[str, int]:
    return dict(zip(("allowed", "denied", "shadowed"), counts, strict=True))
