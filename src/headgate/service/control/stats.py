"""How much was let through and how much was not: `/api/v1/stats`."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Annotated, Any

from fastapi import APIRouter
from fastapi import Query as QueryParameters
from pydantic import Field
from starlette.responses import Response

from headgate.errors import HeadgateError, Invalid, Problem
from headgate.history.port import Step, UsagePoint
from headgate.rules.moments import moment_text
from headgate.service.control.asking import Query, moments
from headgate.service.control.desk import TheDesk
from headgate.service.control.models import Stats
from headgate.service.control.saying import answer, says

__all__ = ["router"]

HOUR_US = 3_600_000_000
USUAL_US = {"minute": HOUR_US, "hour": 24 * HOUR_US}
"""How far back it goes unless said."""
Sums = dict[Any, list[int]]
router = APIRouter(tags=["statistics"])


class StatsQuery(Query):
    """Which time, and how fine."""

    since: Annotated[
        str | None,
        Field(
            description="From then on: RFC 3339, or unix seconds. An hour before `until` unless said, a day by hour."
        ),
    ] = None
    until: Annotated[str | None, Field(description="Before then; now unless said.")] = None
    step: Annotated[Step, Field(description="Minutes are kept for 30 days, hours for a year.")] = "minute"
    rule: Annotated[str | None, Field(description="Only this rule. `top` is of all rules all the same.")] = None
    top: Annotated[int, Field(ge=0, le=100, description="How many subjects.")] = 10


@router.get("/api/v1/stats", **says("Read the usage history", Stats, 400))
def read_stats(desk: TheDesk, query: Annotated[StatsQuery, QueryParameters()]) -> Response:
    """Decisions over time, by rule, and of the subjects that asked most. What was decided within the last moments may
    not be there yet."""
    when = moments({"since": query.since, "until": query.until})
    until_us = desk.now_us() if when["until"] is None else when["until"]
    since_us = max(until_us - USUAL_US[query.step], 0) if when["since"] is None else when["since"]
    if since_us >= until_us:
        raise Invalid([Problem("since", "must be before until")])
    history = desk.parts.history
    try:
        points = history.usage(since_us, until_us, query.step, query.rule)
        top = history.top(since_us, until_us, query.top) if query.top else []
    except HeadgateError:
        raise
    except ValueError as error:  # more than it answers at a time
        raise Invalid([Problem("since", str(error))]) from None
    by_rule = sorted(_sums((point.rule, point) for point in points).items(), key=_most_denied)
    return answer(
        {
            "since": moment_text(since_us),
            "until": moment_text(until_us),
            "step": query.step,
            "rule": query.rule,
            "totals": _named(_sums((None, point) for point in points).get(None, [0, 0, 0])),
            "series": [
                {"at": moment_text(at_us), **_named(counts)}
                for at_us, counts in sorted(_sums((point.at_us, point) for point in points).items())
            ],
            "rules": [{"rule": rule, **_named(counts)} for rule, counts in by_rule],
            "top": [{"subject": one.subject, "allowed": one.allowed, "denied": one.denied} for one in top],
        }
    )


def _sums(points: Iterable[tuple[Any, UsagePoint]]) -> Sums:
    """Points added up by what stands before each."""
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


def _named(counts: list[int]) -> dict[str, int]:
    return dict(zip(("allowed", "denied", "shadowed"), counts, strict=True))
