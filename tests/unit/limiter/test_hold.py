"""Holds: a charge can be given back once the result of a request is known."""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine
from typing import Any

import pytest

from crestgate import Decision, Limiter, RequestContext
from crestgate.limiter.pending_check import PendingCheck
from crestgate.limiter.reservation import Hold
from crestgate.stores.port import Op
from unit.limiter.rule_limiters import Maker, RuleLimiter

FIXED = "algorithm=fixed_window"


def _run(gate: RuleLimiter, answer: Any) -> Any:
    return gate.runner.run(answer) if isinstance(answer, Coroutine) else answer


def hold(gate: RuleLimiter, prepared: PendingCheck) -> Hold:
    holding: Hold = _run(gate, gate.limiter.take_hold(prepared))
    return holding


def give_back(gate: RuleLimiter, holding: Hold) -> Decision:
    decision: Decision = _run(gate, gate.limiter.release(holding))
    return decision


def prepare(gate: RuleLimiter, cost: int = 1, **fields: Any) -> PendingCheck:
    return gate.limiter.prepare_request(Op.TAKE, RequestContext(**fields), cost)


def test_hold_is_charged_until_released(make_limiter: Maker) -> None:
    gate = make_limiter(f"u user limit=3 {FIXED}\ng global limit=9 {FIXED}")
    holding = hold(gate, prepare(gate, 2, user="1"))
    assert holding.decision.allowed
    assert gate.remaining("user=1") == [1, 7]
    returned = give_back(gate, holding)
    assert returned.allowed
    assert [part.remaining for part in returned.parts] == [3, 9]
    assert gate.remaining("user=1") == [3, 9]


def test_denied_hold_releases_nothing(make_limiter: Maker) -> None:
    gate = make_limiter(f"u user limit=1 {FIXED}\ng global limit=9 {FIXED}")
    gate.check("user=1")
    holding = hold(gate, prepare(gate, user="1"))
    assert not holding.decision.allowed
    assert give_back(gate, holding) is holding.decision
    assert hold(gate, prepare(gate, user="1")).release() is None
    assert gate.remaining("user=1") == [0, 8]


def test_hold_without_rules_releases_nothing(make_limiter: Maker) -> None:
    gate = make_limiter(f"u user limit=1 {FIXED}")
    holding = hold(gate, prepare(gate, ip="10.0.0.1"))
    assert holding.decision.reason == "no_rule"
    assert give_back(gate, holding) is holding.decision


def test_release_includes_shadow_rules_and_does_not_report_them(make_limiter: Maker) -> None:
    gate = make_limiter(f"u user limit=3 {FIXED}\ns user shadow limit=1 {FIXED}")
    holding = hold(gate, prepare(gate, user="1"))
    assert [part.name for part in give_back(gate, holding).parts] == ["u"]
    again = hold(gate, prepare(gate, user="1"))
    assert again.decision.reason == "ok", "the shadow rule is released too"
    assert hold(gate, prepare(gate, user="1")).decision.reason == "shadow"


def test_hold_under_a_shadow_rule_alone(make_limiter: Maker) -> None:
    gate = make_limiter(f"s user shadow limit=1 {FIXED}")
    holding = hold(gate, prepare(gate, user="1"))
    assert give_back(gate, holding).allowed
    assert hold(gate, prepare(gate, user="1")).decision.reason != "shadow"


def test_hold_of_a_key_under_limits(make_limiter: Maker) -> None:
    gate = make_limiter("")
    limits = "3/minute using fixed_window"
    holding = hold(gate, gate.limiter.prepare(Op.TAKE, "k", limits, 2))
    assert gate.check_key("k", limits).remaining == 0
    assert give_back(gate, holding).remaining == 2


def test_release_never_overfills_a_bucket(make_limiter: Maker) -> None:
    gate = make_limiter("")
    holding = hold(gate, gate.limiter.prepare(Op.TAKE, "k", "60/minute burst 5", 4))
    gate.clock.advance(3)
    assert give_back(gate, holding).remaining == 5


def test_hold_of_a_thread_can_be_released_on_an_event_loop() -> None:
    limiter = Limiter("memory://")
    holding = limiter.take_hold(limiter.prepare(Op.TAKE, "k", "3/hour using fixed_window"))

    async def later() -> Decision:
        from crestgate import AsyncLimiter

        return await AsyncLimiter.sharing(limiter).release(holding)

    assert asyncio.run(later()).remaining == 3


@pytest.mark.parametrize("cost", [-1, 2**31])
def test_hold_of_invalid_cost_is_refused(make_limiter: Maker, cost: int) -> None:
    gate = make_limiter(f"u user limit=3 {FIXED}")
    with pytest.raises(ValueError, match="cost must be a whole number"):
        prepare(gate, cost, user="1")
    with pytest.raises(ValueError, match="cost must be a whole number"):
        gate.limiter.prepare(Op.TAKE, "k", "3/minute", cost)
