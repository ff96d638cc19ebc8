"""The calls of a decorated function: what is asked about one, and what is made of the answer.

`Guard` is what the decorator was told, `Calls` that for one function; neither does I/O. The two drivers at the end do
the same with and without `await`, and are given the limiter's ways to ask.

A call whose outcome says whether it counts (`when`) is taken before it is known, and given back if it does not.
"""

from __future__ import annotations

import asyncio
import functools
import inspect
import time
from collections.abc import Awaitable, Callable, Coroutine, Sequence
from typing import Any, ParamSpec, SupportsIndex, TypeAlias, TypeVar

from headgate.core.decision import Decision
from headgate.engine.bound import Bound, check_input
from headgate.engine.decorator import KeyMaker, check_arguments, key_maker, plain_callable, refuse_generators
from headgate.engine.dry_run import DryRun
from headgate.engine.limiting import Limiting, admitted, decorator_cost
from headgate.engine.plans import Limits
from headgate.engine.reservation import Held
from headgate.errors import ConfigError, RateLimitExceeded
from headgate.stores.port import Op, Outcome, Replies, Request

__all__ = ["CallCost", "CallLimits", "Calls", "Guard", "guarded", "guarded_async"]

P = ParamSpec("P")
R = TypeVar("R")
CallLimits: TypeAlias = "Limits | Callable[..., Limits | None]"
"""The limits of a function, or a callable that tells them for a call by its arguments; None: it is not limited."""
CallCost: TypeAlias = "SupportsIndex | Callable[..., SupportsIndex]"
"""What a call costs, or a callable that tells it by the call's arguments."""
Apply = Callable[[Sequence[Request]], Replies]
CheckAsync = Callable[[Bound, str, int], Awaitable[Decision]]
ApplyAsync = Callable[[Sequence[Request]], Awaitable[Replies]]


class Guard:
    """What a decorator was told. Mistakes are errors now, and not when the function is called."""

    def __init__(
        self,
        limiter: Limiting,
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
        self.key = key
        self.when = None if when is None else _given_an_outcome(plain_callable("when", when))
        self.exempt = None if exempt is None else plain_callable("exempt", exempt)
        self.told_cost = plain_callable("cost", cost) if callable(cost) else None
        self.cost = 0 if callable(cost) else decorator_cost(cost)
        self.told_limits = plain_callable("limits", limits) if callable(limits) else None
        self.binding = None if callable(limits) else limiter._binding(limiter._bind, limits)
        self.bind = limiter._bind
        self.clock = limiter.clock
        self.wait = wait
        self.dry_run = DryRun() if dry_run else None

    def calls(self, function: Callable[..., Any]) -> Calls:
        """The same for the calls of one function."""
        refuse_generators(function)
        made = Calls(self, key_maker(function, self.key))
        given = {"limits": self.told_limits, "cost": self.told_cost, "exempt": self.exempt}
        given["key"] = None if self.key is None or isinstance(self.key, str) else self.key
        for name, told in given.items():
            if told is not None:
                check_arguments(name, told, function)
        return made


class Calls:
    """The calls of one function."""

    __slots__ = ("_guard", "_make_key", "when")

    def __init__(self, guard: Guard, make_key: KeyMaker) -> None:
        self._guard = guard
        self._make_key = make_key
        self.when = guard.when

    def ask(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> tuple[Bound, str, int] | None:
        """What is to be asked about a call: its limits, its key and its cost; None when it is not limited."""
        guard = self._guard
        if guard.exempt is not None and guard.exempt(*args, **kwargs):
            return None
        if guard.binding is not None:
            bound = guard.binding()
        else:
            assert guard.told_limits is not None
            limits = guard.told_limits(*args, **kwargs)
            if limits is None:
                return None
            bound = guard.bind(limits)
        cost = guard.cost if guard.told_cost is None else decorator_cost(guard.told_cost(*args, **kwargs))
        return bound, self._make_key(*args, **kwargs), cost

    def delay(self, decision: Decision) -> float:
        """The real seconds that a call is to wait; RateLimitExceeded when it is denied."""
        guard = self._guard
        if guard.dry_run is not None and not decision.allowed:
            guard.dry_run.denied(decision)
            return 0.0
        delay = admitted(decision)
        return guard.clock.wait(delay) if delay and guard.wait else 0.0

    def taking(self, bound: Bound, key: str, cost: int) -> Request:
        """The request that takes what may be given back."""
        return bound.request(Op.TAKE, check_input(key, cost), cost)

    def held(self, bound: Bound, taken: Request, outcomes: Sequence[Outcome]) -> tuple[Held | None, float]:
        """What was taken, if anything was, and the real seconds to wait; RateLimitExceeded when it is denied."""
        try:
            held = Held(bound, taken, outcomes)
        except RateLimitExceeded as denied:
            return None, self.delay(denied.decision)
        return held, self.delay(held.decision)

    def settlement(self, held: Held | None, outcome: object) -> list[Request]:
        """What gives back the cost of a call that does not count, now that it is known what came of it."""
        if held is None or self.when is None or self.when(outcome):
            return []
        request = held.settlement(0)
        return [] if request is None else [request]


def guarded(function: Callable[P, R], calls: Calls, apply: Apply) -> Callable[P, R]:
    """The function, limited, in threads."""

    @functools.wraps(function)
    def limited(*args: P.args, **kwargs: P.kwargs) -> R:
        asked = calls.ask(args, kwargs)
        if asked is None:
            return function(*args, **kwargs)
        bound, key, cost = asked
        held = None
        if calls.when is None:
            delay = calls.delay(bound.check(key, cost))
        else:
            taken = calls.taking(bound, key, cost)
            held, delay = calls.held(bound, taken, apply([taken])[0])
        if delay:
            time.sleep(delay)
        if held is None:
            return function(*args, **kwargs)
        try:
            result = function(*args, **kwargs)
        except Exception as error:
            _settle(apply, calls.settlement(held, error))
            raise
        _settle(apply, calls.settlement(held, result))
        return result

    return limited


def guarded_async(
    function: Callable[P, Coroutine[Any, Any, R]], calls: Calls, check: CheckAsync, apply: ApplyAsync
) -> Callable[P, Coroutine[Any, Any, R]]:
    """The same on an event loop."""

    @functools.wraps(function)
    async def limited(*args: P.args, **kwargs: P.kwargs) -> R:
        asked = calls.ask(args, kwargs)
        if asked is None:
            return await function(*args, **kwargs)
        bound, key, cost = asked
        held = None
        if calls.when is None:
            delay = calls.delay(await check(bound, key, cost))
        else:
            taken = calls.taking(bound, key, cost)
            held, delay = calls.held(bound, taken, (await apply([taken]))[0])
        if delay:
            await asyncio.sleep(delay)
        if held is None:
            return await function(*args, **kwargs)
        try:
            result = await function(*args, **kwargs)
        except Exception as error:
            await _settle_async(apply, calls.settlement(held, error))
            raise
        await _settle_async(apply, calls.settlement(held, result))
        return result

    return limited


def _given_an_outcome(when: Callable[..., Any]) -> Callable[[Any], Any]:
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


def _settle(apply: Apply, requests: list[Request]) -> None:
    if requests:
        apply(requests)


async def _settle_async(apply: ApplyAsync, requests: list[Request]) -> None:
    if requests:
        await apply(requests)
