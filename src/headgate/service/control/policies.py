"""Policies of opaque keys, and how the keys stand: `/admin/…`."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from typing import Annotated, Any

from fastapi import APIRouter, Request
from fastapi import Query as QueryParameters
from starlette.responses import Response

import headgate
from headgate.core.decision import Decision
from headgate.errors import Invalid, NotFound, Problem, StoreError
from headgate.reading.fields import Problems
from headgate.rules.context import RequestContext
from headgate.rules.rule import Rule
from headgate.rules.ruleset import Chosen, RuleSet
from headgate.rules.views.ids import view_id
from headgate.rules.views.policies import Policy, policy_of, read_policy
from headgate.service.auditing import audited
from headgate.service.control.asking import Name, PageQuery, link_to, location, page_of
from headgate.service.control.bodies import JsonBody
from headgate.service.control.counters import forget, standing
from headgate.service.control.desk import Desk, TheDesk, TheEditor
from headgate.service.control.family_models import KeyMetrics, PolicyBody, PolicyNumbers, PolicyShown, Status
from headgate.service.control.saying import answer, empty, says
from headgate.service.finishing import to_the_end

__all__ = ["router"]

NEXT = {"Link": 'Where the list goes on, if it does: `rel="next"`.'}
STATUSES = {"normal": "OK", "warning": "WARNING", "throttled": "THROTTLED"}
router = APIRouter(prefix="/admin", tags=["policies"])


@router.get("/status", **says("Status", Status))
async def status(desk: TheDesk) -> Response:
    """How the service is. For probes there are /healthz and /readyz."""
    parts = desk.parts
    rules = await asyncio.to_thread(desk.rules)
    problems = [] if parts.catalog.problem is None else [f"rules: {parts.catalog.problem}"]
    try:
        await standing(parts.limiter, [("headgate:status", rules.default_policy)])
    except StoreError as error:
        problems.append(f"counters: {error}")
    return answer(
        {
            "status": "DEGRADED" if problems else "OK",
            "version": headgate.__version__,
            "uptimeSeconds": max(desk.now_us() - parts.started_us, 0) // 1_000_000,
            "stores": list(parts.store_titles),
            "problems": problems,
        }
    )


@router.get("/metrics", **says("List how keys stand", list[KeyMetrics], 400, headers=NEXT))
async def all_metrics(request: Request, desk: TheDesk, query: Annotated[PageQuery, QueryParameters()]) -> Response:
    """All keys that have a policy, and those that were seen lately, in their order."""
    rules, known = await asyncio.to_thread(_known_keys, desk)
    keys, following = page_of(known, query)
    shown = await _metrics(desk, rules, keys)
    return answer(shown, headers=link_to(request, following, query.limit))


@router.get("/metrics/{key:name}", **says("Get how a key stands", KeyMetrics, 400))
async def key_metrics(desk: TheDesk, key: Name) -> Response:
    """The counter of one key, by its policy or the default one, whether or not it was ever seen."""
    rules = await asyncio.to_thread(desk.rules)
    (shown,) = await _metrics(desk, rules, [key])
    return answer(shown)


@router.post("/reset/{key:name}", **says("Reset a key", KeyMetrics, 400))
async def reset_key(desk: TheDesk, editor: TheEditor, key: Name) -> Response:
    """Forget what a key has used. The audit log has that it was requested, and whether it was done. Answers how the key
    stands then."""
    rules = await asyncio.to_thread(desk.rules)
    forgetting = forget(desk.parts.limiter, _of_key(rules, key, desk.now_us()))
    await to_the_end(audited(editor, "reset", [f"key:{key}"], forgetting))
    (shown,) = await _metrics(desk, rules, [key])
    return answer(shown)


@router.get("/policies", **says("List policies", list[PolicyShown], 400, headers=NEXT))
def list_policies(request: Request, desk: TheDesk, query: Annotated[PageQuery, QueryParameters()]) -> Response:
    """All policies, those of files too, in the order of their keys."""
    policies = _policies(desk.rules())
    keys, following = page_of(policies, query)
    return answer([_shown(policies[key]) for key in keys], headers=link_to(request, following, query.limit))


@router.post(
    "/policies",
    **says("Create a policy", PolicyShown, 409, 412, status=201, body=PolicyBody, headers={"Location": "The policy."}),
)
def create_policy(desk: TheDesk, editor: TheEditor, body: JsonBody) -> Response:
    """A limit for one key. 409 if there is one already."""
    policy = _read(body, None)
    desk.check_absent("rule", policy.rule_id, policy.key in _policies(desk.rules()))
    made = editor.create_policy(policy)
    desk.take_over()
    return answer(_shown(made), 201, location("/admin/policies/", made.key))


@router.get("/policies/{key:name}", **says("Get a policy", PolicyShown, 400, 404))
def get_policy(desk: TheDesk, key: Name) -> Response:
    """The policy that was written for this key."""
    policy = _policy(desk.rules(), key)
    if policy is None:
        raise NotFound(f"there is no policy for key {key!r}")
    return answer(_shown(policy))


@router.put("/policies/{key:name}", **says("Replace a policy", PolicyShown, 404, 409, body=PolicyNumbers))
def put_policy(desk: TheDesk, editor: TheEditor, key: Name, body: JsonBody) -> Response:
    """The policy is written anew, and keeps its `id`. What the key has used counts on."""
    policy = _read(body, key)
    desk.check_writable("rule", policy.rule_id, _policy(desk.rules(), key) is not None)
    written = editor.replace_policy(policy)
    desk.take_over()
    return answer(_shown(written))


@router.delete("/policies/{key:name}", **says("Delete a policy", None, 400, 404, 409, status=204))
def delete_policy(desk: TheDesk, editor: TheEditor, key: Name) -> Response:
    """The key has the default policy from now on."""
    desk.check_writable("rule", view_id("policy", key), _policy(desk.rules(), key) is not None)
    editor.delete_policy(key)
    desk.take_over()
    return empty()


def _read(body: Any, of_path: str | None) -> Policy:
    """The policy of a body; Invalid, with all mistakes."""
    if of_path is not None and isinstance(body, dict):
        given = body.get("key")
        if given is not None and given != of_path:
            raise Invalid([Problem("key", f"must be that of the path, {of_path!r}: leave it out")])
        body = {**body, "key": of_path}
    problems = Problems()
    policy = read_policy(body, "", problems)
    problems.raise_any()
    assert policy is not None
    return policy


def _policy(rules: RuleSet, key: str) -> Policy | None:
    rule = rules.rules.get(view_id("policy", key))
    return None if rule is None else policy_of(rule)


def _policies(rules: RuleSet) -> dict[str, Policy]:
    """All policies, by key."""
    policies = (policy_of(rule) for rule in rules.rules.values() if rule.dimension == "key")
    return {policy.key: policy for policy in policies if policy is not None}


def _shown(policy: Policy) -> dict[str, Any]:
    return {"id": policy.id, "policyKey": policy.key, **policy.numbers()}


def _known_keys(desk: Desk) -> tuple[RuleSet, set[str]]:
    rules = desk.rules()
    seen = {*desk.parts.board.seen().keys, *dict(desk.parts.tally.keys.last_us)}
    return rules, {*_policies(rules), *seen}


def _of_key(rules: RuleSet, key: str, now_us: int) -> list[Chosen]:
    """The rules that bind a key itself: its policy, or the default, and others for opaque keys if there are any."""
    chosen = rules.resolve(RequestContext(key=key), now_us)
    return [(name, entry) for name, entry in chosen if entry.dimension == "key" and not entry.shadow]


async def _metrics(desk: Desk, rules: RuleSet, keys: Sequence[str]) -> list[dict[str, Any]]:
    """How keys stand, all in one round trip. Of several rules of one key, the one that leaves least is told."""
    now_us = desk.now_us()
    chosen = [(key, one) for key in keys for one in _of_key(rules, key, now_us)]
    decisions = await standing(desk.parts.limiter, [one for _, one in chosen])
    tightest: dict[str, tuple[Rule, Decision]] = {}
    for (key, (_, entry)), decision in zip(chosen, decisions, strict=True):
        if key not in tightest or decision.remaining < tightest[key][1].remaining:
            tightest[key] = (entry.rule, decision)
    return [_told(key, *tightest[key]) for key in keys]


def _told(key: str, rule: Rule, decision: Decision) -> dict[str, Any]:
    origin = rule.origin or {}
    return {
        "key": key,
        "algorithm": origin.get("type", rule.algorithm.upper()),
        "currentTokens": decision.remaining,
        "capacity": decision.limit,
        "windowRequestCount": decision.limit - decision.remaining,
        "windowSeconds": origin.get("windowSeconds", rule.window_seconds),
        "status": STATUSES[decision.state],
    }
