"""Plans with leases: in files and repositories, and as limiters compile them."""

from __future__ import annotations

from pathlib import Path

import pytest

from crestgate import ConfigError, Limit, Limiter
from crestgate.config.settings import load_settings
from crestgate.core.plans import Resolver
from crestgate.errors import ValidationError
from crestgate.rules.editor import Editor
from crestgate.rules.port import Record
from crestgate.rules.records import plan_body, plan_of
from crestgate.testing import FakeClock
from unit.rules.editing import ALICE
from unit.rules.memory_repository import MemoryRepository


def test_stored_plan_has_a_lease_only_if_it_is_true() -> None:
    repository = MemoryRepository()
    editor = Editor(repository, ALICE)
    editor.put_plan("plain", "5/s")
    assert editor.put_plan("hot", ["5/s", "9/calendar day"], lease=True) == ("5/second", "9/calendar day")
    bodies = {record.id: record.body for record in repository.list("plan")}
    assert bodies == {
        "plain": {"limits": ["5/second"]},
        "hot": {"limits": ["5/second", "9/calendar day"], "lease": True},
    }
    for name, body in bodies.items():
        assert plan_body(plan_of(Record("plan", name, 1, body, 0, 0))) == body


@pytest.mark.parametrize(
    ("limits", "lease", "message"),
    [
        (
            ["5/s", "5/minute using sliding_window_log"],
            True,
            "lease is not possible with sliding_window_log: leave it out, or use one of token_bucket, fixed_window, "
            "gcra",
        ),
        ("5 concurrent", True, "lease is not possible with concurrency: "),
        ("5/s", "yes", "lease must be true or false, not 'yes'"),
        ("5/s", None, "lease must be true or false, not nothing"),
    ],
    ids=str,
)
def test_wrong_lease_is_named(limits: object, lease: object, message: str) -> None:
    with pytest.raises(ConfigError) as caught:
        plan_of(Record("plan", "hot", 1, {"limits": limits, "lease": lease}, 0, 0))
    assert caught.value.field == "lease"
    assert str(caught.value).startswith(message)


def settings_of(tmp_path: Path, plans: str) -> str:
    path = tmp_path / "crestgate.yaml"
    path.write_text(f"mode: embedded\nstore: shared://{tmp_path}/counters\nplans: {plans}\n")
    return str(path)


def test_plan_of_a_file_is_leased(tmp_path: Path) -> None:
    hot = "{limits: [3/calendar minute, 5/day using fixed_window], lease: true}"
    plans = f"{{hot: {hot}, cold: {{limits: 3/minute, lease: false}}}}"
    with Limiter.from_config(settings_of(tmp_path, plans), clock=FakeClock(1_700_000_000)) as limiter:
        assert [algorithm.lease for algorithm in limiter.resolver.chain("hot")] == [True, True]
        assert [algorithm.lease for algorithm in limiter.resolver.chain("cold")] == [False]
        assert [limiter.check("k", "hot").allowed for _ in range(4)] == [True, True, True, False]
        assert limiter.backend.lease_sweeper is not None


def test_errors_of_a_file_are_reported_together(tmp_path: Path) -> None:
    plans = "{a: {limit: 5/s, lease: maybe}, b: {limits: many, lease: true}}"
    with pytest.raises(ValidationError) as caught:
        load_settings(settings_of(tmp_path, plans), {})
    fields = [problem.field for problem in caught.value.problems]
    assert sorted(fields) == ["plans.a.lease", "plans.a.limit", "plans.a.limits", "plans.b.limits"]


def test_plan_of_the_environment_is_leased(tmp_path: Path) -> None:
    settings = load_settings(None, {"CRESTGATE_PLANS__HOT": "{limits: 5/s, lease: true}"})
    record = settings.rule_files().get("plan", "hot")
    assert record is not None
    assert record.body == {"limits": ["5/second"], "lease": True}


def test_changed_lease_of_a_plan_is_noticed() -> None:
    """Equal limits may differ in their leases."""
    plans: dict[str, list[str | Limit]] = {"hot": [Limit(5, 1)]}
    resolver = Resolver(plans)
    assert [algorithm.lease for algorithm in resolver.chain("hot")] == [False]
    plans["hot"] = [Limit(5, 1, lease=True)]
    assert [algorithm.lease for algorithm in resolver.chain("hot")] == [True]
    leased = resolver.chain("hot")
    plans["hot"] = [Limit(5, 1, lease=True)]
    assert resolver.chain("hot") is leased
