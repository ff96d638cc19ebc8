"""Rules that apply to a user, whatever the request."""

from __future__ import annotations

import pytest

from crestgate.rules.ruleset import RuleSet
from unit.rules.cases import NOW_US, rules_of

RULES = """
    all        user
    slow       user  5s
    gold       user  tier=gold
    bobs       user  for=bob on=/orders/*
    posts      user  method=POST
    tried      user  shadow limit=1
    ended      user  for=bob ends=-10
    lasting    user  for=eve ends=+10
    off        user  for=bob disabled
    address    ip
    everybody  global
"""


@pytest.mark.parametrize(
    ("user", "expected"),
    [
        ("alice", ["slow", "all", "posts", "tried"]),
        ("midas", ["slow", "gold", "posts", "tried"]),
        ("bob", ["slow", "all", "posts", "bobs", "tried"]),
        ("eve", ["slow", "lasting", "posts", "tried"]),
    ],
)
def test_winner_of_every_slot(user: str, expected: list[str]) -> None:
    rules = RuleSet.empty().edited(rules_of(RULES), tiers={"midas": "gold"})
    chosen = rules.for_user(user, NOW_US)
    assert [entry.rule.rule_id for _, entry in chosen] == expected
    assert {key for key, _ in chosen} == {f"user:{user}"}


def test_user_must_not_be_empty() -> None:
    with pytest.raises(ValueError, match="user must not be empty"):
        RuleSet.empty().for_user("", NOW_US)
