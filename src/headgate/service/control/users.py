"""What holds for a user: `/api/v1/users/{user_id}/…`."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from fastapi import APIRouter
from starlette.responses import Response

from headgate.core.decision import Decision
from headgate.errors import ConfigError, Invalid, NotFound, Problem, ReadOnly
from headgate.reading.fields import Fields, Problems
from headgate.rules.moments import moment_text
from headgate.rules.rule import ANY, Rule
from headgate.rules.ruleset import DEFAULT_TIER, RuleSet
from headgate.service.control.asking import Name, location
from headgate.service.control.bodies import JsonBody
from headgate.service.control.counters import numbers, standing
from headgate.service.control.desk import TheDesk, TheEditor
from headgate.service.control.models import EffectiveLimits, Override, RuleShown, TierBody, UserTier
from headgate.service.control.saying import answer, says

__all__ = ["router"]

PATH = "/api/v1/users/{user_id:name}"
SLOT = ("endpoint_pattern", "window_seconds", "method")
router = APIRouter(tags=["users"])


@router.get(f"{PATH}/limits", **says("Get a user's limits and counters", EffectiveLimits, 400))
async def user_limits(desk: TheDesk, user_id: Name) -> Response:
    """The rules of dimension `user` that hold for this user, on whichever path and method, with their counters as they
    stand. A user whom nobody has put into a tier is in tier `free`."""
    rules = await asyncio.to_thread(desk.rules)
    chosen = rules.for_user(user_id, desk.now_us())
    decisions = await standing(desk.parts.limiter, chosen)
    limits = [_limit(entry.rule, decision) for (_, entry), decision in zip(chosen, decisions, strict=True)]
    return answer({"user_id": user_id, "tier": rules.tiers.get(user_id, DEFAULT_TIER), "limits": limits})


@router.put(f"{PATH}/tier", **says("Put a user into a tier", UserTier, 409, body=TierBody))
def put_tier(desk: TheDesk, editor: TheEditor, user_id: Name, body: JsonBody) -> Response:
    """The rules of that tier hold from now on; counters go on with what was used."""
    problems = Problems()
    fields = Fields(body, "", problems, ("tier",))
    tier: str | None = fields.text("tier", None)
    if fields.is_mapping and "tier" not in fields.values:
        fields.wrong("tier", "is missing: write the tier's name, or null for none")
    problems.raise_any()
    with _naming("tier"):
        try:
            editor.set_tier(user_id, tier)
        except NotFound:
            if tier is not None:
                raise
    left = desk.rules().tiers.get(user_id)
    if tier is None and left is not None:
        raise ReadOnly(f"user {user_id!r} is in tier {left!r} by a file, which is read only from here: change it there")
    return answer({"user_id": user_id, "tier": DEFAULT_TIER if tier is None else tier})


@router.post(
    f"{PATH}/override",
    **says(
        "Hold a user to another limit for a while",
        RuleShown,
        404,
        409,
        status=201,
        body=Override,
        headers={"Location": "The rule that was made."},
    ),
)
def override(desk: TheDesk, editor: TheEditor, user_id: Name, body: JsonBody) -> Response:
    """Makes a rule for this user alone, which ends by itself, in the slot of the rule that is named, or of the one for
    this pattern and window. What was used so far counts. A second one replaces the first."""
    rules = desk.rules()
    problems = Problems()
    fields = Fields(body, "", problems, ("rule_id", *SLOT, "limit", "duration_seconds"))
    limit: int = fields.whole("limit", required=True)
    seconds: float = fields.seconds("duration_seconds", required=True)
    base = _base(rules, user_id, fields, desk.now_us())
    problems.raise_any()
    assert base is not None
    with _naming(_doubtful(user_id, base)):
        made = editor.override(user_id, base, limit, seconds)
    desk.take_over()
    return answer(made.to_data(), 201, location("/api/v1/rules/", made.rule_id))


def _base(rules: RuleSet, user: str, fields: Fields, now_us: int) -> Rule | None:
    """The rule to be overridden; None when that is not said well, which is noted."""
    if fields.given("rule_id"):
        for name in SLOT:
            if fields.given(name):
                fields.wrong(name, "does not go with rule_id, which says it: leave it out")
        rule_id: str | None = fields.text("rule_id", None)
        if rule_id is None or fields.problems.found:
            return None
        named = rules.rules.get(rule_id)
        if named is None:
            raise NotFound(f"there is no rule {rule_id!r}")
        return named
    if fields.is_mapping and not fields.given("endpoint_pattern") and not fields.given("window_seconds"):
        fields.wrong("rule_id", "is missing: write it, or endpoint_pattern and window_seconds")
        return None
    slot = {name: fields.values.get(name) for name in SLOT}
    for name in ("endpoint_pattern", "window_seconds"):
        if fields.is_mapping and slot[name] is None:
            fields.wrong(name, "is missing: write endpoint_pattern and window_seconds, or a rule_id")
    if fields.problems.found:
        return None
    # A rule of its own where there is none in the slot yet.
    made = Rule.read({"rule_id": "slot", "dimension": "user", "limit": 1, **slot}, "", fields.problems)
    if made is None:
        return None
    for _, entry in rules.for_user(user, now_us):
        if not entry.shadow and entry.counter == made.counter:
            return entry.rule
    return made


def _doubtful(user: str, base: Rule) -> str:
    """Which field it is that an editor refuses, if it does."""
    if user == ANY:
        return "user_id"
    return "duration_seconds" if base.dimension == "user" and base.mode != "disabled" else "rule_id"


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
        "expires_at": moment_text(rule.expires_us),
        **numbers(decision),
    }


@contextmanager
def _naming(field: str) -> Iterator[None]:
    """Say which field an editor means, where it knows of none."""
    try:
        yield
    except (Invalid, ReadOnly):
        raise
    except ConfigError as error:
        raise Invalid([Problem(field, str(error))]) from None
