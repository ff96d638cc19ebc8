"""A request passes a gate: asked before it is handled, and settled when its response is known.

The same for threads and for event loops, apart from the calls that wait.
"""

from __future__ import annotations

from typing import Generic

from headgate.core.decision import Decision
from headgate.embedded.asking import Holding
from headgate.embedded.async_limiter import AsyncLimiter
from headgate.embedded.limiter import Limiter
from headgate.engine.async_limiter import AsyncBound
from headgate.integrations.gate import Ask, Gate, L
from headgate.integrations.request import Request, Response
from headgate.integrations.visit import Visit

__all__ = ["Passage", "enter", "enter_async", "give_back", "settle", "settle_async"]


class Passage(Generic[L]):
    """What came of one request at one gate."""

    __slots__ = ("decision", "gate", "holding", "place", "refused", "visit")

    def __init__(self, gate: Gate[L], visit: Visit, decision: Decision, holding: Holding | None) -> None:
        self.gate = gate
        self.visit = visit
        self.decision = decision
        self.holding = holding
        """What is given back if the response does not count; None when it is settled, or always counts."""
        self.place = len(visit.decisions)
        allowed = decision._allowed
        self.refused = not allowed and gate.refuses(decision)
        """Whether the request is not to be handled."""
        if allowed or self.refused:  # what a dry run denies is nobody's business but the log's
            visit.decisions.append(decision)

    def unsettled(self, response: Response) -> Holding | None:
        """What is to be given back now that the response is known. Asked once."""
        holding, self.holding = self.holding, None
        when = self.gate.when
        if holding is None or when is None or self.refused or when(response):
            return None
        return holding

    def settled(self, decision: Decision) -> None:
        """How the counters stand after that."""
        if self.place < len(self.visit.decisions) and self.visit.decisions[self.place] is self.decision:
            self.visit.decisions[self.place] = decision
        self.decision = decision


def enter(
    gate: Gate[Limiter], request: Request, visit: Visit, route: str | None = None, *, hold: bool = False
) -> Passage[Limiter] | None:
    """Ask about a request from a thread. None when the gate leaves it alone. To `hold` is to be able to give back."""
    ask = gate.ask(request, visit, route)
    if ask is None:
        return None
    if hold or gate.when is not None:
        holding = gate.limiter.hold(gate.prepared(ask))
        return _passed(gate, visit, ask, holding.decision, holding)
    if ask.bound is not None:
        return _passed(gate, visit, ask, ask.bound.check(ask.key, ask.cost), None)
    assert ask.context is not None
    return _passed(gate, visit, ask, gate.limiter.check_request(ask.context, ask.cost), None)


async def enter_async(
    gate: Gate[AsyncLimiter], request: Request, visit: Visit, route: str | None = None
) -> Passage[AsyncLimiter] | None:
    """The same on an event loop."""
    if gate.coroutines:
        await gate.ask_ahead(request)
    ask = gate.ask(request, visit, route)
    if ask is None:
        return None
    limiter = gate.limiter
    if gate.when is not None:
        holding = await limiter.hold(gate.prepared(ask))
        return _passed(gate, visit, ask, holding.decision, holding)
    if ask.bound is not None:
        decision = ask.bound.check_at_once(ask.key, ask.cost)
        if decision is None:
            decision = await AsyncBound(limiter, ask.bound).check(ask.key, ask.cost)
        return _passed(gate, visit, ask, decision, None)
    assert ask.context is not None
    return _passed(gate, visit, ask, await limiter.check_request(ask.context, ask.cost), None)


def _passed(gate: Gate[L], visit: Visit, ask: Ask, decision: Decision, holding: Holding | None) -> Passage[L]:
    passage = Passage(gate, visit, decision, holding)
    if not decision._allowed and not passage.refused:  # a dry run: where it is none, the denial is carried out
        gate.unask(ask, visit)
    return passage


def settle(passage: Passage[Limiter], response: Response) -> None:
    """The response is known: what it does not count for is given back, and the headers tell of it."""
    holding = passage.unsettled(response)
    if holding is not None:
        passage.settled(passage.gate.limiter.give_back(holding))


def give_back(passage: Passage[Limiter]) -> None:
    """Another gate has denied the request, so this one has not let it in."""
    holding, passage.holding = passage.holding, None
    if holding is not None and not passage.refused:
        passage.settled(passage.gate.limiter.give_back(holding))


async def settle_async(passage: Passage[AsyncLimiter], response: Response) -> None:
    """The same on an event loop."""
    holding = passage.unsettled(response)
    if holding is not None:
        passage.settled(await passage.gate.limiter.give_back(holding))
