"""The fast path decides requests exactly as the full path does."""

from __future__ import annotations

from typing import Any

import pytest

from crestgate import Limiter
from crestgate.integrations.layer import LimitLayer
from crestgate.integrations.request_state import RequestState
from crestgate.limiter.async_limiter import AsyncLimiter
from crestgate.testing import FakeClock
from slow_store import SlowStore


def layer(**options: Any) -> LimitLayer[AsyncLimiter]:
    return LimitLayer(AsyncLimiter(clock=FakeClock(1000)), **{"limits": "2/minute", **options})


def test_fast_check_counts_by_the_peer_address() -> None:
    one = layer()
    visits = [RequestState() for _ in range(4)]
    peers = ["2001:db8::1", "2001:db8::2", "2001:db8::3", "1.2.3.4"]
    decided = [
        one.try_fast_check("GET", peer, request_state) for request_state, peer in zip(visits, peers, strict=True)
    ]
    assert [bool(decision) for decision in decided] == [True, True, False, True]  # a /64 is one caller
    assert [request_state.decisions for request_state in visits] == [[decision] for decision in decided]
    limiter = Limiter.sharing(one.limiter)
    assert limiter.peek("ip:1.2.3.4", "2/minute").remaining == 1
    assert limiter.peek("ip:2001:db8::/64", "2/minute").remaining == 0


def test_request_counts_once() -> None:
    one, request_state = layer(), RequestState()
    assert one.try_fast_check("GET", "1.2.3.4", request_state) is not None
    assert one.try_fast_check("GET", "1.2.3.4", request_state) is None
    assert len(request_state.decisions) == 1


@pytest.mark.parametrize(
    "options",
    [
        {"limits": ["2/minute", "5/hour"]},
        {"limits": lambda request: "2/minute"},
        {"key": "user"},
        {"key": "ip|route"},
        {"cost": lambda request: 2},
        {"exempt": ["/healthz"]},
        {"methods": ["GET"]},
        {"when": lambda response: True},
        {"dry_run": True},
        {"trusted_proxies": 1},
        {"trusted_proxies": ["10.0.0.0/8"]},
        {"scope": "all"},
    ],
)
def test_other_options_need_the_full_check(options: dict[str, Any]) -> None:
    request_state = RequestState()
    assert layer(**options).try_fast_check("GET", "1.2.3.4", request_state) is None
    assert (request_state.counted, request_state.decisions) == (set(), [])


@pytest.mark.parametrize(("method", "peer"), [("OPTIONS", "1.2.3.4"), ("GET", None), ("GET", "")])
def test_preflights_and_missing_addresses_need_the_full_check(method: str, peer: str | None) -> None:
    assert layer().try_fast_check(method, peer, RequestState()) is None


def test_plans_and_remote_stores_need_the_full_check() -> None:
    planned: LimitLayer[AsyncLimiter] = LimitLayer(AsyncLimiter(plans={"gold": "2/minute"}), "gold")
    assert planned.try_fast_check("GET", "1.2.3.4", RequestState()) is None
    far: LimitLayer[AsyncLimiter] = LimitLayer(AsyncLimiter(SlowStore()), "2/minute")
    assert far.try_fast_check("GET", "1.2.3.4", RequestState()) is None
