"""Crestgate as a contender: as users have it, and one by one, which shows what its batches are worth."""

from __future__ import annotations

import asyncio
import time
from dataclasses import replace

from benchmarks.network.entry import Contender, Entry
from crestgate import AsyncLimiter, Decision, Limit, Limiter
from crestgate.errors import StoreError
from crestgate.limiter.pending_check import requests_of
from crestgate.stores.factory import open_store
from crestgate.stores.port import BatchOutcomes, Op
from crestgate.stores.remote_store import RemoteStore

__all__ = ["batched", "batched_threads", "leased", "one_by_one", "one_by_one_threads"]

SECONDS = 5
"""The deadline of a check: what is late is slow here, and not an error."""


async def batched(entry: Entry) -> Contender:
    limiter = AsyncLimiter(_url(entry), on_store_error="closed")
    await limiter.connect()
    bound = limiter.bind(_limit(entry))
    return Contender(bound.check, _admitted, lambda: limiter.store_failures)


async def leased(entry: Entry) -> Contender:
    """With slices of the limit that are decided in this process (`lease=True`)."""
    limiter = AsyncLimiter(_url(entry), on_store_error="closed")
    await limiter.connect()
    bound = limiter.bind(replace(Limit.parse(_limit(entry)), lease=True))
    return Contender(bound.check, _admitted, lambda: limiter.store_failures)


def batched_threads(entry: Entry) -> Contender:
    limiter = Limiter(_url(entry), on_store_error="closed")
    bound = limiter.bind(_limit(entry))
    return Contender(bound.check, _admitted, lambda: limiter.store_failures)


async def one_by_one(entry: Entry) -> Contender:
    """Every check is a call of its own, as soon as it comes, on as many connections as there are callers."""
    store = _store(entry)
    await store.connect_async()
    bound = Limiter(store, on_store_error="closed").bind(_limit(entry))
    loop = asyncio.get_running_loop()

    async def check(key: str) -> Decision:
        answered: asyncio.Future[BatchOutcomes] = loop.create_future()

        def done(answer: BatchOutcomes | StoreError) -> None:
            if isinstance(answer, StoreError):
                answered.set_exception(answer)
            else:
                answered.set_result(answer)

        pending = bound.prepare(Op.TAKE, key, 1)
        store.begin(requests_of([pending]), time.monotonic() + SECONDS, done)
        return pending.finish((await answered)[0])

    return Contender(check, _admitted)


def one_by_one_threads(entry: Entry) -> Contender:
    store = _store(entry)
    bound = Limiter(store, on_store_error="closed").bind(_limit(entry))

    def check(key: str) -> Decision:
        pending = bound.prepare(Op.TAKE, key, 1)
        return pending.finish(store.call(requests_of([pending]), time.monotonic() + SECONDS)[0])

    return Contender(check, _admitted)


def _admitted(decision: Decision) -> bool:
    return decision.allowed


def _url(entry: Entry) -> str:
    return f"{entry.store}?timeout_ms={SECONDS * 1000}&prefix={entry.space}"


def _store(entry: Entry) -> RemoteStore:
    store = open_store(f"{_url(entry)}&pool_size={entry.callers if entry.load != 'arrivals' else 100}")
    assert isinstance(store, RemoteStore)
    return store


def _limit(entry: Entry) -> str:
    return f"{entry.amount}/day using {entry.algorithm}"
