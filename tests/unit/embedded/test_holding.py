"""What was taken may be given back, as long as somebody holds it: whether a request counts is known later."""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine
from typing import Any

import pytest

from headgate import Decision, Limiter, RequestContext
from headgate.embedded.asking import Holding, Prepared, PreparedChain
from headgate.stores.port import Op
from unit.embedded.gates import Gate, Maker

FIXED = "algorithm=fixed_window"


def _run(gate: Gate, answer: Any) -> Any:
    return gate.runner.run(answer) if isinstance(answer, Coroutine) else answer


def hold(gate: Gate, prepared: Prepared | PreparedChain) -> Holding:
    holding: Holding = _run(gate, gate.limiter.hold(prepared))
    return holding


def give_back(gate: Gate, holding: Holding) -> Decision:
    decision: Decision = _run(gate, gate.limiter.give_back(holding))
    return decision


def asks(gate: Gate, cost: int = 1, **said: str) -> Prepared:
    return gate.limiter.prepare(Op.TAKE, RequestContext(**said), cost)


def test_what_is_held_is_taken_until_it_is_given_back(gate_of: Maker) -> None:
    gate = gate_of(f"u user limit=3 {FIXED}\ng global limit=9 {FIXED}")
    holding = hold(gate, asks(gate, 2, user="1"))
    assert holding.decision.allowed
    assert gate.remaining("user=1") == [1, 7]
    returned = give_back(gate, holding)
    assert returned.allowed
    assert [part.remaining for part in returned.parts] == [3, 9]
    assert gate.remaining("user=1") == [3, 9]


def test_what_was_denied_has_nothing_to_give_back(gate_of: Maker) -> None:
    gate = gate_of(f"u user limit=1 {FIXED}\ng global limit=9 {FIXED}")
    gate.check("user=1")
    holding = hold(gate, asks(gate, user="1"))
    assert not holding.decision.allowed
    assert holding.returning() is None
    assert give_back(gate, holding) is holding.decision
    assert gate.remaining("user=1") == [0, 8]


def test_where_no_rule_applies_nothing_is_held(gate_of: Maker) -> None:
    gate = gate_of(f"u user limit=1 {FIXED}")
    holding = hold(gate, asks(gate, ip="10.0.0.1"))
    assert holding.decision.reason == "no_rule"
    assert give_back(gate, holding) is holding.decision


def test_shadow_rules_get_back_what_they_took_and_are_not_told_of(gate_of: Maker) -> None:
    gate = gate_of(f"u user limit=3 {FIXED}\ns user shadow limit=1 {FIXED}")
    holding = hold(gate, asks(gate, user="1"))
    assert [part.name for part in give_back(gate, holding).parts] == ["u"]
    again = hold(gate, asks(gate, user="1"))
    assert again.decision.reason == "ok", "the shadow rule has all of its own again"
    assert hold(gate, asks(gate, user="1")).decision.reason == "shadow"


def test_where_only_a_shadow_rule_applies(gate_of: Maker) -> None:
    gate = gate_of(f"s user shadow limit=1 {FIXED}")
    holding = hold(gate, asks(gate, user="1"))
    assert give_back(gate, holding).allowed
    assert hold(gate, asks(gate, user="1")).decision.reason != "shadow"


def test_a_key_under_limits_is_held_the_same_way(gate_of: Maker) -> None:
    gate = gate_of("")
    limits = "3/minute using fixed_window"
    holding = hold(gate, gate.limiter.prepare_plans(Op.TAKE, "k", limits, 2))
    assert gate.check_key("k", limits).remaining == 0
    assert give_back(gate, holding).remaining == 2


def test_a_bucket_takes_back_no_more_than_it_misses(gate_of: Maker) -> None:
    gate = gate_of("")
    holding = hold(gate, gate.limiter.prepare_plans(Op.TAKE, "k", "60/minute burst 5", 4))
    gate.clock.advance(3)
    assert give_back(gate, holding).remaining == 5


def test_it_is_given_back_from_an_event_loop_as_from_a_thread() -> None:
    limiter = Limiter("memory://")
    holding = limiter.hold(limiter.prepare_plans(Op.TAKE, "k", "3/hour using fixed_window"))

    async def later() -> Decision:
        from headgate import AsyncLimiter

        return await AsyncLimiter.sharing(limiter).give_back(holding)

    assert asyncio.run(later()).remaining == 3


@pytest.mark.parametrize("cost", [-1, 2**31])
def test_a_cost_that_is_none_is_refused(gate_of: Maker, cost: int) -> None:
    gate = gate_of(f"u user limit=3 {FIXED}")
    with pytest.raises(ValueError, match="cost must be a whole number"):
        asks(gate, cost, user="1")
    with pytest.raises(ValueError, match="cost must be a whole number"):
        gate.limiter.prepare_plans(Op.TAKE, "k", "3/minute", cost)
