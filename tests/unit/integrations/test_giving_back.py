"""What a gate has let in is given back when another gate denies the request."""

from __future__ import annotations

from crestgate.integrations.drivers import check_sync, give_back
from crestgate.integrations.layer import LimitLayer
from crestgate.integrations.request_state import RequestState
from unit.integrations.plain import CLIENT, asked, limiter_on


def test_what_was_held_is_given_back_once_and_the_visit_knows_it() -> None:
    layer = LimitLayer(limiter_on(), "3/minute")
    request_state = RequestState()
    admission = check_sync(layer, asked(layer), request_state, hold=True)
    assert admission is not None
    give_back(admission)
    give_back(admission)
    assert layer.limiter.peek(f"ip:{CLIENT}", "3/minute").remaining == 3
    decision = request_state.decision()
    assert decision is not None
    assert decision.remaining == 3


def test_what_was_not_held_or_not_let_in_stays_as_it_is() -> None:
    layer = LimitLayer(limiter_on(), "1/minute")
    for hold in (False, True):
        admission = check_sync(layer, asked(layer), RequestState(), hold=hold)
        assert admission is not None
        give_back(admission)
        assert layer.limiter.peek(f"ip:{CLIENT}", "1/minute").remaining == 0
