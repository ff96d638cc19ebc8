"""The resolution cache: results are reused for requests of the same shape only where they are valid."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from crestgate.core.context import RequestContext
from crestgate.rules.rule import Rule
from crestgate.rules.ruleset import MAX_CACHED, MAX_CACHED_PATH, Defaults, RuleSet
from unit.rules.cases import NOW_US, Case, context_of, one_rule, rules_of
from unit.rules.table import CASES

CALLERS = ("user", "api_key", "client", "ip", "key")


def resolve(rules: RuleSet, context: RequestContext, now_us: int = NOW_US) -> list[tuple[str, str]]:
    return [(entry.rule.rule_id, key) for key, entry in rules.resolve(context, now_us)]


def other_caller(context: RequestContext) -> RequestContext:
    """The context of another caller, of the same shape."""
    others: dict[str, Any] = {
        name: "10.9.9.9" if name == "ip" else "stranger" for name in CALLERS if getattr(context, name)
    }
    if context.attributes is not None:
        others["attributes"] = dict.fromkeys(context.attributes, "stranger")
    return replace(context, **others)


@pytest.mark.parametrize("case", CASES, ids=lambda case: f"{case.sentence[:40]}: {case.title}")
def test_table_with_a_cached_result_of_another_caller(case: Case) -> None:
    rules = RuleSet.empty().edited(
        rules_of(case.rules), tiers=case.tiers, defaults=Defaults(policy_key=case.policy_key)
    )
    rules.resolve(other_caller(context_of(case.request)), NOW_US)
    for _ in range(2):
        chosen = rules.resolve(context_of(case.request), NOW_US)
        assert [f"{entry.rule.rule_id} {key} {entry.algorithm.name}" for key, entry in chosen] == case.expected()


def test_result_is_reused() -> None:
    rules = RuleSet.empty().edited([one_rule("a user on=/orders")])
    assert resolve(rules, context_of("user=1 path=/orders")) == [("a", "user:1")]
    assert len(rules.cache) == 1
    assert resolve(rules, context_of("user=2 path=/orders")) == [("a", "user:2")]
    assert len(rules.cache) == 1


def test_result_is_reused_for_paths_of_the_same_patterns() -> None:
    rules = RuleSet.empty().edited(rules_of("all api\nitems user on=/items/*\nmine user for=9 on=/items/*"))
    expected = {"user=1 path=/items/1": [("items", "user:1"), ("all", "api:/items/1")]}
    expected["user=2 path=/items/2"] = [("items", "user:2"), ("all", "api:/items/2")]
    expected["user=9 path=/items/3"] = [("mine", "user:9"), ("all", "api:/items/3")]
    expected["user=1 path=/other"] = [("all", "api:/other")]
    expected["user=1"] = []
    for request, chosen in expected.items():
        assert resolve(rules, context_of(request)) == chosen
    assert len(rules.matches) == 3, "one for /items/*, one for other paths, and one without a path"


def test_results_by_patterns_are_bounded() -> None:
    rules = RuleSet.empty().edited([one_rule("a api")])
    for number in range(MAX_CACHED + 10):
        rules.resolve(RequestContext(path="/", method=f"M{number}"), NOW_US)
    assert 0 < len(rules.matches) <= MAX_CACHED


def test_expiring_rule_is_not_cached() -> None:
    rules = RuleSet.empty().edited(rules_of("all user\nmore user tier=free ends=+10"))
    times = (0, 9_999_999, 10_000_000)
    assert [resolve(rules, context_of("user=1"), NOW_US + us)[0][0] for us in times] == ["more", "more", "all"]


def test_cache_is_bounded_for_many_paths() -> None:
    rules = RuleSet.empty().edited([one_rule("a api")])
    for number in range(MAX_CACHED + 10):
        rules.resolve(RequestContext(path=f"/{number}"), NOW_US)
    assert 0 < len(rules.cache) <= MAX_CACHED
    rules.cache.clear()
    rules.resolve(RequestContext(path="/" + "x" * MAX_CACHED_PATH), NOW_US)
    assert not rules.cache


names = st.sampled_from(["1", "2", "3"])
paths = st.sampled_from(["/", "/orders", "/orders/7", "/orders//7", "/%6frders", "orders"])
lines = st.builds(
    lambda dimension, identifier, where, method, tier, window, ends, shadow: " ".join(
        filter(None, [dimension, identifier, where, method, tier, window, ends, shadow])
    ),
    st.sampled_from(["user", "ip", "apikey", "client", "api", "global", "key", "org", "org,user", "user,model,org"]),
    st.sampled_from(["", "", "for=1", "for=2", "for=1,*", "for=*,1", "for=1,2", "for=*,1,2", "for=2,*,*"]),
    st.sampled_from(["", "on=/orders", "on=/orders/*", "on=/{x}", "on=orders"]),
    st.sampled_from(["", "method=GET"]),
    st.sampled_from(["", "tier=gold", "tier=free"]),
    st.sampled_from(["", "5s"]),
    st.sampled_from(["", "", "ends=+10"]),
    st.sampled_from(["", "", "shadow"]),
)
contexts = st.builds(
    RequestContext,
    user=st.none() | names,
    api_key=st.none() | names,
    client=st.none() | names,
    ip=st.none() | names,
    key=st.none() | names,
    path=st.none() | paths,
    method=st.sampled_from([None, "GET", "get", "PUT"]),
    tier=st.sampled_from([None, "gold"]),
    attributes=st.none() | st.dictionaries(st.sampled_from(["org", "model", "unused"]), names, max_size=3),
)


def distinct(texts: list[str]) -> list[Rule]:
    """The rules without those that conflict with an earlier one."""
    rules: dict[str | None, Rule] = {}
    for number, text in enumerate(texts):
        settings = text.split()
        parts = settings[0].count(",")
        settings = [
            setting
            for setting in settings
            if not setting.startswith("for=") or (settings[0] not in ("api", "global") and setting.count(",") == parts)
        ]
        rule = one_rule(f"r{number} {' '.join(settings)}")
        rules.setdefault(rule.unique_key, rule)
    return list(rules.values())


@settings(deadline=None)
@given(
    texts=st.lists(lines, max_size=8),
    requests=st.lists(st.tuples(contexts, st.sampled_from([0, 9_000_000, 11_000_000])), min_size=2, max_size=12),
    tiers=st.dictionaries(names, st.sampled_from(["gold", "free"]), max_size=2),
    policy_key=st.sampled_from([(), ("user", "route")]),
)
def test_earlier_requests_do_not_affect_results(
    texts: list[str],
    requests: list[tuple[RequestContext, int]],
    tiers: dict[str, str],
    policy_key: tuple[str, ...],
) -> None:
    rules = distinct(texts)
    defaults = Defaults(policy_key=policy_key)
    lasting = RuleSet.empty().edited(rules, tiers=tiers, defaults=defaults)
    for context, later_us in requests:
        fresh = RuleSet.empty().edited(rules, tiers=tiers, defaults=defaults)
        assert resolve(lasting, context, NOW_US + later_us) == resolve(fresh, context, NOW_US + later_us)
