"""An admission of one layer is released when another layer denies the request."""

from __future__ import annotations

from crestgate.integrations.drivers import check_sync, give_back
from crestgate.integrations.layer import LimitLayer
from crestgate.integrations.request_state import RequestState
from unit.integrations.plain import CLIENT, layer_request, limiter_on


def test_hold_is_released_once_and_recorded_in_the_request_state() -> None:
    layer = LimitLayer(limiter_on(), "3/minute")
    request_state = RequestState()
    admission = check_sync(layer, layer_request(layer), request_state, hold=True)
    assert admission is not None
    give_back(admission)
    give_back(admission)
    assert layer.limiter.peek(f"ip:{CLIENT}", "3/minute").remaining == 3
    decision = request_state.decision()
    assert decision is not None
    assert decision.remaining == 3


def test_denied_or_unheld_admission_is_not_released() -> None:
    layer = LimitLayer(limiter_on(), "1/minute")
    for hold in (False, True):
        admission = check_sync(layer, layer_request(layer), RequestState(), hold=hold)
        assert admission is not None
        give_back(admission)
        assert layer.limiter.peek(f"ip:{CLIENT}", "1/minute").remaining == 0
