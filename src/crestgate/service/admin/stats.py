"""Usage statistics: `/api/v1/stats`."""

from __future__ import annotations

from typing import Annotated

from fastapi import APIRouter
from fastapi import Query as QueryParameters
from pydantic import Field
from starlette.responses import Response

from crestgate.errors import CrestgateError, Problem, ValidationError
from crestgate.history.port import Step
from crestgate.service.admin.context import ContextDep
from crestgate.service.admin.models import Stats
from crestgate.service.admin.params import Query, parse_timestamps
from crestgate.service.admin.responses import describe, json_response
from crestgate.service.observability.usage_report import DEFAULT_SPAN_US, usage_report

__all__ = ["router"]

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
    rule: Annotated[
        str | None, Field(description="Only this rule. `top` and `top_denied` are always over all rules.")
    ] = None
    top: Annotated[int, Field(ge=0, le=100, description="Number of subjects in `top` and in `top_denied`.")] = 10


@router.get("/api/v1/stats", **describe("Read the usage history", Stats, 400))
def read_stats(context: ContextDep, query: Annotated[StatsQuery, QueryParameters()]) -> Response:
    """Decisions over time, by rule, and by subject: most requests, most denials. The last seconds may be missing."""
    when = parse_timestamps({"since": query.since, "until": query.until})
    until_us = context.now_us() if when["until"] is None else when["until"]
    since_us = max(until_us - DEFAULT_SPAN_US[query.step], 0) if when["since"] is None else when["since"]
    if since_us >= until_us:
        raise ValidationError([Problem("since", "must be before until")])
    history = context.dependencies.history
    try:
        return json_response(usage_report(history, since_us, until_us, query.step, query.rule, query.top))
    except CrestgateError:
        raise
    except ValueError as error:  # more than one response may have
        raise ValidationError([Problem("since", str(error))]) from None
