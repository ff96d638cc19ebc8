"""Rules with leases: the field, its errors, and what compiled rules, explanations and diffs have of it."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from crestgate import Limiter, RequestContext
from crestgate.errors import ValidationError
from crestgate.rules.compiled_rule import CompiledRule
from crestgate.rules.diff import field_changes
from crestgate.rules.editor import Editor
from crestgate.rules.records import record_of, rule_of
from crestgate.rules.rule import Rule, rule_body_schema, rule_schema
from crestgate.testing import FakeClock
from unit.rules.editing import ALICE
from unit.rules.memory_repository import MemoryRepository

MINIMAL: dict[str, Any] = {"rule_id": "r", "dimension": "user", "limit": 100, "window_seconds": 60}
CAN = "token_bucket, fixed_window, gcra"


def read(**fields: Any) -> Rule:
    return Rule.read({**MINIMAL, **fields})


def test_lease_is_left_out_unless_it_is_true() -> None:
    assert "lease" not in read().to_data()
    assert read(lease=False) == read(lease=None) == read()
    leased = read(lease=True, algorithm="gcra", burst=5)
    assert leased.to_data()["lease"] is True
    assert Rule.read(leased.to_data()) == leased != read(algorithm="gcra", burst=5)
    assert Rule.stored(leased.body(), 1, 0, 0) == leased


@pytest.mark.parametrize("fields", [{"algorithm": name} for name in CAN.split(", ")], ids=str)
def test_algorithms_that_can_lease(fields: dict[str, Any]) -> None:
    rule = read(lease=True, **fields)
    assert rule.compiled().lease
    assert CompiledRule(rule, "*").algorithm.lease
    assert not CompiledRule(read(**fields), "*").algorithm.lease
    assert rule.counter == read(**fields).counter, "what was counted without leases stays"


def test_calendar_window_can_lease() -> None:
    rule = Rule.read({"rule_id": "r", "dimension": "user", "limit": 100, "calendar": "month", "lease": True})
    assert rule.compiled().lease
    assert rule.algorithm == "fixed_window"


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        (
            {},
            "is not possible with sliding_window_counter, the default of rules: leave it out, or write algorithm: with "
            f"one of {CAN}",
        ),
        (
            {"algorithm": "sliding_window"},
            f"is not possible with sliding_window_counter: leave it out, or write algorithm: with one of {CAN}",
        ),
        ({"algorithm": "leaky_bucket"}, "is not possible with leaky_bucket: "),
        ({"algorithm": "sliding_window_log"}, "is not possible with sliding_window_log: "),
        ({"algorithm": "concurrency"}, "is not possible with concurrency: "),
        ({"algorithm": "gcra", "lease": "yes"}, "must be true or false, not 'yes'"),
        ({"algorithm": "gcra", "lease": 1}, "must be true or false, not 1"),
    ],
    ids=str,
)
def test_wrong_lease_is_named_with_the_remedy(fields: dict[str, Any], message: str) -> None:
    with pytest.raises(ValidationError) as caught:
        read(**{"lease": True, **fields})
    (problem,) = caught.value.problems
    assert problem.field == "lease"
    assert problem.message.startswith(message)


def test_schemas_have_the_field() -> None:
    body, response = rule_body_schema(), rule_schema()
    assert body["properties"]["lease"]["anyOf"][0] == {"type": "boolean"}
    assert "lease" not in response["required"]


def test_diff_and_override_keep_the_lease() -> None:
    editor = Editor(MemoryRepository(), ALICE)
    editor.create(read(algorithm="gcra"))
    leased = record_of(read(algorithm="gcra", lease=True))
    (change,) = editor.difference([leased]).changed
    assert field_changes(*change) == [("lease", None, True)]
    editor.apply(editor.difference([leased]))
    assert editor.rule("r").lease
    assert editor.override("bob", editor.rule("r"), 500, 3600).lease
    assert not rule_of(record_of(read(algorithm="gcra"))).lease


def test_backend_leases_from_the_first_rule_with_a_lease_on(tmp_path: Path) -> None:
    """A rule without a lease has the same algorithm, and is checked before."""
    path = tmp_path / "crestgate.yaml"
    one = "rule_id: one, dimension: user, limit: 5, window_seconds: 60, algorithm: fixed_window"
    two = "rule_id: two, dimension: ip, limit: 5, window_seconds: 60, algorithm: fixed_window, lease: true"

    def limiter(rules: str) -> Limiter:
        path.write_text(f"mode: embedded\nstore: shared://{tmp_path}/counters\nrules: [{rules}]\n")
        return Limiter.from_config(path, clock=FakeClock(1_700_000_000))

    with limiter(f"{{{one}}}") as limits:
        assert limits.backend.lease_sweeper is None
    with limiter(f"{{{one}}}, {{{two}}}") as limits:
        assert limits.backend.lease_sweeper is not None
        context = RequestContext(ip="192.0.2.1", path="/")
        assert [limits.check_request(context).allowed for _ in range(6)] == [True] * 5 + [False]
