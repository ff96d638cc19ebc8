"""Which rules apply to a request, in which order, with which counters: each sentence of the contract.

The table is in table.py, and its notation in cases.py.
"""

from __future__ import annotations

from typing import Any

import pytest

from crestgate.core.context import RequestContext
from crestgate.errors import ValidationError
from crestgate.rules.ruleset import Defaults, RuleSet, client_defaults
from unit.rules.cases import NOW_US, Case, context_of, one_rule, rules_of
from unit.rules.table import CASES


@pytest.mark.parametrize("case", CASES, ids=lambda case: f"{case.sentence[:40]}: {case.title}")
def test_table_cases(case: Case) -> None:
    assert case.resolved() == case.expected(), case.sentence


def test_table_is_long_and_has_no_duplicates() -> None:
    assert len(CASES) >= 100
    assert len({(case.rules, case.request, case.policy_key, str(case.tiers)) for case in CASES}) == len(CASES)
    assert len({(case.sentence, case.title) for case in CASES}) == len(CASES)


def resolve(rules: RuleSet, request: str, now_us: int = NOW_US) -> list[tuple[str, str]]:
    return [(entry.rule.rule_id, key) for key, entry in rules.resolve(context_of(request), now_us)]


def test_override_expires() -> None:
    rules = RuleSet.empty().edited(rules_of("all user\nmore user for=1 ends=+10"))
    times = (0, 9_999_999, 10_000_000, 86_400_000_000)
    found = [resolve(rules, "user=1", NOW_US + elapsed_us)[0][0] for elapsed_us in times]
    assert found == ["more", "more", "all", "all"]


def test_client_with_expired_limits_has_the_default_limits() -> None:
    rules = RuleSet.empty().edited(rules_of("mine client for=acme 1s ends=+10\nalso client for=acme 2s ends=+20"))
    times = (0, 10_000_000, 20_000_000)
    found = [[rule for rule, _ in resolve(rules, "client=acme", NOW_US + elapsed_us)] for elapsed_us in times]
    assert found == [["mine", "also"], ["also"], ["default-client-limits"]]


def test_default_limits_of_clients_are_configured() -> None:
    several = RuleSet.empty().edited(defaults=Defaults(client=tuple(client_defaults(["5/s; 100/min"]))))
    assert [rule for rule, _ in resolve(several, "client=new")] == ["default-client-limits", "default-client-limits#2"]
    none = RuleSet.empty().edited(defaults=Defaults(client=()))
    assert resolve(none, "client=new") == []


def test_defaults_of_unknown_clients_and_keys() -> None:
    """100 per minute; capacity 100, refillRate 10, windowSeconds 60, TOKEN_BUCKET."""
    chosen = RuleSet.empty().resolve(RequestContext(client="new", key="new"), NOW_US)
    limits = [(entry.rule.limit, entry.rule.window_seconds, entry.rule.burst) for _, entry in chosen]
    assert limits == [(100, 60, None), (10, 1, 100)]
    assert {entry.rule.algorithm for _, entry in chosen} == {"token_bucket"}


@pytest.mark.parametrize("dimension", ["user", "api_key", "client", "key"])
def test_longest_identifier_has_its_own_counter(dimension: str) -> None:
    rules = RuleSet.empty().edited([one_rule(f"a {dimension.replace('_', '')}")], defaults=Defaults(client=()))
    values = ["k" * 1024, "k" * 1023 + "l", "é" * 512]
    contexts: list[dict[str, Any]] = [{dimension: value} for value in values]
    keys = {rules.resolve(RequestContext(**context), NOW_US)[0][0] for context in contexts}
    assert len(keys) == 3
    assert all(len(key.encode()) <= 1024 for key in keys)


def test_long_path_has_its_own_counter() -> None:
    rules = RuleSet.empty().edited([one_rule("a api")])
    keys = [rules.resolve(RequestContext(path="/" + "x" * size), NOW_US)[0][0] for size in (1019, 1020, 5000, 5001)]
    assert keys[0] == "api:/" + "x" * 1019
    assert len(set(keys)) == 4
    assert all(len(key) <= 1024 for key in keys)


def test_identifier_cannot_collide_with_a_digest() -> None:
    rules = RuleSet.empty().edited(rules_of("a api\nu user"))
    long = rules.resolve(RequestContext(path="/" + "x" * 5000, user="u" * 1024), NOW_US)
    for key, entry in long:
        value = key.partition(":")[2]
        field = "user" if entry.dimension == "user" else "path"
        context: dict[str, Any] = {field: value}
        assert key not in [other for other, _ in rules.resolve(RequestContext(**context), NOW_US)]


def test_long_pattern_has_its_own_name() -> None:
    names = {one_rule(f"a user on=/{'x' * size}").counter for size in (150, 190, 191, 1000, 1001)}
    assert len(names) == 5
    assert all(len(name) <= 200 for name in names)
    digest = one_rule(f"a user on=/{'x' * 1000}").counter.rpartition("|")[2]
    with pytest.raises(ValidationError, match="is not a pattern"):  # so no pattern can collide with it
        one_rule(f"a user on={digest}")


BAD: list[tuple[dict[str, Any], type[Exception], str]] = [
    ({"user": ""}, ValueError, "user must not be empty: leave it out when it is not known"),
    ({"user": 42}, TypeError, "user must be text or None, not int"),
    ({"user": ["a"]}, TypeError, "user must be text or None"),
    ({"user": "k" * 1025}, ValueError, "user is 1025 bytes long; the maximum is 1024: use a digest of it"),
    ({"user": "é" * 513}, ValueError, "user is 1026 bytes long"),
    ({"api_key": b"sk"}, TypeError, "api_key must be text or None, not bytes"),
    ({"client": ""}, ValueError, "client must not be empty"),
    ({"ip": ""}, ValueError, "ip must not be empty"),
    ({"ip": 1}, TypeError, "ip must be text or None, not int"),
    ({"key": ""}, ValueError, "key must not be empty"),
    ({"path": b"/"}, TypeError, "path must be text or None, not bytes"),
    ({"method": b"GET"}, TypeError, "method must be text or None, not bytes"),
    ({"method": 7}, TypeError, "method must be text or None, not int"),
    ({"method": ""}, ValueError, "method must not be empty"),
    ({"tier": 7}, TypeError, "tier must be text or None, not int"),
    ({"tier": ["gold"]}, TypeError, "tier must be text or None"),
    ({"tier": ""}, ValueError, "tier must not be empty"),
    ({"attributes": ["org"]}, TypeError, "attributes must be a mapping or None, not list"),
    ({"attributes": {f"a{n}": "x" for n in range(17)}}, ValueError, "attributes has 17 names; the maximum is 16"),
    (
        {"attributes": {"Org": "x"}},
        ValueError,
        "attributes has the name 'Org': an attribute's name matches [a-z][",
    ),
    ({"attributes": {"a" * 33: "x"}}, ValueError, "attributes has the name 'aaaa"),
    ({"attributes": {"user": "x"}}, ValueError, "attributes has the name 'user'"),
    ({"attributes": {"api_key": "x"}}, ValueError, "attributes has the name 'api_key'"),
    ({"attributes": {"": "x"}}, ValueError, "attributes has the name ''"),
    ({"attributes": {7: "x"}}, ValueError, "attributes has the name int"),
    ({"attributes": {"org": ""}}, ValueError, "attributes.org must not be empty"),
    ({"attributes": {"org": 7}}, TypeError, "attributes.org must be text or None, not int"),
    ({"attributes": {"org": None}}, TypeError, "attributes.org must be text or None, not NoneType"),
    ({"attributes": {"org": "k" * 1025}}, ValueError, "attributes.org is 1025 bytes long; the maximum is 1024"),
]


@pytest.mark.parametrize(("fields", "kind", "message"), BAD, ids=lambda value: str(value)[:40])
def test_invalid_contexts_are_refused(fields: dict[str, Any], kind: type[Exception], message: str) -> None:
    with pytest.raises(kind) as caught:
        RuleSet.empty().resolve(RequestContext(**fields), NOW_US)
    assert message in str(caught.value)


@pytest.mark.parametrize("used", [True, False])
def test_attributes_are_validated_whether_rules_use_them_or_not(used: bool) -> None:
    rules = RuleSet.empty().edited([one_rule("a org" if used else "a model")])
    assert resolve(rules, "@other=1") == []
    with pytest.raises(ValueError, match=r"attributes\.org is 1025 bytes long"):
        rules.resolve(RequestContext(attributes={"org": "k" * 1025}), NOW_US)


TRICKY = [*"ab*%|,é /{", "a|b", "%7C", "%2A", "org:a", "a|model:b", "a,b", "%2C", "\x00"]


def test_composite_counters_never_collide() -> None:
    """All pairs of values, in both parts; also with those of single dimensions that look like them."""
    rules = RuleSet.empty().edited(rules_of("both org,model\none org\ntwo model"))
    counters = [
        (key, entry.algorithm.name)
        for org in TRICKY
        for model in TRICKY
        for key, entry in rules.resolve(RequestContext(attributes={"org": org, "model": model}), NOW_US)
    ]
    assert len(set(counters)) == len(TRICKY) ** 2 + 2 * len(TRICKY)


def test_long_parts_have_their_own_counter() -> None:
    rules = RuleSet.empty().edited([one_rule("a org,model")])
    pairs = [("o" * 1024, "m" * 1024), ("o" * 1024, "m" * 1023 + "n"), ("o" * 600, "m" * 600)]
    keys = {
        rules.resolve(RequestContext(attributes={"org": org, "model": model}), NOW_US)[0][0] for org, model in pairs
    }
    assert len(keys) == 3
    assert all(key.startswith("model,org#sha256:") and len(key) <= 1024 for key in keys)


def test_long_dimensions_have_their_own_name() -> None:
    names = [f"{letter}{'x' * 31}" for letter in "abcdefgh"]
    counters = {one_rule(f"a {','.join(some)}").counter for some in (names, names[:7], [*names[:7], "short"])}
    assert len(counters) == 3
    assert all(len(name) <= 200 for name in counters)


def test_attributes_that_no_rule_uses_any_more_are_forgotten() -> None:
    rules = RuleSet.empty().edited(rules_of("a org\nb org,model\nc team disabled"))
    assert rules.attributes == {"org": 2, "model": 1}
    rules = rules.edited([one_rule("b org,user")])
    assert rules.attributes == {"org": 2}
    assert rules.edited([], ["a", "b"]).attributes == {}
    assert resolve(rules, "@model=x @org=y user=z") == [("a", "org:y"), ("b", "user:z|org:y")]


def test_empty_path_is_the_root() -> None:
    rules = RuleSet.empty().edited([one_rule("a api on=/")])
    assert [key for key, _ in rules.resolve(RequestContext(path=""), NOW_US)] == ["api:/"]
