"""Usage statistics: `/api/v1/stats`."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Annotated, Any

from fastapi import APIRouter
from fastapi import Query as QueryParameters
from pydantic import Field
from starlette.responses import Response

from crestgate.errors import CrestgateError, Problem, ValidationError
from crestgate.history.port import Step, UsagePoint
from crestgate.rules.timestamps import format_timestamp
from crestgate.service.admin.context import ContextDep
from crestgate.service.admin.models import Stats
from crestgate.service.admin.params import Query, parse_timestamps
from crestgate.service.admin.responses import describe, json_response

__all__ = ["router"]

HOUR_US = 3_600_000_000
DEFAULT_SPAN_US = {"minute": HOUR_US, "hour": 24 * HOUR_US}
"""The default time range."""
Sums = dict[Any, list[int]]
router = APIRouter(tags=["statistics"])


class StatsQuery(Query):
    """Time range and resolution."""

    since: Annotated[
        str | None,
        Field(
            description="From then on: RFC 3339, or unix seconds. Default: an hour (`step` hour: a day) before `until`."
        ),
    ] = None
    until: Annotated[str | None, Field(description="Before this time; now by default.")] = None
    step: Annotated[Step, Field(description="Minutes are kept for 30 days, hours for a year.")] = "minute"
    rule: Annotated[str | None, Field(description="Only this rule. `top` is always over all rules.")] = None
    top: Annotated[int, Field(ge=0, le=100, description="Number of subjects.")] = 10


@router.get("/api/v1/stats", **describe("Read the usage history", Stats, 400))
def read_stats(context: ContextDep, query: Annotated[StatsQuery, QueryParameters()]) -> Response:
    """Decisions over time, by rule, and of the subjects with most requests. The last seconds may still be missing."""
    when = parse_timestamps({"since": query.since, "until": query.until})
    until_us = context.now_us() if when["until"] is None else when["until"]
    since_us = max(until_us - DEFAULT_SPAN_US[query.step], 0) if when["since"] is None else when["since"]
    if since_us >= until_us:
        raise ValidationError([Problem("since", "must be before until")])
    history = context.dependencies.history
    try:
        points = history.usage(since_us, until_us, query.step, query.rule)
        top = history.top(since_us, until_us, query.top) if query.top else []
    except CrestgateError:
        raise
    except ValueError as error:  # more than one response may have
        raise ValidationError([Problem("since", str(error))]) from None
    by_rule = sorted(_sums((point.rule, point) for point in points).items(), key=_most_denied)
    return json_response(
        {
            "since": format_timestamp(since_us),
            "until": format_timestamp(until_us),
            "step": query.step,
            "rule": query.rule,
            "totals": _totals(_sums((None, point) for point in points).get(None, [0, 0, 0])),
            "series": [
                {"at": format_timestamp(at_us), **_totals(counts)}
                for at_us, counts in sorted(_sums((point.at_us, point) for point in points).items())
            ],
            "rules": [{"rule": rule, **_totals(counts)} for rule, counts in by_rule],
            "top": [{"subject": one.subject, "allowed": one.allowed, "denied": one.denied} for one in top],
        }
    )


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
