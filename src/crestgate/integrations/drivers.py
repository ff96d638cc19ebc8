# mypyc: compile
"""Check a request against one layer, and settle the check when the response is known.

The sync and async functions differ only in the calls that wait.
"""

from __future__ import annotations

import asyncio
import time
from typing import Generic

from crestgate.core.decision import Decision
from crestgate.integrations.layer import L, LayerCheck, LimitLayer
from crestgate.integrations.request import Request, Response
from crestgate.integrations.request_state import RequestState
from crestgate.limiter.async_limiter import AsyncLimiter
from crestgate.limiter.limiter import Limiter
from crestgate.limiter.reservation import Hold

__all__ = ["LayerResult", "check_async", "check_sync", "give_back", "settle", "settle_async"]


class LayerResult(Generic[L]):
    """The result of one request's check at one layer."""

    __slots__ = ("decision", "holding", "index", "layer", "refused", "request_state")

    def __init__(
        self, layer: LimitLayer[L], request_state: RequestState, decision: Decision, holding: Hold | None
    ) -> None:
        self.layer = layer
        self.request_state = request_state
        self.decision = decision
        self.holding = holding
        """The charge to give back if the response does not count; None when it is settled or always counts."""
        self.index = len(request_state.decisions)
        allowed = decision.allowed
        self.refused = not allowed and layer.denies(decision)
        """Whether the request must be denied."""
        if allowed or self.refused:  # a dry run's denial is only logged
            request_state.decisions.append(decision)

    def take_hold(self, response: Response) -> Hold | None:
        """The charge to give back for this response, if any. Returned once."""
        holding, self.holding = self.holding, None
        when = self.layer.when
        if holding is None or when is None or self.refused or when(response):
            return None
        return holding

    def replace_decision(self, decision: Decision) -> None:
        """Replace the decision by that after a charge was given back, so that the headers show it."""
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
    wait: bool = True,
) -> LayerResult[Limiter] | None:
    """Check a request in a thread; None when the layer does not limit it.

    With `hold` the charge can be given back. With `wait` a leaky bucket's delay has passed on return.
    """
    check = layer.build_check(request, request_state, route)
    if check is None:
        return None
    if hold or layer.when is not None:
        holding = layer.limiter.take_hold(layer.prepare(check))
        admission = _admission(layer, request_state, check, holding.decision, holding)
    elif check.bound is not None:
        admission = _admission(layer, request_state, check, check.bound.check(check.key, check.cost), None)
    else:
        assert check.context is not None
        decision = layer.limiter.check_request(check.context, check.cost)
        admission = _admission(layer, request_state, check, decision, None)
    if wait:
        delay = layer.delay(admission.decision)
        if delay:
            time.sleep(delay)
    return admission


async def check_async(
    layer: LimitLayer[AsyncLimiter], request: Request, request_state: RequestState, route: str | None = None
) -> LayerResult[AsyncLimiter] | None:
    """Check a request on an event loop; None when the layer does not limit it. A leaky bucket's delay has passed on
    return."""
    if layer.coroutines:
        await layer.resolve_coroutines(request)
    check = layer.build_check(request, request_state, route)
    if check is None:
        return None
    limiter = layer.limiter
    holding: Hold | None = None
    if layer.when is not None:
        holding = await limiter.take_hold(layer.prepare(check))
        decision = holding.decision
    elif check.bound is not None:
        local_decision = check.bound.try_check(check.key, check.cost)
        if local_decision is None:
            local_decision = await limiter.check_bound(check.bound, check.key, check.cost)
        decision = local_decision
    else:
        assert check.context is not None
        decision = await limiter.check_request(check.context, check.cost)
    admission = _admission(layer, request_state, check, decision, holding)
    delay = layer.delay(decision)
    if delay:
        await asyncio.sleep(delay)
    return admission


def _admission(
    layer: LimitLayer[L], request_state: RequestState, check: LayerCheck, decision: Decision, holding: Hold | None
) -> LayerResult[L]:
    admission = LayerResult(layer, request_state, decision, holding)
    if not decision.allowed and not admission.refused:  # a dry run: another layer may still deny the request
        layer.unmark_counted(check, request_state)
    return admission


def settle(admission: LayerResult[Limiter], response: Response) -> None:
    """Give the charge back if this response does not count."""
    holding = admission.take_hold(response)
    if holding is not None:
        admission.replace_decision(admission.layer.limiter.release(holding))


def give_back(admission: LayerResult[Limiter]) -> None:
    """Give the charge back because another layer has denied the request."""
    holding, admission.holding = admission.holding, None
    if holding is not None and not admission.refused:
        admission.replace_decision(admission.layer.limiter.release(holding))


async def settle_async(admission: LayerResult[AsyncLimiter], response: Response) -> None:
    """Give the charge back if this response does not count."""
    holding = admission.take_hold(response)
    if holding is not None:
        admission.replace_decision(await admission.layer.limiter.release(holding))
