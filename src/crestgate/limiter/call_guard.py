"""The `limit` decorator: checks every call of a function.

`CallGuard` holds the decorator's options and `FunctionCalls` those for one function; neither does I/O. `guarded` and
`guarded_async` wrap the function, and are given the limiter's methods that wait.

With `when`, the result of a call says whether it counts: the cost is taken before the call, and given back if not.
"""

from __future__ import annotations

import functools
import inspect
import time
from collections.abc import Awaitable, Callable, Coroutine, Sequence
from typing import Any, ParamSpec, SupportsIndex, TypeAlias, TypeVar

from crestgate.core.decision import Decision
from crestgate.core.plans import Limits
from crestgate.errors import ConfigError, RateLimitExceeded
from crestgate.limiter.chain import Bound
from crestgate.limiter.decorator_arguments import (
    KeyMaker,
    check_arguments,
    key_maker,
    plain_callable,
    refuse_generators,
)
from crestgate.limiter.dry_run import DryRun
from crestgate.limiter.limiter_core import LimiterCore, decorator_cost
from crestgate.limiter.pending_check import requests_of
from crestgate.limiter.reservation import Hold
from crestgate.stores.port import BatchOutcomes, Op, Request

__all__ = ["CallCost", "CallGuard", "CallLimits", "FunctionCalls", "guarded", "guarded_async"]

P = ParamSpec("P")
R = TypeVar("R")
CallLimits: TypeAlias = "Limits | Callable[..., Limits | None]"
"""The limits of a function, or a callable that returns them for the arguments of a call; None: it is not limited."""
CallCost: TypeAlias = "SupportsIndex | Callable[..., SupportsIndex]"
"""The cost of a call, or a callable that returns it for the arguments of a call."""
Apply = Callable[[Sequence[Request]], BatchOutcomes]
CheckAsync = Callable[[Bound, str, int], Awaitable[Decision]]
ApplyAsync = Callable[[Sequence[Request]], Awaitable[BatchOutcomes]]


class CallGuard:
    """The options of a decorator. Mistakes are errors now, and not when the function is called."""

    def __init__(
        self,
        limiter: LimiterCore,
        limits: CallLimits,
        *,
        key: str | KeyMaker | None,
        cost: CallCost,
        exempt: Callable[..., object] | None,
        when: Callable[[Any], object] | None,
        wait: bool,
        dry_run: bool,
    ) -> None:
        for name, given in (("wait", wait), ("dry_run", dry_run)):
            if not isinstance(given, bool):
                raise ConfigError(f"{name} must be True or False, not {given!r}")
        self.limiter = limiter
        self.key = key
        self.when = None if when is None else _check_when(plain_callable("when", when))
        self.exempt = None if exempt is None else plain_callable("exempt", exempt)
        self.cost_callable = plain_callable("cost", cost) if callable(cost) else None
        self.cost = 0 if callable(cost) else decorator_cost(cost)
        self.limits_callable = plain_callable("limits", limits) if callable(limits) else None
        self.chain = None if callable(limits) else limiter.chain_getter(limits)
        self.wait = wait
        self.dry_run = DryRun() if dry_run else None

    def calls_of(self, function: Callable[..., Any]) -> FunctionCalls:
        """The same for the calls of one function."""
        refuse_generators(function)
        calls = FunctionCalls(self, key_maker(function, self.key))
        callables = {"limits": self.limits_callable, "cost": self.cost_callable, "exempt": self.exempt}
        callables["key"] = None if self.key is None or isinstance(self.key, str) else self.key
        for name, given in callables.items():
            if given is not None:
                check_arguments(name, given, function)
        return calls


class FunctionCalls:
    """The calls of one function."""

    __slots__ = ("_guard", "_make_key", "when")

    def __init__(self, guard: CallGuard, make_key: KeyMaker) -> None:
        self._guard = guard
        self._make_key = make_key
        self.when = guard.when

    def resolve(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> tuple[Bound, str, int] | None:
        """The limits, the key and the cost of a call; None when it is not limited."""
        guard = self._guard
        if guard.exempt is not None and guard.exempt(*args, **kwargs):
            return None
        if guard.chain is not None:
            bound = guard.chain()
        else:
            assert guard.limits_callable is not None
            limits = guard.limits_callable(*args, **kwargs)
            if limits is None:
                return None
            bound = guard.limiter.resolve(limits)
        cost = guard.cost if guard.cost_callable is None else decorator_cost(guard.cost_callable(*args, **kwargs))
        return bound, self._make_key(*args, **kwargs), cost

    def delay(self, decision: Decision) -> float:
        """The real seconds that a call must wait; RateLimitExceeded when it is denied."""
        guard = self._guard
        if not decision.allowed:
            if guard.dry_run is None:
                raise RateLimitExceeded(decision)
            guard.dry_run.denied(decision)
            return 0.0
        delay = decision.delay
        return guard.limiter.clock.wait(delay) if delay and guard.wait else 0.0

    def settlement(self, hold: Hold, result: object) -> list[Request]:
        """The request that gives back the cost of a call that does not count, now that its result is known."""
        if not hold.decision.allowed or self.when is None or self.when(result):
            return []
        request = hold.settle(0)
        return [] if request is None else [request]


def guarded(function: Callable[P, R], calls: FunctionCalls, apply: Apply) -> Callable[P, R]:
    """A function whose calls are limited."""

    @functools.wraps(function)
    def limited(*args: P.args, **kwargs: P.kwargs) -> R:
        call = calls.resolve(args, kwargs)
        if call is None:
            return function(*args, **kwargs)
        bound, key, cost = call
        hold = None
        if calls.when is None:
            delay = calls.delay(bound.check(key, cost))
        else:
            check = bound.prepare(Op.TAKE, key, cost)
            hold = Hold(check, apply(requests_of([check]))[0])
            delay = calls.delay(hold.decision)
        if delay:
            time.sleep(delay)
        if hold is None:
            return function(*args, **kwargs)
        try:
            result = function(*args, **kwargs)
        except Exception as error:
            settlement = calls.settlement(hold, error)
            if settlement:
                apply(settlement)
            raise
        settlement = calls.settlement(hold, result)
        if settlement:
            apply(settlement)
        return result

    return limited


def guarded_async(
    function: Callable[P, Coroutine[Any, Any, R]], calls: FunctionCalls, check_async: CheckAsync, apply: ApplyAsync
) -> Callable[P, Coroutine[Any, Any, R]]:
    """A coroutine function whose calls are limited."""

    @functools.wraps(function)
    async def limited(*args: P.args, **kwargs: P.kwargs) -> R:
        call = calls.resolve(args, kwargs)
        if call is None:
            return await function(*args, **kwargs)
        bound, key, cost = call
        hold = None
        if calls.when is None:
            delay = calls.delay(await check_async(bound, key, cost))
        else:
            check = bound.prepare(Op.TAKE, key, cost)
            hold = Hold(check, (await apply(requests_of([check])))[0])
            delay = calls.delay(hold.decision)
        if delay:
            from asyncio import sleep  # not above: programs without an event loop would pay for it

            await sleep(delay)
        if hold is None:
            return await function(*args, **kwargs)
        try:
            result = await function(*args, **kwargs)
        except Exception as error:
            settlement = calls.settlement(hold, error)
            if settlement:
                await apply(settlement)
            raise
        settlement = calls.settlement(hold, result)
        if settlement:
            await apply(settlement)
        return result

    return limited


def _check_when(when: Callable[..., Any]) -> Callable[[Any], Any]:
    try:
        inspect.signature(when).bind(None)
    except ValueError:  # it does not tell its parameters
        return when
    except TypeError:
        raise ConfigError(
            "when is given one thing, what the function returns or the exception that it raises, and takes "
            f"{inspect.signature(when)}"
        ) from None
    return when
