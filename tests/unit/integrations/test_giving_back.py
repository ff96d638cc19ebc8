"""What a gate has let in is given back when another gate denies the request."""

from __future__ import annotations

from headgate.integrations.gate import Gate
from headgate.integrations.passing import enter, give_back
from headgate.integrations.visit import Visit
from unit.integrations.plain import CLIENT, asked, limiter_on


def test_what_was_held_is_given_back_once_and_the_visit_knows_it() -> None:
    gate = Gate(limiter_on(), "3/minute")
    visit = Visit()
    passage = enter(gate, asked(gate), visit, hold=True)
    assert passage is not None
    give_back(passage)
    give_back(passage)
    assert gate.limiter.peek(f"ip:{CLIENT}", "3/minute").remaining == 3
    decision = visit.decision()
    assert decision is not None
    assert decision.remaining == 3


def test_what_was_not_held_or_not_let_in_stays_as_it_is() -> None:
    gate = Gate(limiter_on(), "1/minute")
    for hold in (False, True):
        passage = enter(gate, asked(gate), Visit(), hold=hold)
        assert passage is not None
        give_back(passage)
        assert gate.limiter.peek(f"ip:{CLIENT}", "1/minute").remaining == 0
