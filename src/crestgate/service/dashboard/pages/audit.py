"""`/audit`: who changed what, when, from where."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from typing import Any

from starlette.requests import Request
from starlette.responses import Response

from crestgate.errors import ValidationError
from crestgate.rules.audit_log import read_audit
from crestgate.rules.port import AuditEntry, AuditQuery
from crestgate.service.admin.errors import naming_fields
from crestgate.service.admin.params import parse_timestamps
from crestgate.service.dashboard.site import Site, page, show

__all__ = ["ROUTES", "changed_fields"]

PAGE = 50
FILTERS = ("actor", "subject", "since", "until", "before")
HIDDEN = frozenset({"created_at", "updated_at", "version"})


async def audit(site: Site, request: Request) -> Response:
    given = {name: request.query_params.get(name, "").strip()[:1100] for name in FILTERS}
    problem = ""
    entries: list[AuditEntry] = []
    older: str | None = None
    try:
        when = parse_timestamps({"since": given["since"] or None, "until": given["until"] or None})
        query = AuditQuery(
            given["actor"] or None,
            given["subject"] or None,
            when["since"],
            when["until"],
            given["before"] or None,
            PAGE,
        )
        with naming_fields():
            entries, older = await asyncio.to_thread(read_audit, site.context.dependencies.repository, query)
    except ValidationError as error:
        problem = str(error)
    return await show(
        site,
        request,
        "audit.html",
        400 if problem else 200,
        entries=[(entry, changed_fields(entry)) for entry in entries],
        older=older or "",
        filters=given,
        problem=problem,
    )


def changed_fields(entry: AuditEntry) -> list[tuple[str, Any, Any]]:
    """The fields that a change has changed, with their values before and after."""
    before: Mapping[str, Any] = entry.before or {}
    after: Mapping[str, Any] = entry.after or {}
    names = [name for name in dict.fromkeys((*before, *after)) if name not in HIDDEN]
    if entry.before is None or entry.after is None:
        return [
            (name, before.get(name), after.get(name))
            for name in names
            if (before or after).get(name) not in (None, "*", "")
        ]
    return [(name, before.get(name), after.get(name)) for name in names if before.get(name) != after.get(name)]


ROUTES = [page("/audit", audit)]
