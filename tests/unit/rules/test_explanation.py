"""Why rules apply, lose or do not match; how much of a large rule set is shown."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from crestgate.core.context import RequestContext
from crestgate.core.redaction import client_id_from_api_key
from crestgate.rules.explanation import Explanation, RuleScan, RuleVerdict, explain_rules
from crestgate.rules.rule import Rule
from crestgate.rules.ruleset import RuleSet

NOW_US = 1_700_000_000_000_000
BEFORE, LATER, LATEST = NOW_US - 1_000_000, NOW_US + 1_000_000, NOW_US + 2_000_000
CONTEXT = RequestContext(user="42", path="/orders/7", method="get", tier="gold", api_key="hunter2")


def rule(rule_id: str, expires_us: int | None = None, **fields: Any) -> Rule:
    data = {"rule_id": rule_id, "dimension": "user", "limit": 10, "window_seconds": 60, **fields}
    return replace(Rule.read(data), expires_us=expires_us)


def explain(*rules: Rule, context: RequestContext = CONTEXT, precedence: dict[str, int] | None = None) -> Explanation:
    return explain_rules(RuleSet.empty().edited(rules, precedence=precedence), context, NOW_US)


def verdicts(*rules: Rule, **options: Any) -> dict[str, RuleVerdict]:
    return {verdict.rule.rule_id: verdict for verdict in explain(*rules, **options).verdicts}


@pytest.mark.parametrize(
    ("other", "reason"),
    [
        (rule("it", endpoint_pattern="/users/*"), "the path does not match /users/*"),
        (rule("it", endpoint_pattern="getUsers"), "the path does not match getUsers"),
        (rule("it", method="POST"), "it is for method POST"),
        (rule("it", tier="free"), "it is for tier free, and the request's is gold"),
        (rule("it", identifier="43"), "it is for user 43"),
        (rule("it", dimension="ip"), "the request has no ip"),
        (rule("it", dimension="org"), "the request has no org"),
        (rule("it", dimension=["org", "user", "ip"]), "the request has no org and no ip"),
        (rule("it", dimension=["user", "org"], identifier=["43", "*"]), "the request has no org; it is for user 43"),
        (rule("it", mode="disabled"), "it is disabled"),
        (rule("it", BEFORE), "it expired at 2023-11-14T22:13:19Z"),
        (rule("it", NOW_US), "it expired at 2023-11-14T22:13:20Z"),
        (
            rule("it", mode="disabled", endpoint_pattern="/users", method="POST", tier="free", identifier="43"),
            "it is disabled; it is for user 43; the path does not match /users; it is for method POST; "
            "it is for tier free, and the request's is gold",
        ),
    ],
)
def test_reasons_of_rules_that_do_not_match(other: Rule, reason: str) -> None:
    (verdict,) = explain(other).verdicts
    assert (verdict.status, verdict.reason, verdict.lost_to) == ("not_matched", reason, None)


def test_api_key_of_a_rule_is_shown_as_a_digest() -> None:
    (verdict,) = explain(rule("it", dimension="apikey", identifier="swordfish")).verdicts
    assert verdict.reason == f"it is for apikey {client_id_from_api_key('swordfish')}"


OWN = RequestContext(user="42", api_key="hunter2", attributes={"org": "acme", "model": "large", "other": "1"})


def test_own_dimensions_are_explained() -> None:
    both = ["org", "model"]
    found = verdicts(
        rule("every", dimension=both),
        rule("gold", dimension=both, tier="gold"),
        rule("acme", dimension=both, identifier=["acme", "*"]),
        rule("large", dimension=both, identifier=["*", "large"]),
        rule("exact", dimension=["model", "org"], identifier=["large", "acme"]),
        rule("missed", dimension=both, identifier=["umbrella", "large"]),
        rule("single", dimension="org", identifier="acme"),
        rule("off", dimension="other", mode="disabled"),
        context=OWN,
    )
    assert {name: (one.status, one.reason) for name, one in found.items()} == {
        "exact": ("applies", "is for exactly this model and exactly this org; wins over 3 other rules of its slot"),
        "single": ("applies", "is for exactly this org"),
        "every": ("lost", "lost to exact: an exact identifier beats *"),
        "acme": ("lost", "lost to exact: 2 exact parts beat 1"),
        "large": ("lost", "lost to exact: 2 exact parts beat 1"),
        "gold": ("not_matched", "it is for tier gold, and the request's is free"),
        "missed": ("not_matched", "it is for org umbrella and model large"),
        "off": ("not_matched", "it is disabled"),
    }


def test_of_as_many_exact_parts_those_written_first_win() -> None:
    both = ["org", "model"]
    found = verdicts(
        rule("acme", dimension=both, identifier=["acme", "*"]),
        rule("large", dimension=both, identifier=["*", "large"]),
        context=OWN,
    )
    assert found["acme"].reason == "is for every model and exactly this org; wins over 1 other rule of its slot"
    assert found["large"].reason == "lost to acme: of as many exact parts, those written first win: org"


def test_api_key_in_a_list_is_shown_as_a_digest() -> None:
    secret = rule("it", dimension=["apikey", "org"], identifier=["swordfish", "acme"])
    (verdict,) = explain(secret, context=OWN).verdicts
    assert verdict.reason == f"it is for apikey {client_id_from_api_key('swordfish')} and org acme"


@pytest.mark.parametrize(
    "pattern", ["*", "/orders/*", "/orders/{id}", "/orders/7", "/*"], ids=["any", "below", "segment", "exact", "all"]
)
def test_disabled_rule_with_a_matching_path_is_only_disabled(pattern: str) -> None:
    (verdict,) = explain(rule("it", mode="disabled", endpoint_pattern=pattern)).verdicts
    assert verdict.reason == "it is disabled"


def test_disabled_rule_for_the_name_of_an_api() -> None:
    named = rule("it", mode="disabled", endpoint_pattern="getUsers")
    (verdict,) = explain(named, context=RequestContext(user="1", path="getUsers")).verdicts
    assert verdict.reason == "it is disabled"


def test_request_without_a_path() -> None:
    found = verdicts(rule("a", endpoint_pattern="/a"), rule("b", dimension="api"), context=RequestContext(user="1"))
    assert found["a"].reason == "the request has no path"
    assert found["b"].reason == "the request has no path"


@pytest.mark.parametrize(
    ("winner", "loser", "reason"),
    [
        (rule("w", identifier="42"), rule("l"), "an exact identifier beats *"),
        (rule("w", identifier="42"), rule("l", tier="gold"), "an exact identifier beats a tier"),
        (rule("w", tier="gold"), rule("l"), "a tier beats *"),
        (rule("w", tier="gold"), rule("l", LATER), "a tier beats *"),
        (rule("w", identifier="42", tier="gold"), rule("l", identifier="42"), "a tier beats *"),
        (rule("w", LATER), rule("l"), "of two equally specific rules, the one with expires_at wins while it lasts"),
        (rule("w", LATER), rule("l", LATEST), "both are equally specific, and it ends first"),
    ],
)
@pytest.mark.parametrize("mode", ["enforce", "shadow"])
def test_reasons_of_rules_that_lost(winner: Rule, loser: Rule, reason: str, mode: str) -> None:
    found = verdicts(*(replace(one, mode=mode) for one in (loser, winner)))
    assert found["l"] == RuleVerdict(replace(loser, mode=mode), "lost", f"lost to w: {reason}", "w")
    assert found["w"].status == ("applies" if mode == "enforce" else "shadow")
    assert "wins over 1 other rule of its slot" in found["w"].reason


def test_source_with_precedence_wins() -> None:
    found = verdicts(rule("l"), rule("w"), precedence={"w": 1})
    assert found["l"].reason == "lost to w: both are equally specific, and its source has precedence"


def test_reasons_of_rules_that_apply() -> None:
    found = verdicts(
        rule("every"),
        rule("exact", LATER, identifier="42", window_seconds=1),
        rule("tier", tier="gold", window_seconds=2),
        rule("api", dimension="api"),
        rule("all", dimension="global"),
        rule("watched", mode="shadow"),
    )
    assert {name: verdict.reason for name, verdict in found.items()} == {
        "every": "is for every user",
        "exact": "is for exactly this user until 2023-11-14T22:13:21Z",
        "tier": "is for every user, of tier gold",
        "api": "is for this endpoint, whoever calls it",
        "all": "is for all requests together",
        "watched": "is for every user; in shadow mode: it counts apart and never denies",
    }


def test_defaults_of_keys_and_clients() -> None:
    explanation = explain(rule("a"), context=RequestContext(key="k", client="c"))
    assert [verdict.reason for verdict in explanation.verdicts] == [
        "the default limit of clients that are not configured",
        "the default policy: no policy is for this key",
        "the request has no user",
    ]
    assert (explanation.considered, explanation.truncated) == (3, False)


def test_nearest_rules_come_first_and_the_rest_is_left_out() -> None:
    others = [rule(f"other-{n}", identifier=f"u{n}") for n in range(10_000)]
    near = [rule("path", endpoint_pattern="/a"), rule("off", mode="disabled", window_seconds=5), rule("lost")]
    explanation = explain(*others, *near, rule("won", tier="gold"))
    ids = [verdict.rule.rule_id for verdict in explanation.verdicts]
    assert ids[:4] == ["won", "lost", "off", "path"]
    assert len(ids) == 200
    assert (explanation.considered, explanation.truncated) == (10_004, True)


def test_scan_in_slices_finds_the_same() -> None:
    rules = RuleSet.empty().edited([rule(f"r{n}", tier=f"t{n}") for n in range(50)] + [rule("it")])
    scan = RuleScan(rules, CONTEXT, NOW_US, rules.resolve(CONTEXT, NOW_US))
    turns = 1
    while scan.advance(16):
        turns += 1
    assert turns == 4
    assert scan.result() == explain_rules(rules, CONTEXT, NOW_US)


def test_order_does_not_depend_on_that_of_the_rules() -> None:
    rules = [rule(f"r{number}", method="POST", endpoint_pattern=f"/p{number}") for number in range(9)]
    context = replace(CONTEXT, method=None)
    there, here = explain(*rules, context=context), explain(*reversed(rules), context=context)
    assert [verdict.rule.rule_id for verdict in here.verdicts] == [f"r{number}" for number in range(9)]
    assert here == there
