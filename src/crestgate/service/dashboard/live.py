"""Decisions per second of all workers, for the charts.

Each worker publishes its counters about every second (see observability/worker_snapshots.py). While somebody watches,
one task of a worker reads the files of all of them once a second, whoever and however many watch; what was allowed
since a worker's last file, by the times in the files, is its rate. So no worker counts anything for the dashboard, and
nothing happens while nobody watches.

Bounds: the last `KEPT` samples, each with the `MAX_RULES` busiest rules. A stream has no queue of its own: it waits for
the next sample, and a reader that is too slow misses some.
"""

from __future__ import annotations

import asyncio
import logging
from collections import deque
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

from crestgate.errors import CrestgateError
from crestgate.limiter.async_limiter import AsyncLimiter
from crestgate.service.observability.health import RULE_DATABASE, Health, ReadinessResult
from crestgate.service.observability.snapshot import FRESH_US, Snapshot
from crestgate.service.observability.worker_snapshots import WorkerSnapshots
from crestgate.stores.remote_store import COUNTERS

__all__ = ["LiveFeed", "Sample", "StoreState", "WorkerRates"]

SECONDS = 1.0
KEPT = 120
MAX_RULES = 50
RATES = ("allowed", "blocked", "shadow_blocked")
Labels = tuple[str, ...]
_log = logging.getLogger("crestgate")


@dataclass(frozen=True, slots=True)
class StoreState:
    """Whether the store decides, or the failure policy in its place."""

    failing: bool
    message: str = ""


@dataclass(frozen=True, slots=True)
class Sample:
    """Decisions per second, now."""

    at_us: int
    allowed: float = 0.0
    denied: float = 0.0
    shadowed: float = 0.0
    fail_open: float = 0.0
    rules: Mapping[str, tuple[float, float, float]] = field(default_factory=dict)
    """Allowed, denied and shadowed of the busiest rules."""
    store: StoreState = StoreState(False)

    def data(self) -> dict[str, Any]:
        """As an event has it."""
        return {
            "at": self.at_us // 1000,
            "allowed": round(self.allowed, 2),
            "denied": round(self.denied, 2),
            "shadowed": round(self.shadowed, 2),
            "fail_open": round(self.fail_open, 2),
            "rules": {name: [round(value, 2) for value in rates] for name, rates in self.rules.items()},
            "store": {"failing": self.store.failing, "message": self.store.message},
        }


class WorkerRates:
    """Rates of the workers, from their last two files."""

    def __init__(self) -> None:
        self._last: dict[int, Snapshot] = {}
        self._rates: dict[int, dict[tuple[str, Labels], float]] = {}

    def add(self, snapshots: Mapping[int, Snapshot], now_us: int, store: StoreState) -> Sample:
        """The sample after these files."""
        for worker, snapshot in snapshots.items():
            last = self._last.get(worker)
            if last is not None and snapshot.at_us > last.at_us:
                seconds = (snapshot.at_us - last.at_us) / 1_000_000
                self._rates[worker] = {
                    (name, labels): (count - last.counters.get(name, {}).get(labels, 0)) / seconds
                    for name in (*RATES, "fail_open")
                    for labels, count in snapshot.counters.get(name, {}).items()
                }
            self._last[worker] = snapshot
        live = [worker for worker, one in self._last.items() if one.at_us >= now_us - FRESH_US]
        totals = dict.fromkeys((*RATES, "fail_open"), 0.0)
        rules: dict[str, list[float]] = {}
        for worker in live:
            for (name, labels), value in self._rates.get(worker, {}).items():
                totals[name] += value
                if name in RATES and value:
                    rules.setdefault(labels[0], [0.0, 0.0, 0.0])[RATES.index(name)] += value
        busiest = sorted(rules.items(), key=lambda item: -sum(item[1]))[:MAX_RULES]
        return Sample(
            now_us,
            totals["allowed"],
            totals["blocked"],
            totals["shadow_blocked"],
            totals["fail_open"],
            {name: (rates[0], rates[1], rates[2]) for name, rates in busiest},
            store,
        )


class LiveFeed:
    """Samples of one worker's dashboard. It runs while there are watchers; on the worker's event loop."""

    def __init__(
        self, snapshots: WorkerSnapshots, limiter: AsyncLimiter, health: Health, now_us: Callable[[], int]
    ) -> None:
        self._snapshots = snapshots
        self._limiter = limiter
        self._health = health
        self._now_us = now_us
        self._samples: deque[Sample] = deque(maxlen=KEPT)
        self._rates = WorkerRates()
        self._watchers = 0
        self._task: asyncio.Task[None] | None = None
        self._next: asyncio.Future[Sample] | None = None

    @property
    def samples(self) -> list[Sample]:
        """Those of the last two minutes, oldest first."""
        since_us = self._now_us() - KEPT * 1_000_000
        return [sample for sample in self._samples if sample.at_us >= since_us]

    @property
    def stopping(self) -> bool:
        return self._health.stopping

    async def next(self) -> Sample:
        """Wait for the next sample."""
        if self._next is None:
            self._next = asyncio.get_running_loop().create_future()
        return await asyncio.shield(self._next)

    def __enter__(self) -> LiveFeed:
        """Watch."""
        self._watchers += 1
        if self._task is None:
            self._task = asyncio.get_running_loop().create_task(self._run())
        return self

    def __exit__(self, *_: object) -> None:
        self._watchers -= 1
        if self._watchers == 0 and self._task is not None:
            self._task.cancel()
            self._task = None
            self._next = None

    async def readiness(self) -> ReadinessResult:
        """As /readyz has it, at most a second old."""
        return await self._health.readiness()

    async def store_state(self) -> StoreState:
        """Whether the failure policy decides now, by the breakers of this worker and a probe, at most a second old."""
        breakers = [name for name, state in self._limiter.breakers().items() if state != "closed"]
        readiness = await self._health.readiness()
        stores = [name for name in readiness.unreachable if name != RULE_DATABASE]
        if stores == [COUNTERS]:
            return StoreState(True, readiness.checks[COUNTERS])
        if stores:
            return StoreState(True, "; ".join(f"{name}: {readiness.checks[name]}" for name in stores))
        return StoreState(True, f"circuit breaker open: {', '.join(breakers)}") if breakers else StoreState(False)

    async def _run(self) -> None:
        while True:
            try:
                store = await self.store_state()
                files = await asyncio.to_thread(self._snapshots.by_worker)
                sample = self._rates.add(files, self._now_us(), store)
                self._samples.append(sample)
                waiting, self._next = self._next, None
                if waiting is not None and not waiting.done():
                    waiting.set_result(sample)
            except (CrestgateError, OSError) as error:
                _log.warning("cannot read metrics for the dashboard, will retry: %s", error)
            await asyncio.sleep(SECONDS)
