"""A limiter of each failure policy on one store, used by threads or tasks while the store fails.

All its decisions are in its history. How long a check took is the caller's time: for a task, from the
call until it resumes.
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

__all__ = [
    "KINDS",
    "POLICIES",
    "REASONS",
    "Kind",
    "Policy",
    "PolicyLimiter",
    "Tasks",
    "Threads",
    "breaker_states",
    "open_limiter",
]

T = TypeVar("T")
Policy = Literal["open", "closed", "local"]
Kind = Literal["threads", "tasks"]
POLICIES: list[Policy] = ["open", "closed", "local"]
KINDS: list[Kind] = ["threads", "tasks"]
REASONS = {"open": "fail_open", "closed": "fail_closed", "local": "fallback"}


class PolicyLimiter:
    """A limiter with a failure policy, and all of its decisions."""

    limiter: Limiter | AsyncLimiter

    def __init__(self, policy: Policy) -> None:
        self.policy = policy
        self.history: list[Check] = []

    def check(self, key: str, limits: str) -> Check:
        """One check."""
        return self.check_concurrently(1, key, limits)[0]

    def check_concurrently(self, count: int, key: str, limits: str) -> list[Check]:
        """So many checks by as many callers at the same time."""
        raise NotImplementedError

    def check_sequentially(self, count: int, key: str, limits: str) -> list[Check]:
        """So many checks by one caller."""
        return [self.check(key, limits) for _ in range(count)]

    def close(self) -> None:
        raise NotImplementedError

    def record(self, key: str, start: float, decision: Decision) -> Check:
        check = Check(key, 1, start, time.monotonic(), decision.allowed, decision.remaining, decision.reason)
        self.history.append(check)
        return check

    def __enter__(self) -> PolicyLimiter:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()


class Threads(PolicyLimiter):
    """Called from threads."""

    def __init__(self, url: str, policy: Policy) -> None:
        super().__init__(policy)
        self.limiter = self.sync_limiter = Limiter(url, on_store_error=policy)

    def check_once(self, key: str, limits: str) -> Check:
        start = time.monotonic()
        return self.record(key, start, self.sync_limiter.check(key, limits))

    def check(self, key: str, limits: str) -> Check:
        return self.check_once(key, limits)

    def check_concurrently(self, count: int, key: str, limits: str) -> list[Check]:
        with ThreadPoolExecutor(count) as callers:
            return [future.result() for future in [callers.submit(self.check_once, key, limits) for _ in range(count)]]

    def close(self) -> None:
        self.sync_limiter.close()


class Tasks(PolicyLimiter):
    """Called from tasks of an event loop that runs in its own thread."""

    def __init__(self, url: str, policy: Policy) -> None:
        super().__init__(policy)
        self.loop = asyncio.new_event_loop()
        self.thread = Thread(target=self.loop.run_forever, daemon=True)
        self.thread.start()
        self.limiter = self.async_limiter = AsyncLimiter(url, on_store_error=policy)
        try:
            self.run(self.async_limiter.connect())
        except BaseException:
            self.close()
            raise

    def run(self, work: Coroutine[Any, Any, T]) -> T:
        return asyncio.run_coroutine_threadsafe(work, self.loop).result()

    async def check_once(self, key: str, limits: str) -> Check:
        start = time.monotonic()
        return self.record(key, start, await self.async_limiter.check(key, limits))

    def check(self, key: str, limits: str) -> Check:
        return self.run(self.check_once(key, limits))

    def check_concurrently(self, count: int, key: str, limits: str) -> list[Check]:
        async def check_all() -> Sequence[Check]:
            return await asyncio.gather(*(self.check_once(key, limits) for _ in range(count)))

        return list(self.run(check_all()))

    def check_sequentially(self, count: int, key: str, limits: str) -> list[Check]:
        async def check_in_turn() -> list[Check]:
            return [await self.check_once(key, limits) for _ in range(count)]

        return self.run(check_in_turn())

    def close(self) -> None:
        self.run(self.async_limiter.aclose())
        self.loop.call_soon_threadsafe(self.loop.stop)
        self.thread.join()
        self.loop.close()


def open_limiter(kind: Kind, url: str, policy: Policy) -> PolicyLimiter:
    return Threads(url, policy) if kind == "threads" else Tasks(url, policy)


def breaker_states(limiter: Limiter | AsyncLimiter) -> set[str]:
    """The states of the breakers of a limiter's store."""
    store = limiter.store
    breakers: Sequence[Breaker]
    if isinstance(store, RedisStore):
        breakers = list(store._breakers.values())
    else:
        assert isinstance(store, SqlStore)
        breakers = [store.breaker]
    return {breaker.state(time.monotonic()) for breaker in breakers}
