"""Limits, tier and overrides of a user: `/api/v1/users/{user_id}/…`."""

from __future__ import annotations

import asyncio
from dataclasses import replace
from typing import Annotated, Any

from fastapi import APIRouter
from fastapi import Query as QueryParameters
from pydantic import Field
from starlette.responses import Response

from crestgate.core.decision import Decision
from crestgate.errors import NotFoundError, ReadOnlyError
from crestgate.loader.fields import Fields, Problems
from crestgate.rules.overrides import slot_id
from crestgate.rules.rule import Rule
from crestgate.rules.ruleset import DEFAULT_TIER, RuleSet
from crestgate.rules.timestamps import format_timestamp
from crestgate.service.admin.bodies import JsonBody
from crestgate.service.admin.context import ContextDep, EditorDep
from crestgate.service.admin.counters import numbers, read_counters
from crestgate.service.admin.errors import naming_fields
from crestgate.service.admin.models import EffectiveLimits, OverrideBody, RuleResponse, TierBody, UserTier
from crestgate.service.admin.params import Name, PageQuery, Query, location, page
from crestgate.service.admin.responses import describe, json_response, no_content

__all__ = ["router"]

PATH = "/api/v1/users/{user_id:name}"
SLOT = ("endpoint_pattern", "window_seconds", "method")
router = APIRouter(tags=["users"])


class UndoQuery(Query):
    """Which override."""

    rule_id: Annotated[
        str, Field(min_length=1, description="The rule that was overridden, or the override itself, by its `rule_id`.")
    ]


@router.get(f"{PATH}/limits", **describe("Get a user's limits and counters", EffectiveLimits, 400))
async def user_limits(context: ContextDep, user_id: Name, query: Annotated[PageQuery, QueryParameters()]) -> Response:
    """The rules of dimension `user` that apply to this user, on any path and method, with their counters. A user
    without a tier is in tier `free`."""
    rules = await asyncio.to_thread(context.rules)
    # With thousands of patterns this takes long: not on the event loop, and only the counters of one page.
    chosen = await asyncio.to_thread(rules.for_user, user_id, context.now_us())
    ids, following = page([entry.rule.rule_id for _, entry in chosen], query)
    shown = set(ids)
    chosen = [one for one in chosen if one[1].rule.rule_id in shown]
    decisions = await read_counters(context.dependencies.limiter, chosen)
    limits = [_limit(entry.rule, decision) for (_, entry), decision in zip(chosen, decisions, strict=True)]
    tier = rules.tiers.get(user_id, DEFAULT_TIER)
    return json_response({"user_id": user_id, "tier": tier, "limits": limits, "next": following})


@router.put(f"{PATH}/tier", **describe("Set the tier of a user", UserTier, 409, body=TierBody))
def put_tier(context: ContextDep, editor: EditorDep, user_id: Name, body: JsonBody) -> Response:
    """The rules of that tier apply from now on. Counters keep what was used."""
    problems = Problems()
    fields = Fields(body, "", problems, ("tier",))
    tier: str | None = fields.text("tier", None)
    if fields.is_mapping and "tier" not in fields.values:
        fields.report("tier", "is missing: write the tier's name, or null for none")
    problems.raise_any()
    with naming_fields(user="user_id"):
        try:
            editor.set_tier(user_id, tier)
        except NotFoundError:
            if tier is not None:
                raise
    left = context.rules().tiers.get(user_id)
    if tier is None and left is not None:
        raise ReadOnlyError(f"user {user_id!r} is in tier {left!r} by a file, which is read-only here: change it there")
    return json_response({"user_id": user_id, "tier": DEFAULT_TIER if tier is None else tier})


@router.post(
    f"{PATH}/override",
    **describe(
        "Override the limit of a user temporarily",
        RuleResponse,
        404,
        409,
        status=201,
        body=OverrideBody,
        headers={"Location": "The rule that was created."},
    ),
)
def override(context: ContextDep, editor: EditorDep, user_id: Name, body: JsonBody) -> Response:
    """Creates a rule that expires, for this user only, in the slot of the named rule, or of this pattern and window.
    Counters keep what was used. A second override replaces the first."""
    rules = context.rules()
    problems = Problems()
    fields = Fields(body, "", problems, ("rule_id", *SLOT, "limit", "duration_seconds"))
    limit: int = fields.integer("limit", required=True)
    seconds: float = fields.seconds("duration_seconds", required=True)
    base = _base(rules, user_id, fields, context.now_us())
    problems.raise_any()
    assert base is not None
    with naming_fields(user="user_id", base="rule_id", seconds="duration_seconds"):
        new_rule = editor.override(user_id, base, limit, seconds)
    return json_response(new_rule.to_data(), 201, location("/api/v1/rules/", new_rule.rule_id))


@router.delete(f"{PATH}/override", **describe("Undo an override", None, 400, 404, 409, 412, status=204))
def undo_override(
    context: ContextDep, editor: EditorDep, user_id: Name, query: Annotated[UndoQuery, QueryParameters()]
) -> Response:
    """Ends the override of this rule for this user now. Counters keep what was used."""
    editor.undo_override(user_id, query.rule_id, context.rules().rules.get(query.rule_id))
    return no_content()


def _base(rules: RuleSet, user: str, fields: Fields, now_us: int) -> Rule | None:
    """The rule to override; None if the body is invalid, which is reported."""
    if fields.has("rule_id"):
        for name in SLOT:
            if fields.has(name):
                fields.report(name, "is not allowed with rule_id: leave it out")
        rule_id: str | None = fields.text("rule_id", None)
        if rule_id is None or fields.problems.entries:
            return None
        named = rules.rules.get(rule_id)
        if named is None:
            raise NotFoundError(f"there is no rule {rule_id!r}")
        return named
    if fields.is_mapping and not fields.has("endpoint_pattern") and not fields.has("window_seconds"):
        fields.report("rule_id", "is missing: write it, or endpoint_pattern and window_seconds")
        return None
    slot = {name: fields.values.get(name) for name in SLOT}
    for name in ("endpoint_pattern", "window_seconds"):
        if fields.is_mapping and slot[name] is None:
            fields.report(name, "is missing: write endpoint_pattern and window_seconds, or a rule_id")
    if fields.problems.entries:
        return None
    # A new rule if there is none in the slot.
    new_rule = Rule.read({"rule_id": "slot", "dimension": "user", "limit": 1, **slot}, "", fields.problems)
    if new_rule is None:
        return None
    rule_id = slot_id(new_rule.endpoint_pattern, new_rule.window_seconds, new_rule.method)
    new_rule = replace(new_rule, rule_id=rule_id, name=rule_id)
    for _, entry in rules.for_user(user, now_us):
        if not entry.shadow and entry.counter == new_rule.counter:
            return entry.rule
    return new_rule


def _limit(rule: Rule, decision: Decision) -> dict[str, Any]:
    return {
        "rule": rule.rule_id,
        "name": rule.name,
        "endpoint_pattern": rule.endpoint_pattern,
        "method": rule.method,
        "tier": rule.tier,
        "algorithm": rule.algorithm,
        "mode": rule.mode,
        "window_seconds": rule.window_seconds,
        **({} if rule.calendar is None else {"calendar": rule.calendar, "timezone": rule.timezone}),
        **({"lease": True} if rule.lease else {}),
        "expires_at": format_timestamp(rule.expires_us),
        **numbers(decision),
    }
