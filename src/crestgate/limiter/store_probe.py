"""Probes of stores: the same script or statement as a check, past the failure policy.

A store that consists of several (`stores`, `migrate`) is probed part by part, so that results name what fails.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Coroutine
from functools import partial
from typing import TYPE_CHECKING, Any

from crestgate.core.algorithms import build
from crestgate.core.limit import Limit
from crestgate.errors import StoreError
from crestgate.stores.port import BatchOutcomes, LocalStore, Member, Op, Request, Store
from crestgate.stores.remote_store import COUNTERS, PROBE, RemoteStore

if TYPE_CHECKING:
    from crestgate.limiter.async_limiter import AsyncLimiter

__all__ = ["Probe", "probe_batches", "store_probes"]

Probe = Callable[[], Coroutine[Any, Any, None]]
"""StoreError when a server of the store cannot count."""


def store_probes(limiter: AsyncLimiter) -> dict[str, Probe]:
    """A probe of each store, by its setting: `counters`, or `migrate.from` and `migrate.to`; and `stores.hot`."""
    store = limiter.store
    parts = store.parts() if isinstance(store, RemoteStore) else {}
    return {name: partial(_probe_part, part) for name, part in parts.items()} or {COUNTERS: limiter.probe}


def probe_batches(store: Store) -> list[list[Request]]:
    """Two batches that count on every server of a store, and forget it again.

    Not one: in one batch a store writes only what is left at the end, which is nothing, and a server that cannot write
    (out of memory) would pass. Both batches reset a counter, because no policy answers those.
    """
    keys = store.probe_keys() if isinstance(store, RemoteStore) else (PROBE,)
    taken, other = (
        [Member(key, build(Limit(1_000_000, 1), name), 1) for key in keys] for name in (PROBE, f"{PROBE}-reset")
    )
    takes, resets, others = (
        [Request(op, [counter]) for counter in counters]
        for op, counters in ((Op.TAKE, taken), (Op.RESET, taken), (Op.RESET, other))
    )
    return [[*takes, *others], resets]


async def _probe_part(store: LocalStore | RemoteStore) -> None:
    for batch in probe_batches(store):
        await _send(store, batch)


async def _send(store: LocalStore | RemoteStore, batch: list[Request]) -> None:
    """Past the coalescer, which belongs to the whole store, and which gives a batch more time on a busy machine: so it
    has twice the time here."""
    loop = asyncio.get_running_loop()
    if not isinstance(store, RemoteStore):
        await loop.run_in_executor(None, store.apply, batch)
        return
    result: asyncio.Future[BatchOutcomes | StoreError] = loop.create_future()

    def done(outcomes: BatchOutcomes | StoreError) -> None:
        if not result.done():  # else the probe was cancelled
            result.set_result(outcomes)

    store.begin(batch, time.monotonic() + 2 * store.timeout, done)
    outcomes = await result
    if isinstance(outcomes, StoreError):
        raise outcomes
