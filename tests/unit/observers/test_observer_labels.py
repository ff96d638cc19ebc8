"""Labels are bounded, whatever the names are, and contain no key."""

from __future__ import annotations

import pytest

from crestgate.observers.labels import RuleLabels


@pytest.mark.parametrize(
    ("name", "label"),
    [
        ("gold", "gold"),
        ("100/minute", "100/minute"),
        ("", "no_rule"),
        ("policy:alice", "policy"),
        ("override:alice:orders", "override:orders"),
        ("\ud800", "other"),
    ],
)
def test_label_of_a_name(name: str, label: str) -> None:
    labels = RuleLabels()
    assert labels.get(name, "user") == (label, "user")
    assert labels.get(name, "user") == (label, "user")


def test_labels_are_bounded() -> None:
    labels = RuleLabels(max_labels=3)
    seen = {labels.get(f"{number}/minute", "key") for number in range(20_000)}
    assert seen == {("0/minute", "key"), ("1/minute", "key"), ("2/minute", "key"), ("other", "key")}
    assert labels.get("0/minute", "key") == ("0/minute", "key"), "those that have a label keep it"
    assert labels.get("0/minute", "user") == ("other", "user")


def test_policies_of_many_keys_are_one_label() -> None:
    labels = RuleLabels(max_labels=2)
    assert {labels.get(f"policy:{number}", "key") for number in range(20_000)} == {("policy", "key")}
    assert labels.get("gold", "key") == ("gold", "key")
