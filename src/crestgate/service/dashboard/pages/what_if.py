"""`/what-if`: recent traffic, replayed against a rule that is not in force yet."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Mapping
from typing import Any

from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import Response

from crestgate.errors import NotFoundError, ValidationError
from crestgate.service.admin.simulate import simulate_rules
from crestgate.service.dashboard.pages.rules import CHOICES, EMPTY, limit_of_fields, rule_body, rule_fields
from crestgate.service.dashboard.site import Site, form, page, show

__all__ = ["ROUTES"]

MINUTES = (5, 15, 60)


async def ask(site: Site, request: Request) -> Response:
    """`GET /what-if`, with the fields of a rule where one is named."""
    rules = await asyncio.to_thread(site.context.rules)
    rule = rules.rules.get(request.query_params.get("rule_id", ""))
    fields = {**EMPTY, "mode": "enforce", "minutes": "60"}
    if rule is not None:
        fields |= {**rule_fields(rule), "mode": "enforce"}
    return await _show(site, request, fields)


async def simulate(site: Site, request: Request, given: dict[str, str]) -> Response:
    """`POST /what-if`: it changes nothing, so the scope read is enough."""
    fields = {**EMPTY, "minutes": "60", **given}
    body = rule_body(fields)
    body.setdefault("name", "what if")
    minutes = int(fields["minutes"]) if fields["minutes"] in map(str, MINUTES) else 60
    try:
        response = await asyncio.to_thread(simulate_rules, site.context, {"rules": [body], "minutes": minutes})
    except ValidationError as error:
        problems = {one.field.removeprefix("rules[0].").removeprefix("rules[0]"): one.message for one in error.problems}
        return await _show(site, request, fields, 400, problems=problems)
    except NotFoundError as error:
        return await _show(site, request, fields, 404, problems={"": str(error)})
    except HTTPException as error:
        return await _show(site, request, fields, error.status_code, problems={"": error.detail})
    return await _show(site, request, fields, report=json.loads(bytes(response.body)))


async def _show(
    site: Site,
    request: Request,
    fields: Mapping[str, str],
    status: int = 200,
    problems: Mapping[str, str] | None = None,
    report: Mapping[str, Any] | None = None,
) -> Response:
    points = report["series"]["points"] if report else []
    series = (
        ("allowed", [one["requests"] - one["denied"] for one in points]),
        ("denied", [one["denied"] for one in points]),
        ("shadow", [one.get("denied_against") or 0 for one in points]),
    )
    return await show(
        site,
        request,
        "what_if.html",
        status,
        fields=fields,
        problems=problems or {},
        report=report,
        series=series,
        limit_words=limit_of_fields(fields),
        minutes=MINUTES,
        **CHOICES,
    )


ROUTES = [page("/what-if", ask), form("/what-if", simulate, need="read")]
