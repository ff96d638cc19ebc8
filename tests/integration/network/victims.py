"""A limiter of each failure policy on one store, used by threads or tasks while the store fails.

All its decisions are in its history. How long a check took is the caller's time: for a task, from the
moment it asks to the moment it runs again.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Coroutine, Sequence
from concurrent.futures import ThreadPoolExecutor
from threading import Thread
from types import TracebackType
from typing import Any, Literal, TypeVar

from crestgate import AsyncLimiter, Decision, Limiter
from crestgate.stores.breaker import Breaker
from crestgate.stores.redis import RedisStore
from crestgate.stores.sql import SqlStore
from integration.network.history import Check

__all__ = ["KINDS", "POLICIES", "REASONS", "Kind", "Policy", "Tasks", "Threads", "Victim", "breaker_states", "victim"]

T = TypeVar("T")
Policy = Literal["open", "closed", "local"]
Kind = Literal["threads", "tasks"]
POLICIES: list[Policy] = ["open", "closed", "local"]
KINDS: list[Kind] = ["threads", "tasks"]
REASONS = {"open": "fail_open", "closed": "fail_closed", "local": "fallback"}


class Victim:
    """A limiter under a policy, and all that it has answered."""

    limiter: Limiter | AsyncLimiter

    def __init__(self, policy: Policy) -> None:
        self.policy = policy
        self.history: list[Check] = []

    def check(self, key: str, limits: str) -> Check:
        """One check."""
        return self.at_once(1, key, limits)[0]

    def at_once(self, count: int, key: str, limits: str) -> list[Check]:
        """So many checks by as many callers at the same time."""
        raise NotImplementedError

    def in_turn(self, count: int, key: str, limits: str) -> list[Check]:
        """So many checks by one caller."""
        return [self.check(key, limits) for _ in range(count)]

    def close(self) -> None:
        raise NotImplementedError

    def note(self, key: str, start: float, decision: Decision) -> Check:
        check = Check(key, 1, start, time.monotonic(), decision.allowed, decision.remaining, decision.reason)
        self.history.append(check)
        return check

    def __enter__(self) -> Victim:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()


class Threads(Victim):
    """Called from threads."""

    def __init__(self, url: str, policy: Policy) -> None:
        super().__init__(policy)
        self.limiter = self.blocking = Limiter(url, on_store_error=policy)

    def one(self, key: str, limits: str) -> Check:
        start = time.monotonic()
        return self.note(key, start, self.blocking.check(key, limits))

    def check(self, key: str, limits: str) -> Check:
        return self.one(key, limits)

    def at_once(self, count: int, key: str, limits: str) -> list[Check]:
        with ThreadPoolExecutor(count) as callers:
            return [future.result() for future in [callers.submit(self.one, key, limits) for _ in range(count)]]

    def close(self) -> None:
        self.blocking.close()


class Tasks(Victim):
    """Called from the tasks of an event loop, which runs all the time in a thread of its own."""

    def __init__(self, url: str, policy: Policy) -> None:
        super().__init__(policy)
        self.loop = asyncio.new_event_loop()
        self.thread = Thread(target=self.loop.run_forever, daemon=True)
        self.thread.start()
        self.limiter = self.waiting = AsyncLimiter(url, on_store_error=policy)
        try:
            self.run(self.waiting.connect())
        except BaseException:
            self.close()
            raise

    def run(self, work: Coroutine[Any, Any, T]) -> T:
        return asyncio.run_coroutine_threadsafe(work, self.loop).result()

    async def one(self, key: str, limits: str) -> Check:
        start = time.monotonic()
        return self.note(key, start, await self.waiting.check(key, limits))

    def check(self, key: str, limits: str) -> Check:
        return self.run(self.one(key, limits))

    def at_once(self, count: int, key: str, limits: str) -> list[Check]:
        async def together() -> Sequence[Check]:
            return await asyncio.gather(*(self.one(key, limits) for _ in range(count)))

        return list(self.run(together()))

    def in_turn(self, count: int, key: str, limits: str) -> list[Check]:
        async def one_by_one() -> list[Check]:
            return [await self.one(key, limits) for _ in range(count)]

        return self.run(one_by_one())

    def close(self) -> None:
        self.run(self.waiting.aclose())
        self.loop.call_soon_threadsafe(self.loop.stop)
        self.thread.join()
        self.loop.close()


def victim(kind: Kind, url: str, policy: Policy) -> Victim:
    return Threads(url, policy) if kind == "threads" else Tasks(url, policy)


def breaker_states(limiter: Limiter | AsyncLimiter) -> set[str]:
    """How the breakers of a limiter's store stand."""
    store = limiter.store
    breakers: Sequence[Breaker]
    if isinstance(store, RedisStore):
        breakers = list(store._breakers.values())
    else:
        assert isinstance(store, SqlStore)
        breakers = [store.breaker]
    return {breaker.state(time.monotonic()) for breaker in breakers}
