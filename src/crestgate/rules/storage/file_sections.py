"""The sections of a rule file, read into records.

rules                   rules, as they are
plans                   named limits:           gold: 10/second burst 20, or {limits: 10/second burst 20, lease: true}
tiers                   the tiers of users:     alice: premium
strategies              ip, api, apikey, …:     ip: {enabled: true, limit: 100/minute}
policies                limits of opaque keys:  - {key: user-123, type: TOKEN_BUCKET, capacity: 100, refillRate: 10}
default_policy          for keys without one
policy_key              which key's policy joins the chain of a request: off, ip, or a list such as [user, route]
clients                 - {clientId: …, limits: [{limitType, limitName, timeIntervalLimit}]}
default_client_limits   for clients that are not configured: 100/minute, or off
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from crestgate.core.redaction import redact_text
from crestgate.errors import ConfigError
from crestgate.loader.fields import Fields, describe, join_names
from crestgate.rules.compat.clients import read_client
from crestgate.rules.compat.policies import POLICY_KEY_PARTS, Policy, read_default_policy, read_policy
from crestgate.rules.compat.strategies import read_strategies, rules_for_all
from crestgate.rules.port import Kind, Record
from crestgate.rules.records import plan_body, read_limits, read_plan, record_of
from crestgate.rules.rule import Rule

__all__ = ["OFF", "SECTIONS", "read_sections"]

SECTIONS = (
    *("rules", "plans", "tiers", "strategies", "policies", "default_policy", "policy_key"),
    *("clients", "default_client_limits"),
)
OFF = "off"

Found = list[tuple[str, Record]]


def read_sections(fields: Fields) -> Found:
    """The records of all sections, each with its field path; errors are added to the problems."""
    return [
        *_rules(fields),
        *((field_path, record_of(rule)) for field_path, rule in read_strategies(fields)),
        *_policies(fields),
        *_clients(fields),
        *_plans(fields),
        *_tiers(fields),
        *_policy_key(fields),
        *_default_client_limits(fields),
    ]


def _rules(fields: Fields) -> Found:
    found = []
    for field_path, item in fields.items("rules"):
        rule = Rule.read(item, field_path, fields.problems)
        if rule is not None:
            found.append((field_path, record_of(rule)))
    return found


def _policies(fields: Fields) -> Found:
    found = []
    for number, (field_path, item) in enumerate(fields.items("policies"), 1):
        policy = read_policy(item, field_path, fields.problems)
        if policy is not None:
            numbered = Policy(
                policy.key, policy.type, policy.capacity, policy.refill_rate, policy.window_seconds, number
            )
            found.append((field_path, record_of(numbered.rule())))
    if fields.has("default_policy"):
        field_path = fields.path("default_policy")
        default = read_default_policy(fields.values["default_policy"], field_path, fields.problems)
        if default is not None:
            found.append((field_path, _plain("default", "policy", default.numbers())))
    return found


def _clients(fields: Fields) -> Found:
    return [
        (limit_path, record_of(limit.rule()))
        for field_path, item in fields.items("clients")
        for limit_path, limit in read_client(item, field_path, fields.problems)
    ]


def _plans(fields: Fields) -> Found:
    found = []
    for field_path, name, item in fields.entries("plans"):
        limits, lease, limits_path = item, False, field_path
        if isinstance(item, Mapping):
            inner = Fields(item, field_path, fields.problems, ("limits", "lease"))
            limits, lease, limits_path = item.get("limits"), inner.boolean("lease", False), inner.path("limits")
            if limits is None:
                inner.report("limits", "is missing: write a limit such as '10/second burst 20', or a list of them")
                continue
        try:
            read = read_plan(name, read_limits(limits), lease)
            found.append((field_path, _plain("plan", name, plan_body(read))))
        except ConfigError as error:
            if error.field == "lease":
                fields.problems.add(f"{field_path}.lease", error.reason)
            else:
                fields.problems.add(limits_path, str(error))
    return found


def _tiers(fields: Fields) -> Found:
    found = []
    for field_path, user, tier in fields.entries("tiers"):
        if isinstance(tier, str) and tier and tier != "*":
            found.append((field_path, _plain("tier", user, {"tier": tier})))
        else:
            fields.problems.add(field_path, f"must be the name of a tier, such as premium, not {describe(tier)}")
    return found


def _policy_key(fields: Fields) -> Found:
    value = fields.values.get("policy_key")
    if value is None or value == OFF:
        return []
    parts = [value] if isinstance(value, str) else value
    if not isinstance(parts, list) or not parts or not all(part in POLICY_KEY_PARTS for part in parts):
        known = join_names(POLICY_KEY_PARTS)
        shown = join_names(map(_word, value)) if isinstance(value, list) and value else describe(value)
        fields.report("policy_key", f"must be off, or one or several of {known}, not {shown}")
        return []
    ordered = [part for part in POLICY_KEY_PARTS if part in parts]
    return [(fields.path("policy_key"), _plain("default", "policy_key", {"parts": ordered}))]


def _word(part: object) -> str:
    return redact_text(part) if isinstance(part, str) else describe(part)


def _default_client_limits(fields: Fields) -> Found:
    value = fields.values.get("default_client_limits")
    if value is None:
        return []
    limits = [] if value == OFF else [value] if isinstance(value, str) else value
    field_path = fields.path("default_client_limits")
    try:
        if not isinstance(limits, list) or not all(isinstance(item, str) for item in limits):
            raise ConfigError(f"must be limits such as 100/minute, or off, not {describe(value)}")
        rules_for_all("client", "default-client-limits", "default client limits", *limits)
    except ConfigError as error:
        fields.problems.add(field_path, str(error))
        return []
    return [(field_path, _plain("default", "client_limits", {"limits": limits}))]


def _plain(kind: Kind, record_id: str, body: Mapping[str, Any]) -> Record:
    return Record(kind, record_id, 1, body, 0, 0)
