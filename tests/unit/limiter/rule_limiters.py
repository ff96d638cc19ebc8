"""A limiter with rules on virtual time, with one interface for `Limiter` and `AsyncLimiter`."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine
from typing import Any, Literal

from crestgate import AsyncLimiter, Decision, Limiter, Observer, PressureEvent, RequestContext
from crestgate.rules.catalog import Catalog
from crestgate.rules.port import Actor, Edit
from crestgate.rules.records import edit_of
from crestgate.stores.port import Store
from crestgate.testing import FakeClock
from unit.rules.cases import NOW_US, context_of, rules_of
from unit.rules.memory_repository import MemoryRepository

__all__ = ["ALICE", "NEVER", "Kind", "Maker", "RuleLimiter"]

Kind = Literal["sync", "async"]
ALICE = Actor("alice")
NEVER = 3600.0


class RuleLimiter:
    """A limiter of one kind or the other. Rules and requests are written as in unit/rules/cases.py."""

    def __init__(
        self,
        kind: Kind,
        rules: str = "",
        *,
        store: Store | None = None,
        on_store_error: Literal["open", "closed", "local"] = "open",
        on_pressure: Callable[[PressureEvent], object] | None = None,
        observer: Observer | None = None,
    ) -> None:
        self.clock = FakeClock(NOW_US / 1_000_000)
        self.repository = MemoryRepository(self.clock)
        self.runner = asyncio.Runner()
        if rules:
            self.put(rules)
        self.catalog = Catalog([self.repository], NEVER)
        options: dict[str, Any] = {
            "catalog": self.catalog,
            "on_store_error": on_store_error,
            "on_pressure": on_pressure,
            "observer": observer,
            "clock": self.clock if store is None else None,
        }
        made = Limiter if kind == "sync" else AsyncLimiter
        self.limiter: Limiter | AsyncLimiter = made("memory://" if store is None else store, **options)

    def check(self, request: str | RequestContext, cost: int = 1) -> Decision:
        return self._decided(self.limiter.check_request(_context(request), cost))

    def peek(self, request: str | RequestContext, cost: int = 1) -> Decision:
        return self._decided(self.limiter.peek_request(_context(request), cost))

    def reset(self, request: str) -> None:
        if isinstance(self.limiter, Limiter):
            self.limiter.reset_request(_context(request))
        else:
            self.runner.run(self.limiter.reset_request(_context(request)))

    def check_key(self, key: str, limits: str) -> Decision:
        return self._decided(self.limiter.check(key, limits))

    def remaining(self, request: str) -> list[int]:
        """What remains of each rule of the chain."""
        return [part.remaining for part in self.peek(request).parts]

    def admits(self, request: str, times: int) -> int:
        return sum(self.check(request).allowed for _ in range(times))

    def put(self, rules: str) -> None:
        self.write(*(edit_of(rule) for rule in rules_of(rules)))

    def write(self, *edits: Edit) -> None:
        self.repository.write(edits, ALICE)
        if hasattr(self, "catalog"):
            self.catalog.refresh()

    def close(self) -> None:
        if isinstance(self.limiter, Limiter):
            self.limiter.close()
        else:
            self.runner.run(self.limiter.aclose())
        self.catalog.close()
        self.runner.close()

    def _decided(self, answer: Decision | Coroutine[Any, Any, Decision]) -> Decision:
        return answer if isinstance(answer, Decision) else self.runner.run(answer)


def _context(request: str | RequestContext) -> RequestContext:
    return context_of(request) if isinstance(request, str) else request


Maker = Callable[..., RuleLimiter]
"""Creates a `RuleLimiter` of the parametrized kind."""
