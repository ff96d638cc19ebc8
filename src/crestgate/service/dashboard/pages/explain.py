"""`/explain`: what a request would be answered, and why; nothing is consumed."""

from __future__ import annotations

import json
from typing import Any

import msgspec
from starlette.requests import Request
from starlette.responses import Response

from crestgate.core.dimensions import IDENTIFIED, is_attribute_name
from crestgate.errors import InvalidRequestError
from crestgate.service.checks.explain import ExplainService
from crestgate.service.checks.forms import read_check
from crestgate.service.dashboard.site import Site, page, show

__all__ = ["ROUTES"]

FIELDS = ("user", "ip", "client", "key", "path", "method", "tier")
"""Of a request context. API keys are secrets, which a query would leave in the history of the browser."""
ATTRIBUTES = "attributes"
"""Own dimensions: `org=acme, model=large`."""
MAX_FIELD = 1024


async def explain(site: Site, request: Request) -> Response:
    fields = {name: request.query_params.get(name, "").strip()[:MAX_FIELD] for name in (*FIELDS, ATTRIBUTES, "cost")}
    _add_subject(fields, request)
    explained: dict[str, Any] | None = None
    problem = ""
    if any(fields[name] for name in (*FIELDS, ATTRIBUTES)) and "show" in request.query_params:
        context: dict[str, Any] = {name: fields[name] for name in FIELDS if fields[name]}
        if fields[ATTRIBUTES]:
            pairs = [part.partition("=") for part in fields[ATTRIBUTES].split(",")]
            context[ATTRIBUTES] = {name.strip(): value.strip() for name, _, value in pairs}
        cost = int(fields["cost"]) if fields["cost"].isascii() and fields["cost"].isdigit() else fields["cost"] or 1
        try:
            check = read_check(json.dumps({"context": context, "cost": cost}).encode())
            explained = await ExplainService(site.checks).explain(check)
            explained["decision"] = msgspec.to_builtins(explained["decision"])
        except InvalidRequestError as error:
            problem = f"{error.field}: {error.message}" if error.field else error.message
    return await show(
        site, request, "explain.html", 400 if problem else 200, fields=fields, explained=explained, problem=problem
    )


def _add_subject(fields: dict[str, str], request: Request) -> None:
    """The subject that a page was about, as a field."""
    dimension = request.query_params.get("dimension", "")
    attribute = next((one.attribute for one in IDENTIFIED if one.name == dimension), None)
    identifier = request.query_params.get("identifier", "")[:MAX_FIELD]
    if attribute in fields:
        fields[attribute] = identifier
    elif is_attribute_name(dimension):
        fields[ATTRIBUTES] = f"{dimension}={identifier}"


ROUTES = [page("/explain", explain)]
