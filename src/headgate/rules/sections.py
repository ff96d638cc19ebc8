"""The sections of a rule file: every way of saying who gets what, read into the records they all are.

rules                   rules, as they are
plans                   named limits:           gold: 10/second burst 20
tiers                   the tiers of users:     alice: premium
strategies              ip, api, apikey, …:     ip: {enabled: true, limit: 100/minute}
policies                limits of opaque keys:  - {key: user-123, type: TOKEN_BUCKET, capacity: 100, refillRate: 10}
default_policy          for keys without one
policy_key              which key's policy joins the chain of a request: off, ip, or a list such as [user, route]
clients                 - {clientId: …, limits: [{limitType, limitName, timeIntervalLimit}]}
default_client_limits   for clients that nobody has configured: 100/minute, or off
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from headgate.core.masking import masked_text
from headgate.errors import ConfigError
from headgate.reading.fields import Fields, kind_of, listed
from headgate.rules.records import read_plan, record_of
from headgate.rules.repositories.port import Kind, Record
from headgate.rules.rule import Rule
from headgate.rules.views.clients import read_client
from headgate.rules.views.policies import Policy, read_default_policy, read_policy
from headgate.rules.views.strategies import read_strategies, rules_for_all

__all__ = ["OFF", "POLICY_KEY_PARTS", "SECTIONS", "read_sections"]

SECTIONS = (
    *("rules", "plans", "tiers", "strategies", "policies", "default_policy", "policy_key"),
    *("clients", "default_client_limits"),
)
POLICY_KEY_PARTS = ("user", "apikey", "client", "ip", "route")
"""In the order in which a key has them."""
OFF = "off"

Found = list[tuple[str, Record]]


def read_sections(fields: Fields) -> Found:
    """The records that the sections of a file say, each with the way to where it was written; mistakes are noted."""
    return [
        *_rules(fields),
        *((way, record_of(rule)) for way, rule in read_strategies(fields)),
        *_policies(fields),
        *_clients(fields),
        *_plans(fields),
        *_tiers(fields),
        *_policy_key(fields),
        *_default_client_limits(fields),
    ]


def _rules(fields: Fields) -> Found:
    found = []
    for way, item in fields.items("rules"):
        rule = Rule.read(item, way, fields.problems)
        if rule is not None:
            found.append((way, record_of(rule)))
    return found


def _policies(fields: Fields) -> Found:
    found = []
    for number, (way, item) in enumerate(fields.items("policies"), 1):
        policy = read_policy(item, way, fields.problems)
        if policy is not None:
            numbered = Policy(
                policy.key, policy.type, policy.capacity, policy.refill_rate, policy.window_seconds, number
            )
            found.append((way, record_of(numbered.rule())))
    if fields.given("default_policy"):
        way = fields.way("default_policy")
        default = read_default_policy(fields.values["default_policy"], way, fields.problems)
        if default is not None:
            found.append((way, _plain("default", "policy", default.numbers())))
    return found


def _clients(fields: Fields) -> Found:
    return [
        (limit_way, record_of(limit.rule()))
        for way, item in fields.items("clients")
        for limit_way, limit in read_client(item, way, fields.problems)
    ]


def _plans(fields: Fields) -> Found:
    found = []
    for way, name, item in fields.entries("plans"):
        try:
            found.append((way, _plain("plan", name, {"limits": list(read_plan(name, item))})))
        except ConfigError as error:
            fields.problems.add(way, str(error).removeprefix(f"plan {name!r}: "))
    return found


def _tiers(fields: Fields) -> Found:
    found = []
    for way, user, tier in fields.entries("tiers"):
        if isinstance(tier, str) and tier and tier != "*":
            found.append((way, _plain("tier", user, {"tier": tier})))
        else:
            fields.problems.add(way, f"must be the name of a tier, such as premium, not {kind_of(tier)}")
    return found


def _policy_key(fields: Fields) -> Found:
    value = fields.values.get("policy_key")
    if value is None or value == OFF:
        return []
    parts = [value] if isinstance(value, str) else value
    if not isinstance(parts, list) or not parts or not all(part in POLICY_KEY_PARTS for part in parts):
        known = listed(POLICY_KEY_PARTS)
        shown = listed(map(_word, value)) if isinstance(value, list) and value else kind_of(value)
        fields.wrong("policy_key", f"must be off, or one or several of {known}, not {shown}")
        return []
    ordered = [part for part in POLICY_KEY_PARTS if part in parts]
    return [(fields.way("policy_key"), _plain("default", "policy_key", {"parts": ordered}))]


def _word(part: object) -> str:
    return masked_text(part) if isinstance(part, str) else kind_of(part)


def _default_client_limits(fields: Fields) -> Found:
    value = fields.values.get("default_client_limits")
    if value is None:
        return []
    limits = [] if value == OFF else [value] if isinstance(value, str) else value
    way = fields.way("default_client_limits")
    try:
        if not isinstance(limits, list) or not all(isinstance(item, str) for item in limits):
            raise ConfigError(f"must be limits such as 100/minute, or off, not {kind_of(value)}")
        rules_for_all("client", "default-client-limits", "default client limits", *limits)
    except ConfigError as error:
        fields.problems.add(way, str(error))
        return []
    return [(way, _plain("default", "client_limits", {"limits": limits}))]


def _plain(kind: Kind, record_id: str, body: Mapping[str, Any]) -> Record:
    return Record(kind, record_id, 1, body, 0, 0)
