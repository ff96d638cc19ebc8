"""Limiters with rules, of both kinds."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest

from unit.embedded.gates import Gate, Kind, Maker


@pytest.fixture(params=["sync", "async"])
def kind(request: pytest.FixtureRequest) -> Kind:
    found: Kind = request.param
    return found


@pytest.fixture
def gate_of(kind: Kind) -> Iterator[Maker]:
    """Makes limiters with rules, of each kind in turn."""
    made: list[Gate] = []

    def make(rules: str = "", **options: Any) -> Gate:
        made.append(Gate(kind, rules, **options))
        return made[-1]

    yield make
    for gate in made:
        gate.close()
