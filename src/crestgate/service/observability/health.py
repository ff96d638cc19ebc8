"""Liveness and readiness of the service.

A worker that responds is alive. It is ready if it can decide. All stores are probed with the same script or statement
as a check, on every server they have, and the rule database is asked for a record. The result names those that failed.

Whether such a failure makes the worker not ready depends on what it can still do: see `required_probes`. All instances
share their stores, so all of them would be taken out of service together.

Invalid rules do not make it not ready. The previous rules stay in force, and a typo in a file that all instances read
must not take all of them out of service. The response reports it, as the log and a metric do.

A result is cached for a second, so frequent probes do not load the stores.
"""

from __future__ import annotations

import asyncio
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from crestgate import __version__
from crestgate.errors import CrestgateError
from crestgate.limiter.store_probe import Probe, store_probes
from crestgate.rules.catalog import summarise

if TYPE_CHECKING:
    from crestgate.core.failure_policies import OnStoreError
    from crestgate.limiter.async_limiter import AsyncLimiter
    from crestgate.rules.port import Repository

__all__ = ["ALL", "PROBE_ID", "RULE_DATABASE", "Health", "ReadinessResult", "RequiredProbes", "required_probes"]

OK = "ok"
RULE_DATABASE = "rule_database"
CACHE_SECONDS = 1.0
TIMEOUT_SECONDS = 2.0
"""Of each probe. A store times out earlier, by its own deadline."""
PROBE_ID = "crestgate-probe"
"""A record that does not exist; looking for it is enough."""


@dataclass(frozen=True, slots=True)
class RequiredProbes:
    """Which probes must succeed for a worker to be ready."""

    stores: bool
    rule_database: bool


ALL = RequiredProbes(stores=True, rule_database=True)


def required_probes(on_store_error: OnStoreError, ready_without_store: bool | None) -> RequiredProbes:
    """By the setting `server.ready_without_store`. If it is unset, a worker is ready while it does its work: the
    failure policies `open` and `local` decide without the stores, `closed` denies everything, and checks never need
    the rule database."""
    if ready_without_store is None:
        return RequiredProbes(stores=on_store_error == "closed", rule_database=False)
    return RequiredProbes(stores=not ready_without_store, rule_database=not ready_without_store)


@dataclass(frozen=True, slots=True)
class ReadinessResult:
    """Whether the service is ready, and the result of each probe."""

    ready: bool
    checks: dict[str, str] = field(default_factory=dict)
    unreachable: tuple[str, ...] = ()
    """The stores that failed, also if the service is ready without them; `rule_database` among them."""

    def error(self, name: str) -> str | None:
        """Why this probe failed; None if it did not."""
        return self.checks[name] if name in self.unreachable else None

    def problem(self) -> str:
        """All failures in one line."""
        return "; ".join(f"{name}: {result}" for name, result in self.checks.items() if result != OK)


class Health:
    """Health of one worker."""

    def __init__(self, limiter: AsyncLimiter, repository: Repository, required: RequiredProbes = ALL) -> None:
        self.stopping = False
        """Set when the worker is about to stop: it is not ready then, so that it gets no new requests."""
        self._limiter = limiter
        self._repository = repository
        self._required = required
        self._probes = store_probes(limiter)
        self._result: ReadinessResult | None = None
        self._probed_at = 0.0
        self._probing: asyncio.Task[ReadinessResult] | None = None
        self._reading: asyncio.Future[object] | None = None

    def alive(self) -> dict[str, str]:
        """The response of /healthz."""
        return {"status": "alive", "version": __version__}

    async def readiness(self) -> ReadinessResult:
        """The response of /readyz, at most a second old. Concurrent requests share one result."""
        if self.stopping:
            return ReadinessResult(False, {"service": "is stopping"})
        loop = asyncio.get_running_loop()
        if self._result is not None and loop.time() - self._probed_at < CACHE_SECONDS:
            return self._result
        if self._probing is None:
            self._probing = loop.create_task(self._probe())
        return await asyncio.shield(self._probing)

    async def _probe(self) -> ReadinessResult:
        try:
            *results, database = await asyncio.gather(
                *(_run_probe(probe, "the store") for probe in self._probes.values()),
                _run_probe(self._read, "the rule database"),
            )
            stores = dict(zip(self._probes, results, strict=True))
            stores_required = self._required.stores and any(result != OK for result in results)
            database_required = self._required.rule_database and database != OK
            probed = {**stores, RULE_DATABASE: database}
            self._result = ReadinessResult(
                not stores_required and not database_required,
                {**probed, "rules": self._rules()},
                tuple(name for name, result in probed.items() if result != OK),
            )
            self._probed_at = asyncio.get_running_loop().time()
            return self._result
        finally:
            self._probing = None

    async def _read(self) -> None:
        """Read from the rule database, in a thread; one at a time, however long it hangs."""
        if self._reading is None or self._reading.done():
            self._reading = asyncio.get_running_loop().run_in_executor(None, self._repository.get, "rule", PROBE_ID)
        await asyncio.shield(self._reading)

    def _rules(self) -> str:
        catalog = self._limiter.catalog
        if catalog.reload_problem is not None:
            return f"reload failed, keeping the previous rules: {catalog.reload_problem}"
        unreadable = catalog.unreadable
        if unreadable:
            named = summarise(unreadable)
            return f"{len(unreadable):,} of the stored records cannot be used, all others are in force: {named}"
        return OK


async def _run_probe(probe: Probe, target: str) -> str:
    try:
        async with asyncio.timeout(TIMEOUT_SECONDS):
            await probe()
    except TimeoutError:
        return f"{target} has not answered for {TIMEOUT_SECONDS:g} s"
    except CrestgateError as error:
        return str(error)
    except Exception as error:  # noqa: BLE001 - whatever it is, the service is not ready
        return f"{target} failed: {type(error).__name__}"
    return OK
