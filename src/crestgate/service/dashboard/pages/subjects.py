"""`/subjects/{dimension}/{identifier}`: one subject: its rules and counters, its history, reset, override and undo."""

from __future__ import annotations

import asyncio
from urllib.parse import quote

from starlette.requests import Request
from starlette.responses import RedirectResponse, Response

from crestgate.core.dimensions import IDENTIFIED, is_attribute_name, parse_dimensions, split_parts
from crestgate.core.redaction import digest_api_key
from crestgate.errors import NotFoundError, Problem, StoreError, ValidationError
from crestgate.rules.ruleset import DEFAULT_TIER, ResolvedRule
from crestgate.rules.subjects import MAX_VALUE_BYTES, subject_key
from crestgate.service.admin import users as api
from crestgate.service.admin.counters import read_counters
from crestgate.service.dashboard.forms import without_separators
from crestgate.service.dashboard.site import Site, call_of, done, form, page, show
from crestgate.service.dashboard.usage import subject_series
from crestgate.service.observability.usage import short_subject
from crestgate.stores.port import Member, Op

__all__ = ["ROUTES"]

MAX_SHOWN = 200
"""Rules of one subject on its page: there may be thousands of patterns."""
NAMES = tuple(one.name for one in IDENTIFIED)
DURATIONS = ((60, "a minute"), (900, "15 minutes"), (3600, "an hour"), (7200, "2 hours"), (86_400, "a day"))


async def find(site: Site, request: Request) -> Response:
    """`GET /subjects/?dimension=user&identifier=42`: the form that leads to a subject's page."""
    dimension = parse_dimensions(request.query_params.get("dimension", "user"))
    identifier = request.query_params.get("identifier", "").strip()
    if not identifier or not _is_known(dimension):
        return RedirectResponse("/", 303)
    return RedirectResponse(_url(dimension, identifier), 303)


async def subject(site: Site, request: Request, problem: str = "", status: int = 200) -> Response:
    """The page."""
    dimension, identifier = _subject(request)
    dependencies = site.context.dependencies
    now_us = site.now_us()
    rules = await asyncio.to_thread(site.context.rules)
    chosen = await asyncio.to_thread(rules.for_subject, dimension, identifier, now_us)
    unavailable = ""
    try:
        decisions = await read_counters(dependencies.limiter, chosen[:MAX_SHOWN])
    except StoreError as error:
        decisions, unavailable = [], str(error)
    recorded = short_subject(digest_api_key(subject_key(dimension, identifier)))
    series = await asyncio.to_thread(subject_series, dependencies.history, recorded, now_us)
    counters = [
        (entry.rule, decisions[index] if decisions else None) for index, (_, entry) in enumerate(chosen[:MAX_SHOWN])
    ]
    overrides = [rule for rule, _ in counters if rule.identifier == identifier and rule.expires_us is not None]
    return await show(
        site,
        request,
        "subject.html",
        status,
        dimension=dimension,
        identifier=identifier,
        url=_url(dimension, identifier),
        counters=counters,
        more=max(len(chosen) - MAX_SHOWN, 0),
        unavailable=unavailable,
        series=series,
        tier=rules.tiers.get(identifier, DEFAULT_TIER) if dimension == "user" else None,
        overrides=overrides,
        durations=DURATIONS,
        problem=problem,
    )


async def reset(site: Site, request: Request, fields: dict[str, str]) -> Response:
    """`POST …/reset`: forget the counters of this subject, all or that of one rule; as `POST /api/v1/reset` does."""
    dimension, identifier = _subject(request)
    rules = await asyncio.to_thread(site.context.rules)
    only = fields.get("rule_id", "")
    chosen = [
        one
        for one in rules.for_subject(dimension, identifier, site.now_us())
        if not only or one[1].rule.rule_id == only
    ]
    if not chosen:
        raise NotFoundError("there is no such counter: the rule does not apply to this subject")
    limiter = site.context.dependencies.limiter
    pending = limiter.prepare_counters(Op.RESET, [_member(one) for one in chosen])
    await site.checks.reset(call_of(request), pending)
    return done(_url(dimension, identifier), "reset")


async def override(site: Site, request: Request, fields: dict[str, str]) -> Response:
    """`POST …/override`: another limit for this user, for some time."""
    dimension, identifier = _subject(request)
    if dimension != "user":
        raise NotFoundError("only limits of users can be overridden: create a rule for this subject")
    body = {
        "rule_id": fields.get("rule_id", ""),
        "limit": _whole(fields.get("limit", "")),
        "duration_seconds": _whole(fields.get("seconds", "")),
    }
    try:
        await asyncio.to_thread(api.override, site.context, site.editor(request), identifier, body)
    except ValidationError as error:
        return await subject(site, request, str(error), 400)
    return done(_url(dimension, identifier), "overridden")


async def undo(site: Site, request: Request, fields: dict[str, str]) -> Response:
    """`POST …/undo`: end an override now."""
    dimension, identifier = _subject(request)
    rule_id = fields.get("rule_id", "")
    if dimension != "user" or not rule_id:
        raise NotFoundError("there is no such override: it has ended, or was undone")
    query = api.UndoQuery(rule_id=rule_id)
    await asyncio.to_thread(api.undo_override, site.context, site.editor(request), identifier, query)
    return done(_url(dimension, identifier), "undone")


def _subject(request: Request) -> tuple[str, str]:
    dimension = request.path_params["dimension"]
    if not _is_known(dimension):
        raise NotFoundError(
            f"there are no subjects of dimension {dimension!r}: use one of {', '.join(NAMES)}, or an attribute's name"
        )
    identifier: str = request.path_params["identifier"]
    values = split_parts(identifier) if "," in dimension else (identifier,)
    if len(values) != dimension.count(",") + 1 or not all(values):
        raise ValidationError([Problem("identifier", f"must have a value for each of {dimension}")])
    if any(len(value.encode("utf-8", "surrogatepass")) > MAX_VALUE_BYTES for value in values):
        raise ValidationError([Problem("identifier", f"is too long: {MAX_VALUE_BYTES:,} bytes at most")])
    return dimension, identifier


def _is_known(dimension: str) -> bool:
    """Whether it can have subjects: a built-in dimension, an attribute, or several of them."""
    names = dimension.split(",")
    several = len(names) > 1
    return len(set(names)) == len(names) and all(
        name in NAMES or is_attribute_name(name) or (several and name == "api") for name in names
    )


def _member(chosen: ResolvedRule) -> Member:
    key, entry = chosen
    return Member(key, entry.algorithm, 0, True, 0, 0, None)


def _whole(text: str) -> int | str:
    text = without_separators(text.strip())
    return int(text) if text.isascii() and text.isdigit() and len(text) < 20 else text


def _url(dimension: str, identifier: str) -> str:
    return f"/subjects/{quote(dimension, safe='')}/{quote(identifier, safe='')}"


ROUTES = [
    page("/subjects/", find),
    form("/subjects/{dimension}/{identifier:name}/reset", reset),
    form("/subjects/{dimension}/{identifier:name}/override", override),
    form("/subjects/{dimension}/{identifier:name}/undo", undo),
    page("/subjects/{dimension}/{identifier:name}", subject),
]
