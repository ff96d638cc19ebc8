"""Whether the service is alive, and whether it can do its work.

Alive is who answers. Ready is who can decide: the store is asked to count, by the same script or statement as for a
check, on every server it has, and the rule database is asked for a record. Neither question goes through the policy for
failures: a store that is away makes the service not ready, also where `on_store_error` lets everybody pass meanwhile.

Rules with a mistake in them do not make it so. Those known before are in force, and a typo in a file that all instances
read must not take all of them out of service. The answer tells of it, as the log and a metric do.

What was found holds for a second, so however many ask, the stores are asked no more often than that.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from headgate import __version__
from headgate.errors import HeadgateError

if TYPE_CHECKING:
    from headgate.embedded.async_limiter import AsyncLimiter
    from headgate.rules.repositories.port import Repository

__all__ = ["Health", "Readiness"]

OK = "ok"
HOLDS_SECONDS = 1.0
PATIENCE_SECONDS = 2.0
"""How long either question may take. A store gives up earlier, by its own deadline."""
PROBE_ID = "headgate-probe"
"""A record that nobody has made; to look for it is enough."""


@dataclass(frozen=True, slots=True)
class Readiness:
    """Whether the service can do its work, and what it found out, in words."""

    ready: bool
    checks: dict[str, str] = field(default_factory=dict)

    def problem(self) -> str:
        """What is wrong, in one line."""
        return "; ".join(f"{name}: {told}" for name, told in self.checks.items() if told != OK)


class Health:
    """Of one worker."""

    def __init__(self, limiter: AsyncLimiter, repository: Repository) -> None:
        self.stopping = False
        """Set when the worker is about to stop: it is then not ready, so that no new requests are sent to it."""
        self._limiter = limiter
        self._repository = repository
        self._found: Readiness | None = None
        self._found_at = 0.0
        self._finding: asyncio.Task[Readiness] | None = None
        self._reading: asyncio.Future[object] | None = None

    def alive(self) -> dict[str, str]:
        """The answer of /healthz."""
        return {"status": "alive", "version": __version__}

    async def readiness(self) -> Readiness:
        """The answer of /readyz, not older than a second. Those who ask at the same time get the same."""
        if self.stopping:
            return Readiness(False, {"service": "is stopping"})
        loop = asyncio.get_running_loop()
        if self._found is not None and loop.time() - self._found_at < HOLDS_SECONDS:
            return self._found
        if self._finding is None:
            self._finding = loop.create_task(self._find())
        return await asyncio.shield(self._finding)

    async def _find(self) -> Readiness:
        try:
            counters, database = await asyncio.gather(
                _answer(self._limiter.probe, "the store"), _answer(self._read, "the rule database")
            )
            checks = {"counters": counters, "rule_database": database, "rules": self._rules()}
            self._found = Readiness(counters == database == OK, checks)
            self._found_at = asyncio.get_running_loop().time()
            return self._found
        finally:
            self._finding = None

    async def _read(self) -> None:
        """Ask the rule database, in a thread; in one at a time, however long it hangs."""
        if self._reading is None or self._reading.done():
            self._reading = asyncio.get_running_loop().run_in_executor(None, self._repository.get, "rule", PROBE_ID)
        await asyncio.shield(self._reading)

    def _rules(self) -> str:
        catalog = self._limiter.catalog
        if catalog.problem is not None:
            return f"those known before are in force: {catalog.problem}"
        return OK


async def _answer(ask: Callable[[], Coroutine[Any, Any, None]], what: str) -> str:
    try:
        async with asyncio.timeout(PATIENCE_SECONDS):
            await ask()
    except TimeoutError:
        return f"{what} has not answered for {PATIENCE_SECONDS:g} s"
    except HeadgateError as error:
        return str(error)
    except Exception as error:  # noqa: BLE001 - whatever it is, it cannot do its work
        return f"{what} failed: {type(error).__name__}"
    return OK
