# mypyc: compile
"""A request passes a layer: asked before it is handled, and settled when its response is known.

The same for threads and for event loops, apart from the calls that wait.
"""

from __future__ import annotations

from typing import Generic

from crestgate.core.decision import Decision
from crestgate.integrations.layer import L, LayerCheck, LimitLayer
from crestgate.integrations.request import Request, Response
from crestgate.integrations.request_state import RequestState
from crestgate.limiter.async_limiter import AsyncLimiter
from crestgate.limiter.limiter import Limiter
from crestgate.limiter.reservation import Hold

__all__ = ["Admission", "check_async", "check_sync", "give_back", "settle", "settle_async"]


class Admission(Generic[L]):
    """What came of one request at one layer."""

    __slots__ = ("decision", "holding", "index", "layer", "refused", "request_state")

    def __init__(
        self, layer: LimitLayer[L], request_state: RequestState, decision: Decision, holding: Hold | None
    ) -> None:
        self.layer = layer
        self.request_state = request_state
        self.decision = decision
        self.holding = holding
        """What is given back if the response does not count; None when it is settled, or always counts."""
        self.index = len(request_state.decisions)
        allowed = decision.allowed
        self.refused = not allowed and layer.denies(decision)
        """Whether the request is not to be handled."""
        if allowed or self.refused:  # what a dry run denies is nobody's business but the log's
            request_state.decisions.append(decision)

    def take_hold(self, response: Response) -> Hold | None:
        """What is to be given back now that the response is known. Asked once."""
        holding, self.holding = self.holding, None
        when = self.layer.when
        if holding is None or when is None or self.refused or when(response):
            return None
        return holding

    def settled(self, decision: Decision) -> None:
        """How the counters stand after that."""
        if self.index < len(self.request_state.decisions) and self.request_state.decisions[self.index] is self.decision:
            self.request_state.decisions[self.index] = decision
        self.decision = decision


def check_sync(
    layer: LimitLayer[Limiter],
    request: Request,
    request_state: RequestState,
    route: str | None = None,
    *,
    hold: bool = False,
) -> Admission[Limiter] | None:
    """Ask about a request from a thread. None when the layer leaves it alone. To `hold` is to be able to give back."""
    ask = layer.ask(request, request_state, route)
    if ask is None:
        return None
    if hold or layer.when is not None:
        holding = layer.limiter.hold(layer.prepared(ask))
        return _passed(layer, request_state, ask, holding.decision, holding)
    if ask.bound is not None:
        return _passed(layer, request_state, ask, ask.bound.check(ask.key, ask.cost), None)
    assert ask.context is not None
    return _passed(layer, request_state, ask, layer.limiter.check_request(ask.context, ask.cost), None)


async def check_async(
    layer: LimitLayer[AsyncLimiter], request: Request, request_state: RequestState, route: str | None = None
) -> Admission[AsyncLimiter] | None:
    """The same on an event loop."""
    if layer.coroutines:
        await layer.resolve_coroutines(request)
    ask = layer.ask(request, request_state, route)
    if ask is None:
        return None
    limiter = layer.limiter
    if layer.when is not None:
        holding = await limiter.hold(layer.prepared(ask))
        return _passed(layer, request_state, ask, holding.decision, holding)
    if ask.bound is not None:
        decision = ask.bound.try_check(ask.key, ask.cost)
        if decision is None:
            decision = await limiter.check_bound(ask.bound, ask.key, ask.cost)
        return _passed(layer, request_state, ask, decision, None)
    assert ask.context is not None
    return _passed(layer, request_state, ask, await limiter.check_request(ask.context, ask.cost), None)


def _passed(
    layer: LimitLayer[L], request_state: RequestState, ask: LayerCheck, decision: Decision, holding: Hold | None
) -> Admission[L]:
    admission = Admission(layer, request_state, decision, holding)
    if not decision.allowed and not admission.refused:  # a dry run: where it is none, the denial is carried out
        layer.unmark_counted(ask, request_state)
    return admission


def settle(admission: Admission[Limiter], response: Response) -> None:
    """The response is known: what it does not count for is given back, and the headers tell of it."""
    holding = admission.take_hold(response)
    if holding is not None:
        admission.settled(admission.layer.limiter.release(holding))


def give_back(admission: Admission[Limiter]) -> None:
    """Another layer has denied the request, so this one has not let it in."""
    holding, admission.holding = admission.holding, None
    if holding is not None and not admission.refused:
        admission.settled(admission.layer.limiter.release(holding))


async def settle_async(admission: Admission[AsyncLimiter], response: Response) -> None:
    """The same on an event loop."""
    holding = admission.take_hold(response)
    if holding is not None:
        admission.settled(await admission.layer.limiter.release(holding))
