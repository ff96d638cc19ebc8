"""Policies of opaque keys, and their counters: `/admin/…`."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from typing import Annotated, Any

from fastapi import APIRouter, Request
from fastapi import Query as QueryParameters
from starlette.responses import Response

import crestgate
from crestgate.core.context import RequestContext
from crestgate.core.decision import Decision
from crestgate.errors import NotFoundError, Problem, StoreError, ValidationError
from crestgate.loader.fields import Problems
from crestgate.rules.compat.policies import Policy, policy_of, read_policy
from crestgate.rules.compat.rule_ids import derived_id
from crestgate.rules.rule import Rule
from crestgate.rules.ruleset import ResolvedRule, RuleSet
from crestgate.runtime.tasks import run_to_completion
from crestgate.service.admin.bodies import JsonBody
from crestgate.service.admin.compat_models import KeyMetrics, PolicyBody, PolicyNumbers, PolicyResponse, Status
from crestgate.service.admin.context import AdminContext, ContextDep, EditorDep
from crestgate.service.admin.counters import read_counters, reset_counters
from crestgate.service.admin.params import Name, PageQuery, location, next_link, page
from crestgate.service.admin.responses import describe, json_response, no_content
from crestgate.service.checks.counter_audit import run_audited

__all__ = ["router"]

NEXT = {"Link": 'The next page, if there is one: `rel="next"`.'}
STATUSES = {"normal": "OK", "warning": "WARNING", "throttled": "THROTTLED"}
router = APIRouter(prefix="/admin", tags=["policies"])


@router.get("/status", **describe("Status", Status))
async def status(context: ContextDep) -> Response:
    """State of the service. For probes use /healthz and /readyz."""
    parts = context.dependencies
    rules = await asyncio.to_thread(context.rules)
    problems = [] if parts.catalog.problem is None else [f"rules: {parts.catalog.problem}"]
    try:
        await read_counters(parts.limiter, [("crestgate:status", rules.default_policy)])
    except StoreError as error:
        problems.append(f"counters: {error}")
    return json_response(
        {
            "status": "DEGRADED" if problems else "OK",
            "version": crestgate.__version__,
            "uptimeSeconds": max(context.now_us() - parts.started_us, 0) // 1_000_000,
            "stores": list(parts.store_titles),
            "problems": problems,
        }
    )


@router.get("/metrics", **describe("List the metrics of keys", list[KeyMetrics], 400, headers=NEXT))
async def all_metrics(
    request: Request, context: ContextDep, query: Annotated[PageQuery, QueryParameters()]
) -> Response:
    """All keys that have a policy or were seen recently, sorted."""
    rules, known = await asyncio.to_thread(_known_keys, context)
    keys, next_after = page(known, query)
    shown = await _metrics(context, rules, keys)
    return json_response(shown, headers=next_link(request, next_after, query.limit))


@router.get("/metrics/{key:name}", **describe("Get the metrics of a key", KeyMetrics, 400))
async def key_metrics(context: ContextDep, key: Name) -> Response:
    """The counter of one key, by its policy or the default policy, even if it was never seen."""
    rules = await asyncio.to_thread(context.rules)
    (shown,) = await _metrics(context, rules, [key])
    return json_response(shown)


@router.post("/reset/{key:name}", **describe("Reset a key", KeyMetrics, 400))
async def reset_key(context: ContextDep, editor: EditorDep, key: Name) -> Response:
    """Resets the counters of a key. The audit log records the request and its outcome. Returns the metrics of the key
    after it."""
    rules = await asyncio.to_thread(context.rules)
    resetting = reset_counters(context.dependencies.limiter, _of_key(rules, key, context.now_us()))
    await run_to_completion(run_audited(editor, "reset", [f"key:{key}"], resetting))
    (shown,) = await _metrics(context, rules, [key])
    return json_response(shown)


@router.get("/policies", **describe("List policies", list[PolicyResponse], 400, headers=NEXT))
def list_policies(request: Request, context: ContextDep, query: Annotated[PageQuery, QueryParameters()]) -> Response:
    """All policies, including those of files, sorted by key."""
    policies = _policies(context.rules())
    keys, next_after = page(policies, query)
    return json_response(
        [_policy_data(policies[key]) for key in keys], headers=next_link(request, next_after, query.limit)
    )


@router.post(
    "/policies",
    **describe(
        "Create a policy", PolicyResponse, 409, 412, status=201, body=PolicyBody, headers={"Location": "The policy."}
    ),
)
def create_policy(context: ContextDep, editor: EditorDep, body: JsonBody) -> Response:
    """A limit for one key. 409 if it already has one."""
    policy = _read(body, None)
    context.check_absent("rule", policy.rule_id, policy.key in _policies(context.rules()))
    created = editor.create_policy(policy)
    return json_response(_policy_data(created), 201, location("/admin/policies/", created.key))


@router.get("/policies/{key:name}", **describe("Get a policy", PolicyResponse, 400, 404))
def get_policy(context: ContextDep, key: Name) -> Response:
    """The policy that was written for this key."""
    policy = _policy(context.rules(), key)
    if policy is None:
        raise NotFoundError(f"there is no policy for key {key!r}")
    return json_response(_policy_data(policy))


@router.put("/policies/{key:name}", **describe("Replace a policy", PolicyResponse, 404, 409, body=PolicyNumbers))
def put_policy(context: ContextDep, editor: EditorDep, key: Name, body: JsonBody) -> Response:
    """Replaces the policy, which keeps its `id`. Counters keep what was used."""
    policy = _read(body, key)
    context.check_writable("rule", policy.rule_id, _policy(context.rules(), key) is not None)
    written = editor.replace_policy(policy)
    return json_response(_policy_data(written))


@router.delete("/policies/{key:name}", **describe("Delete a policy", None, 400, 404, 409, status=204))
def delete_policy(context: ContextDep, editor: EditorDep, key: Name) -> Response:
    """The key has the default policy from now on."""
    context.check_writable("rule", derived_id("policy", key), _policy(context.rules(), key) is not None)
    editor.delete_policy(key)
    return no_content()


def _read(body: Any, path_key: str | None) -> Policy:
    """The policy of a body; ValidationError, with all errors."""
    if path_key is not None and isinstance(body, dict):
        given = body.get("key")
        if given is not None and given != path_key:
            raise ValidationError([Problem("key", f"must be that of the path, {path_key!r}: leave it out")])
        body = {**body, "key": path_key}
    problems = Problems()
    policy = read_policy(body, "", problems)
    problems.raise_any()
    assert policy is not None
    return policy


def _policy(rules: RuleSet, key: str) -> Policy | None:
    rule = rules.rules.get(derived_id("policy", key))
    return None if rule is None else policy_of(rule)


def _policies(rules: RuleSet) -> dict[str, Policy]:
    """All policies, by key."""
    policies = (policy_of(rule) for rule in rules.rules.values() if rule.dimension == "key")
    return {policy.key: policy for policy in policies if policy is not None}


def _policy_data(policy: Policy) -> dict[str, Any]:
    return {"id": policy.id, "policyKey": policy.key, **policy.numbers()}


def _known_keys(context: AdminContext) -> tuple[RuleSet, set[str]]:
    rules = context.rules()
    seen = {*context.dependencies.worker_snapshots.seen().keys, *dict(context.dependencies.metrics.keys.last_us)}
    return rules, {*_policies(rules), *seen}


def _of_key(rules: RuleSet, key: str, now_us: int) -> list[ResolvedRule]:
    """The binding rules of a key: its policy, or the default, and other rules for opaque keys if there are any."""
    chosen = rules.resolve(RequestContext(key=key), now_us)
    return [(name, entry) for name, entry in chosen if entry.dimension == "key" and not entry.shadow]


async def _metrics(context: AdminContext, rules: RuleSet, keys: Sequence[str]) -> list[dict[str, Any]]:
    """The counters of keys, in one round trip. Of several rules of one key, the one with the least remaining."""
    now_us = context.now_us()
    chosen = [(key, one) for key in keys for one in _of_key(rules, key, now_us)]
    decisions = await read_counters(context.dependencies.limiter, [one for _, one in chosen])
    tightest: dict[str, tuple[Rule, Decision]] = {}
    for (key, (_, entry)), decision in zip(chosen, decisions, strict=True):
        if key not in tightest or decision.remaining < tightest[key][1].remaining:
            tightest[key] = (entry.rule, decision)
    return [_key_metrics(key, *tightest[key]) for key in keys]


def _key_metrics(key: str, rule: Rule, decision: Decision) -> dict[str, Any]:
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
