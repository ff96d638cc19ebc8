# mypyc: compile
"""Check a request against one layer, and settle the check when the response is known.

The sync and async functions differ only in the calls that wait.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from typing import Generic

from crestgate.core.decision import Decision
from crestgate.errors import StoreError
from crestgate.integrations.layer import L, LayerCheck, LimitLayer
from crestgate.integrations.request import Request, Response
from crestgate.integrations.request_state import RequestState
from crestgate.limiter.async_in_flight import AsyncHeldSlots
from crestgate.limiter.async_limiter import AsyncLimiter
from crestgate.limiter.in_flight import HeldSlots
from crestgate.limiter.limiter import Limiter
from crestgate.limiter.reservation import Hold
from crestgate.runtime.tasks import run_to_completion

__all__ = [
    "LayerResult",
    "check_async",
    "check_sync",
    "give_back",
    "release_slots",
    "release_slots_async",
    "settle",
    "settle_async",
]


class LayerResult(Generic[L]):
    """The result of one request's check at one layer."""

    __slots__ = ("decision", "held", "holding", "index", "layer", "refused", "request_state")

    def __init__(
        self,
        layer: LimitLayer[L],
        request_state: RequestState,
        decision: Decision,
        holding: Hold | None,
        held: HeldSlots | AsyncHeldSlots | None = None,
    ) -> None:
        self.layer = layer
        self.request_state = request_state
        self.decision = decision
        self.holding = holding
        """The charge to give back if the response does not count; None when it is settled or always counts."""
        self.held = held
        """The slots of in-flight limits, which are released when the response has ended."""
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

    With `hold` the charge can be given back. With `wait` a leaky bucket's delay has passed on return. Slots of
    in-flight limits are taken in the same step, and renewed until `release_slots`.
    """
    check = layer.build_check(request, request_state, route)
    if check is None:
        return None
    limiter = layer.limiter
    hold = hold or layer.when is not None
    holding: Hold | None = None
    held: HeldSlots | None = None
    if not hold and check.bound is not None and not check.bound.holds:
        decision = check.bound.check(check.key, check.cost)
    else:
        pending = layer.prepare(check)
        if hold or pending.holds:
            holding = limiter.take_hold(pending)
            decision = holding.decision
            held = limiter.keep_slots(holding) if pending.holds else None
        else:
            decision = limiter.decide([pending])[0]
    admission = _admission(layer, request_state, check, decision, holding if hold else None, held)
    if wait:
        delay = layer.delay(decision)
        if delay:
            try:
                time.sleep(delay)
            except BaseException:
                release_slots(admission)
                raise
    return admission


async def check_async(
    layer: LimitLayer[AsyncLimiter],
    request: Request,
    request_state: RequestState,
    route: str | None = None,
    keep_slots: Callable[[Hold], HeldSlots | None] | None = None,
) -> LayerResult[AsyncLimiter] | None:
    """Check a request on an event loop; None when the layer does not limit it. A leaky bucket's delay has passed on
    return. Slots of in-flight limits are renewed by a task of this loop, or by the limiter whose `keep_slots` is given,
    for responses that outlive the loop."""
    if layer.coroutines:
        await layer.resolve_coroutines(request)
    check = layer.build_check(request, request_state, route)
    if check is None:
        return None
    limiter = layer.limiter
    holding: Hold | None = None
    held: HeldSlots | AsyncHeldSlots | None = None
    if layer.when is None and check.bound is not None and not check.bound.holds:
        local_decision = check.bound.try_check(check.key, check.cost)
        if local_decision is None:
            local_decision = await limiter.check_bound(check.bound, check.key, check.cost)
        decision = local_decision
    else:
        pending = layer.prepare(check)
        if layer.when is not None or pending.holds:
            holding = await limiter.take_hold(pending)
            decision = holding.decision
            if pending.holds:
                held = await limiter.keep_slots(holding) if keep_slots is None else keep_slots(holding)
        else:
            decision = await limiter.decide_one(pending)
    admission = _admission(layer, request_state, check, decision, None if layer.when is None else holding, held)
    delay = layer.delay(decision)
    if delay:
        try:
            await asyncio.sleep(delay)
        except BaseException:
            await release_slots_async([admission])
            raise
    return admission


def _admission(
    layer: LimitLayer[L],
    request_state: RequestState,
    check: LayerCheck,
    decision: Decision,
    holding: Hold | None,
    held: HeldSlots | AsyncHeldSlots | None,
) -> LayerResult[L]:
    admission = LayerResult(layer, request_state, decision, holding, held)
    if not decision.allowed and not admission.refused:  # a dry run: another layer may still deny the request
        layer.unmark_counted(check, request_state)
    return admission


def settle(admission: LayerResult[Limiter], response: Response) -> None:
    """Give the charge back if this response does not count."""
    holding = admission.take_hold(response)
    if holding is not None:
        admission.replace_decision(admission.layer.limiter.release(holding))


def give_back(admission: LayerResult[Limiter]) -> None:
    """Give the charge and the slots back because another layer has denied the request."""
    release_slots(admission)
    holding, admission.holding = admission.holding, None
    if holding is not None and not admission.refused:
        admission.replace_decision(admission.layer.limiter.release(holding))


async def settle_async(admission: LayerResult[AsyncLimiter], response: Response) -> None:
    """Give the charge back if this response does not count."""
    holding = admission.take_hold(response)
    if holding is not None:
        admission.replace_decision(await admission.layer.limiter.release(holding))


def release_slots(admission: LayerResult[Limiter]) -> None:
    """Release the slots of in-flight limits, because the response has ended; nothing happens the second time."""
    held, admission.held = admission.held, None
    if isinstance(held, HeldSlots):
        with suppress(StoreError):  # the limiter was closed meanwhile
            held.release()


async def release_slots_async(admissions: Sequence[LayerResult[AsyncLimiter]]) -> None:
    """The same on an event loop. It is done also if the caller is cancelled meanwhile."""
    for admission in admissions:
        if admission.held is not None:
            await run_to_completion(_release_all(admissions))
            return


async def _release_all(admissions: Sequence[LayerResult[AsyncLimiter]]) -> None:
    for admission in admissions:
        held, admission.held = admission.held, None
        with suppress(StoreError):
            if isinstance(held, AsyncHeldSlots):
                await held.release()
            elif held is not None:
                await asyncio.to_thread(held.release)
