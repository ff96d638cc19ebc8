"""`/rules`: list, search, create, edit, delete, and the way of a rule from shadow to enforce.

Changes are made by the handlers of the admin API, so validation, versions, audit and notifications are the same.
"""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from contextlib import suppress
from typing import Any
from urllib.parse import quote

from starlette.requests import Request
from starlette.responses import PlainTextResponse, Response

from crestgate.core.algorithms import ALGORITHMS
from crestgate.core.calendar_units import CALENDAR_UNITS
from crestgate.core.dimensions import DIMENSIONS, split_parts
from crestgate.core.failure_policies import FAILURE_POLICIES
from crestgate.core.limit import CALENDAR_ALGORITHM
from crestgate.errors import ConflictError, CrestgateError, NotFoundError, ReadOnlyError, ValidationError
from crestgate.rules.rule import DEFAULT_RULE_ALGORITHM, MODES, Rule
from crestgate.rules.timestamps import format_timestamp
from crestgate.service.admin import rules as api
from crestgate.service.dashboard import words
from crestgate.service.dashboard.forms import without_separators
from crestgate.service.dashboard.rendering import SECURITY_HEADERS
from crestgate.service.dashboard.site import Site, done, form, page, show
from crestgate.service.dashboard.usage import rule_usage
from crestgate.service.observability.labels import rule_label

__all__ = ["CHOICES", "EMPTY", "ROUTES", "limit_of_fields", "rule_body", "rule_fields"]

PAGE = 50
MAX_SEARCH = 200
TEXTS = ("name", "rule_id", "dimension", "identifier", "endpoint_pattern", "method", "tier", "algorithm", "mode")
OPTIONAL_TEXTS = ("calendar", "timezone", "on_store_error", "store", "expires_at")
NUMBERS = ("limit", "window_seconds", "burst")
EMPTY = {
    "name": "",
    "rule_id": "",
    "dimension": "user",
    "identifier": "*",
    "endpoint_pattern": "*",
    "method": "*",
    "tier": "*",
    "algorithm": DEFAULT_RULE_ALGORITHM,
    "limit": "100",
    "window_seconds": "60",
    "calendar": "",
    "timezone": "",
    "burst": "",
    "mode": "shadow",
    "on_store_error": "",
    "store": "",
    "expires_at": "",
    "headers": "",
    "lease": "",
}
CHOICES = {
    "dimensions": DIMENSIONS,
    "algorithms": tuple(ALGORITHMS),
    "calendar_units": tuple(CALENDAR_UNITS),
    "modes": MODES,
    "policies": FAILURE_POLICIES,
}


async def list_rules(site: Site, request: Request) -> Response:
    """`GET /rules`."""
    search = request.query_params.get("q", "")[:MAX_SEARCH]
    mode = request.query_params.get("mode", "")
    rules = (await asyncio.to_thread(site.context.rules)).rules
    found = await asyncio.to_thread(_search, rules, search, mode, site.now_us())
    pages = max(-(-len(found) // PAGE), 1)
    number = min(max(_number(request.query_params.get("page", "1")), 1), pages)
    shown = found[(number - 1) * PAGE : number * PAGE]
    return await show(
        site,
        request,
        "rules.html",
        rules=[rules[rule_id] for rule_id in shown],
        found=len(found),
        total=len(rules),
        number=number,
        page_count=pages,
        search=search,
        mode=mode,
        modes=MODES,
        first=(number - 1) * PAGE + 1,
        unreadable=site.context.dependencies.catalog.unreadable[:10],
    )


async def show_rule(site: Site, request: Request) -> Response:
    """`GET /rules/{rule_id}`."""
    rule = await _known(site, request)
    history = site.context.dependencies.history
    hour, day = await asyncio.to_thread(rule_usage, history, rule_label(rule.rule_id), site.now_us())
    stored = await asyncio.to_thread(site.context.dependencies.repository.get, "rule", rule.rule_id)
    return await show(
        site, request, "rule.html", rule=rule, hour=hour, day=day, label=rule_label(rule.rule_id), stored=stored
    )


async def new_rule(site: Site, request: Request) -> Response:
    """`GET /rules/new`: a shadow rule, unless something else is chosen."""
    fields = {**EMPTY, **{name: value for name, value in request.query_params.items() if name in EMPTY}}
    return await _form(site, request, fields, None)


async def edit_rule(site: Site, request: Request) -> Response:
    """`GET /rules/{rule_id}/edit`."""
    rule = await _known(site, request)
    return await _form(site, request, rule_fields(rule), rule)


async def create(site: Site, request: Request, fields: dict[str, str]) -> Response:
    """`POST /rules/new`."""
    try:
        body = rule_body(fields)
        rule = Rule.read(body)
        await asyncio.to_thread(api.create_rule, site.context, site.editor(request), body)
    except (ValidationError, ConflictError) as error:
        return await _form(site, request, {**EMPTY, **fields}, None, error)
    return done(_url(rule.rule_id), "created")


async def replace(site: Site, request: Request, fields: dict[str, str]) -> Response:
    """`POST /rules/{rule_id}/edit`: the version that was shown must still be in force."""
    rule = await _known(site, request)
    try:
        body = {**rule_body(fields), "rule_id": rule.rule_id}
        await asyncio.to_thread(
            api.put_rule, site.context, site.editor(request), rule.rule_id, body, fields.get("version") or "0"
        )
    except (ReadOnlyError, NotFoundError):
        raise
    except CrestgateError as error:
        return await _form(site, request, {**rule_fields(rule), **fields}, rule, error)
    return done(_url(rule.rule_id), "saved")


async def set_mode(site: Site, request: Request, fields: dict[str, str]) -> Response:
    """`POST /rules/{rule_id}/mode`: shadow, enforce or disabled."""
    rule = await _known(site, request)
    body = {name: value for name, value in rule.body().items() if value is not None}
    body["mode"] = fields.get("mode", "")
    version = fields.get("version") or "0"
    await asyncio.to_thread(api.put_rule, site.context, site.editor(request), rule.rule_id, body, version)
    return done(_url(rule.rule_id), "saved")


async def delete(site: Site, request: Request, fields: dict[str, str]) -> Response:
    """`POST /rules/{rule_id}/delete`."""
    rule_id = request.path_params["rule_id"]
    version = fields.get("version") or "0"
    await asyncio.to_thread(api.delete_rule, site.context, site.editor(request), rule_id, version)
    return done("/rules", "deleted")


async def in_words(site: Site, request: Request) -> Response:
    """`GET /dashboard/words`: a limit in words, while it is typed."""
    names = ("limit", "window_seconds", "burst", "algorithm", "calendar", "timezone")
    text = limit_of_fields({name: request.query_params.get(name, "") for name in names})
    return PlainTextResponse(text, headers={**SECURITY_HEADERS, "Cache-Control": "no-store"})


async def _form(
    site: Site, request: Request, fields: Mapping[str, str], rule: Rule | None, error: CrestgateError | None = None
) -> Response:
    problems: dict[str, str] = {}
    if isinstance(error, ValidationError):
        problems = {one.field: one.message for one in error.problems}
    elif error is not None:
        problems = {"": str(error)}
    status = 200 if error is None else 400 if isinstance(error, ValidationError) else 409
    stores = site.context.dependencies.limiter.store
    names = stores.store_names() if hasattr(stores, "store_names") else ()
    return await show(
        site,
        request,
        "rule_form.html",
        status,
        fields=fields,
        rule=rule,
        problems=problems,
        limit_words=limit_of_fields(fields),
        store_names=names,
        **CHOICES,
    )


def limit_of_fields(fields: Mapping[str, str]) -> str:
    """The limit of a form in words; empty while it is not valid."""
    with suppress(ValueError, OverflowError):
        burst = int(fields["burst"]) if fields.get("burst") else None
        calendar, zone = fields.get("calendar") or None, fields.get("timezone") or None
        seconds = float(fields["window_seconds"]) if calendar is None else 0.0
        return words.limit_in_words(int(fields["limit"]), seconds, burst, fields["algorithm"], calendar, zone)
    return ""


def rule_fields(rule: Rule) -> dict[str, str]:
    """A rule as the fields of its form."""
    data = rule.to_data()
    fields = {name: "" if data.get(name) is None else str(data.get(name)) for name in EMPTY}
    if rule.calendar is None:
        fields["window_seconds"] = f"{rule.window_seconds:.6f}".rstrip("0").rstrip(".")
    fields["expires_at"] = format_timestamp(rule.expires_us) or ""
    fields["version"] = str(rule.version)
    fields |= {"dimension": rule.dimension, "identifier": rule.identifier, "headers": "" if rule.headers else "false"}
    fields["lease"] = "true" if rule.lease else ""
    return fields


def rule_body(fields: Mapping[str, str]) -> dict[str, Any]:
    """A form as the body of a request: empty fields are left out, and have their defaults."""
    body: dict[str, Any] = {}
    for name in (*TEXTS, *OPTIONAL_TEXTS):
        value = fields.get(name, "").strip()
        if value:
            body[name] = value
    if "," in body.get("dimension", ""):
        body["dimension"] = [name.strip() for name in body["dimension"].split(",")]
        if "," in body.get("identifier", ""):
            body["identifier"] = [value.strip() for value in split_parts(body["identifier"])]
    if fields.get("headers") == "false":
        body["headers"] = False
    if fields.get("lease") == "true":
        body["lease"] = True
    for name in NUMBERS:
        text = without_separators(fields.get(name, "").strip())
        if text:
            body[name] = _parsed(text)
    if "calendar" in body:  # the form has both, and the algorithm of a new rule
        body.pop("window_seconds", None)
        body["algorithm"] = CALENDAR_ALGORITHM
    else:
        body.pop("timezone", None)
    return body


def _parsed(text: str) -> int | float | str:
    """A number where it is one; else the text, about which the reader of rules says what is wrong."""
    for read in (int, float):
        try:
            return read(text)
        except ValueError:
            continue
    return text


def _search(rules: Mapping[str, Rule], search: str, mode: str, now_us: int) -> list[str]:
    """The ids of the rules that have all words of a search, sorted; expired ones are left out."""
    wanted = search.lower().split()
    return sorted(
        rule_id
        for rule_id, rule in rules.items()
        if (rule.expires_us is None or rule.expires_us > now_us)
        and (not mode or rule.mode == mode)
        and (not wanted or _has_all(rule, wanted))
    )


def _has_all(rule: Rule, wanted: list[str]) -> bool:
    parts = (rule.rule_id, rule.name, rule.dimension, rule.identifier, rule.endpoint_pattern, rule.method, rule.tier)
    text = " ".join(parts).lower()
    return all(word in text for word in wanted)


async def _known(site: Site, request: Request) -> Rule:
    rule_id = request.path_params["rule_id"]
    rule = (await asyncio.to_thread(site.context.rules)).rules.get(rule_id)
    if rule is None:
        raise NotFoundError(f"there is no rule {rule_id!r}")
    return rule


def _url(rule_id: str) -> str:
    return f"/rules/{quote(rule_id, safe='')}"


def _number(text: str) -> int:
    return int(text) if text.isascii() and text.isdigit() and len(text) < 7 else 1


ROUTES = [
    page("/rules", list_rules),
    page("/rules/new", new_rule),
    form("/rules/new", create),
    page("/dashboard/words", in_words),
    page("/rules/{rule_id:name}/edit", edit_rule),
    form("/rules/{rule_id:name}/edit", replace),
    form("/rules/{rule_id:name}/mode", set_mode),
    form("/rules/{rule_id:name}/delete", delete),
    page("/rules/{rule_id:name}", show_rule),
]
