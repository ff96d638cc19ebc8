"""Fixtures: limiters with rules, sync and async."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest

from unit.limiter.rule_limiters import Kind, Maker, RuleLimiter


@pytest.fixture(params=["sync", "async"])
def kind(request: pytest.FixtureRequest) -> Kind:
    found: Kind = request.param
    return found


@pytest.fixture
def make_limiter(kind: Kind) -> Iterator[Maker]:
    """Creates limiters with rules, sync and async in turn."""
    made: list[RuleLimiter] = []

    def make(rules: str = "", **options: Any) -> RuleLimiter:
        made.append(RuleLimiter(kind, rules, **options))
        return made[-1]

    yield make
    for gate in made:
        gate.close()
