"""The audit log: `/api/v1/audit`."""

from __future__ import annotations

from typing import Annotated

from fastapi import APIRouter
from fastapi import Query as QueryParameters
from pydantic import Field
from starlette.responses import Response

from crestgate.rules.audit_log import read_audit as read_entries
from crestgate.rules.port import AuditQuery
from crestgate.service.admin.context import ContextDep
from crestgate.service.admin.errors import naming_fields
from crestgate.service.admin.models import AuditPage
from crestgate.service.admin.params import MAX_PAGE, Query, parse_timestamps
from crestgate.service.admin.responses import describe, json_response

__all__ = ["router"]

router = APIRouter(tags=["audit"])


class EntriesQuery(Query):
    """Filter and page of the audit log."""

    actor: Annotated[str | None, Field(description="Only entries of exactly this actor, such as `key:ops`.")] = None
    subject: Annotated[
        str | None, Field(description="Only entries about exactly this subject, such as `rule:orders-per-user`.")
    ] = None
    since: Annotated[str | None, Field(description="From this time on: RFC 3339, or unix seconds.")] = None
    until: Annotated[str | None, Field(description="Before this time: RFC 3339, or unix seconds.")] = None
    before: Annotated[
        str | None, Field(description="Only entries older than this one: `next` of the previous page.")
    ] = None
    limit: Annotated[int, Field(ge=1, le=MAX_PAGE, description="Maximum number of entries.")] = 100
    requests: Annotated[
        bool, Field(description="Also `reset requested` and the like, which are written before the outcome.")
    ] = False


@router.get("/api/v1/audit", **describe("Read the audit log", AuditPage, 400))
def read_audit(context: ContextDep, query: Annotated[EntriesQuery, QueryParameters()]) -> Response:
    """Every write and reset of the last 90 days, the newest first: actor, action, before, after, time, address."""
    when = parse_timestamps({"since": query.since, "until": query.until})
    audit_query = AuditQuery(query.actor, query.subject, when["since"], when["until"], query.before, query.limit)
    with naming_fields():
        entries, following = read_entries(context.dependencies.repository, audit_query, requests=query.requests)
    return json_response({"entries": [entry.to_data() for entry in entries], "next": following})
