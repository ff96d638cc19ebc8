"""Who did what: `/api/v1/audit`."""

from __future__ import annotations

from typing import Annotated, Any

from fastapi import APIRouter
from fastapi import Query as QueryParameters
from pydantic import Field
from starlette.responses import Response

from headgate.errors import HeadgateError, Invalid, Problem
from headgate.rules.moments import moment_text
from headgate.rules.repositories.port import AuditEntry, AuditQuery
from headgate.service.control.asking import MOST_A_PAGE, Query, moments
from headgate.service.control.desk import TheDesk
from headgate.service.control.models import AuditPage
from headgate.service.control.saying import answer, says

__all__ = ["router"]

router = APIRouter(tags=["audit"])


class EntriesQuery(Query):
    """Which entries."""

    actor: Annotated[str | None, Field(description="Only what was done by exactly this one, such as `key:ops`.")] = None
    subject: Annotated[
        str | None, Field(description="Only what was done to exactly this one, such as `rule:orders-per-user`.")
    ] = None
    since: Annotated[str | None, Field(description="From then on: RFC 3339, or unix seconds.")] = None
    until: Annotated[str | None, Field(description="Before then: RFC 3339, or unix seconds.")] = None
    before: Annotated[str | None, Field(description="Older than this entry: `next` of the page before.")] = None
    limit: Annotated[int, Field(ge=1, le=MOST_A_PAGE, description="How many at most.")] = 100


@router.get("/api/v1/audit", **says("Read the audit log", AuditPage, 400))
def read_audit(desk: TheDesk, query: Annotated[EntriesQuery, QueryParameters()]) -> Response:
    """Every write and every reset of the last 90 days, the newest first: who, what, before, after, when, from where."""
    when = moments({"since": query.since, "until": query.until})
    wanted = AuditQuery(query.actor, query.subject, when["since"], when["until"], query.before, query.limit + 1)
    try:
        found = desk.parts.repository.audit(wanted)
    except HeadgateError:
        raise
    except ValueError as error:
        raise Invalid([Problem("before", str(error).removeprefix("before "))]) from None
    shown = found[: query.limit]
    following = shown[-1].id if len(found) > query.limit else None
    return answer({"entries": [_shown(entry) for entry in shown], "next": following})


def _shown(entry: AuditEntry) -> dict[str, Any]:
    return {
        "id": entry.id,
        "at": moment_text(entry.at_us),
        "actor": entry.actor,
        "address": entry.address,
        "action": entry.action,
        "subject": entry.subject,
        "before": None if entry.before is None else dict(entry.before),
        "after": None if entry.after is None else dict(entry.after),
    }
