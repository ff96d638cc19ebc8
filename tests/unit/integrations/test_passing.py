"""A request passes a gate, on threads and on event loops: what counts is known when its response is."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterator
from typing import Any

import pytest

from flaky_store import Flaky
from headgate import AsyncLimiter, Limiter
from headgate.http.style import HeaderStyle
from headgate.integrations.gate import Gate
from headgate.integrations.passing import Passage, enter, enter_async, settle, settle_async
from headgate.integrations.request import Response
from headgate.integrations.visit import Visit
from headgate.testing import FakeClock
from unit.integrations.plain import CLIENT, asked, limiter_on

KEY = f"ip:{CLIENT}"


class Layer:
    """A gate that is asked the same way whether it is on a thread or on an event loop."""

    def __init__(self, kind: str, limits: Any, limiter: Limiter | None = None, **options: Any) -> None:
        self.clock = FakeClock(1_700_000_000)
        self.limiter = limiter or limiter_on(self.clock)
        self.sync = kind == "sync"
        self.runner = asyncio.Runner()
        made: Any = self.limiter if self.sync else AsyncLimiter.sharing(self.limiter)
        self.gate: Gate[Any] = Gate(made, limits, **options)

    def enter(self, visit: Visit | None = None, route: str | None = None, **said: Any) -> Passage[Any] | None:
        request, visit = asked(self.gate, **said), visit or Visit()
        if self.sync:
            return enter(self.gate, request, visit, route)
        return self.runner.run(enter_async(self.gate, request, visit, route))

    def entered(self, visit: Visit | None = None, **said: Any) -> Passage[Any]:
        passage = self.enter(visit, **said)
        assert passage is not None
        return passage

    def settle(self, passage: Passage[Any], status: int) -> None:
        if self.sync:
            settle(passage, Response(status))
        else:
            self.runner.run(settle_async(passage, Response(status)))

    def left(self, limits: str) -> int:
        return self.limiter.peek(KEY, limits).remaining


Made = Callable[..., Layer]


@pytest.fixture(params=["sync", "async"])
def layer_of(request: pytest.FixtureRequest) -> Iterator[Made]:
    made: list[Layer] = []

    def make(limits: Any = "5/minute using fixed_window", **options: Any) -> Layer:
        made.append(Layer(request.param, limits, **options))
        return made[-1]

    yield make
    for layer in made:
        layer.runner.close()


def only_401(response: Response) -> bool:
    return response.status == 401


def said(passage: Passage[Any]) -> dict[str, str]:
    headers = passage.visit.headers(HeaderStyle(), passage.gate.limiter.clock.ticks())
    return {name.decode(): value.decode() for name, value in headers}


def test_a_request_is_admitted_or_refused(layer_of: Made) -> None:
    layer = layer_of("2/minute; 9/hour")
    passed = [layer.entered() for _ in range(3)]
    assert [passage.refused for passage in passed] == [False, False, True]
    assert [passage.decision.allowed for passage in passed] == [True, True, False]
    assert passed[0].holding is None
    assert layer.left("9/hour") == 7
    assert said(passed[2])["retry-after"] == "30"


def test_what_is_left_alone_has_no_passage(layer_of: Made) -> None:
    assert layer_of(exempt="/").enter() is None
    assert layer_of(lambda: None).enter() is None


def test_settling_what_always_counts_changes_nothing(layer_of: Made) -> None:
    layer = layer_of()
    layer.settle(layer.entered(), 500)
    assert layer.left("5/minute using fixed_window") == 4


def test_a_response_that_does_not_count_is_given_back(layer_of: Made) -> None:
    layer = layer_of(when=only_401)
    for status, left in ((200, 5), (401, 4), (200, 4), (404, 4), (401, 3)):
        passage = layer.entered()
        layer.settle(passage, status)
        assert layer.left("5/minute using fixed_window") == left, status
        assert said(passage)["x-ratelimit-remaining"] == str(left), "the headers are true"


def test_what_is_not_settled_stays_charged(layer_of: Made) -> None:
    layer = layer_of(when=only_401)
    layer.entered()
    assert layer.left("5/minute using fixed_window") == 4


def test_it_is_settled_once(layer_of: Made) -> None:
    layer = layer_of(when=only_401)
    layer.entered()
    passage = layer.entered()
    layer.settle(passage, 200)
    layer.settle(passage, 200)
    assert layer.left("5/minute using fixed_window") == 4


def test_while_it_is_handled_a_request_counts(layer_of: Made) -> None:
    layer = layer_of("2/minute using fixed_window", when=only_401)
    under_way = [layer.entered(), layer.entered()]
    assert layer.entered().refused
    for passage in under_way:
        layer.settle(passage, 200)
    assert layer.left("2/minute using fixed_window") == 2


def test_a_denied_request_gives_nothing_back(layer_of: Made) -> None:
    layer = layer_of("1/minute using fixed_window; 9/hour using fixed_window", when=only_401)
    layer.settle(layer.entered(), 401)
    denied = layer.entered()
    layer.settle(denied, 200)
    assert denied.refused
    assert (layer.left("1/minute using fixed_window"), layer.left("9/hour using fixed_window")) == (0, 8)
    assert said(denied)["ratelimit"].startswith('"1/minute using fixed_window";r=0;')


def test_all_of_a_chain_is_given_back_with_its_cost(layer_of: Made) -> None:
    layer = layer_of("5/minute using fixed_window; 9/hour using fixed_window", when=only_401, cost=3)
    passage = layer.entered()
    assert [part.remaining for part in passage.decision.parts] == [2, 6]
    layer.settle(passage, 200)
    assert [part.remaining for part in passage.decision.parts] == [5, 9]
    assert said(passage)["ratelimit-policy"].count(";q=") == 2


def test_it_goes_back_where_it_was_taken(layer_of: Made) -> None:
    layer = layer_of("2/minute using fixed_window", when=only_401)
    passage = layer.entered()
    layer.clock.advance(60)
    layer.entered()
    layer.settle(passage, 200)
    assert layer.left("2/minute using fixed_window") == 1, "the window it was taken from is over"


def test_what_is_left_after_giving_back_is_told_with_its_pressure(layer_of: Made) -> None:
    layer = layer_of("10/minute using fixed_window", when=only_401)
    for _ in range(9):
        passage = layer.entered()
        layer.settle(passage, 401)
    assert said(passage)["x-ratelimit-state"] == "warning"
    passage = layer.entered()
    assert said(passage)["x-ratelimit-state"] == "throttled"
    layer.settle(passage, 200)
    assert said(passage)["x-ratelimit-remaining"] == "1"
    assert said(passage)["x-ratelimit-state"] == "warning"


def test_only_the_layers_own_part_of_the_headers_changes(layer_of: Made) -> None:
    layer = layer_of("5/minute using fixed_window", when=only_401)
    other: Gate[Any] = Gate(layer.gate.limiter, "9/hour using fixed_window")
    visit = Visit()
    first = layer.entered(visit)
    outer, layer.gate = layer.gate, other
    layer.entered(visit)
    layer.gate = outer
    layer.settle(first, 200)
    assert said(first)["ratelimit"].startswith(
        '"5/minute using fixed_window";r=5;t=0, "9/hour using fixed_window";r=8;'
    )


def test_a_dry_run_that_would_deny_settles_nothing(layer_of: Made) -> None:
    layer = layer_of("1/minute using fixed_window", when=only_401, dry_run=True)
    for status in (401, 200, 401):
        passage = layer.entered()
        assert not passage.refused
        layer.settle(passage, status)
    assert layer.left("1/minute using fixed_window") == 0
    assert said(passage) == {}


def test_when_may_look_at_the_headers(layer_of: Made) -> None:
    layer = layer_of(when=lambda response: "x-cache" not in response.headers)
    passage = layer.entered()
    held = passage.unsettled(Response(200, [(b"X-Cache", b"hit")]))
    assert held is passage.unsettled(Response(200)) or held is not None
    assert passage.holding is None


def test_what_is_only_held_counts_for_every_response() -> None:
    limits = "5/minute using fixed_window"
    gate = Gate(limiter_on(), limits)
    passage = enter(gate, asked(gate), Visit(), hold=True)
    assert passage is not None
    assert passage.holding is not None
    settle(passage, Response(500))
    assert gate.limiter.peek(KEY, limits).remaining == 4


def test_a_store_that_fails_while_settling_costs_the_charge_only(layer_of: Made) -> None:
    store = Flaky()
    layer = layer_of(limiter=Limiter(store), when=only_401)
    passage = layer.entered()
    store.broken = True
    layer.settle(passage, 200)
    store.broken = False
    assert not passage.refused
    assert layer.left("5/minute using fixed_window") == 4


def test_a_store_that_fails_is_answered_by_the_policy(layer_of: Made) -> None:
    store = Flaky()
    layer = layer_of("1/minute", limiter=Limiter(store), when=only_401)
    store.broken = True
    for _ in range(3):
        passage = layer.entered()
        assert passage.decision.reason == "fail_open"
        layer.settle(passage, 200)
    closed = layer_of("1/minute", limiter=Limiter(store, on_store_error="closed"))
    assert closed.entered().refused


# -- coroutines -------------------------------------------------------------------------------------------------------


def test_coroutines_are_waited_for_on_an_event_loop() -> None:
    heard: list[str] = []

    async def user() -> str:
        heard.append("user")
        await asyncio.sleep(0)
        return "alice"

    async def exempt(request: Any) -> bool:
        await asyncio.sleep(0)
        return bool(request.path == "/free")

    async def limits(request: Any) -> str | None:
        await asyncio.sleep(0)
        return None if request.path == "/unlimited" else "2/minute"

    async def cost(request: Any) -> int:
        await asyncio.sleep(0)
        return 2

    layer = Layer("async", limits, key="user", user=user, exempt=exempt, cost=cost)
    assert layer.enter(path="/free") is None
    assert layer.enter(path="/unlimited") is None
    assert layer.entered().decision.remaining == 0
    assert layer.entered().refused
    assert layer.limiter.peek("user:alice", "2/minute").remaining == 0
    assert heard == ["user"] * 4, "once a request"
    layer.runner.close()
