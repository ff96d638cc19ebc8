"""An open store, as storages use it: its errors are raised, as those of `limits` are, not answered by a policy."""

from __future__ import annotations

import asyncio
import re
import time
from collections.abc import Sequence
from typing import Any, TypeVar

from crestgate.compat.limits.errors import ConfigurationError
from crestgate.compat.limits.operations import STRATEGY_NAMES, Exchange
from crestgate.core.algorithms import build
from crestgate.core.limit import Limit
from crestgate.core.state import ListLog
from crestgate.errors import ConfigError, StoreError
from crestgate.limiter.backend import Backend
from crestgate.limiter.failure_policy import FailurePolicy
from crestgate.limiter.loop_driver import LoopDriver
from crestgate.runtime.clock import Clock
from crestgate.runtime.url_options import REDIS_SCHEMES, Options, redact_url
from crestgate.stores.factory import open_store
from crestgate.stores.lru_table import TableEntry
from crestgate.stores.memory import MemoryStore
from crestgate.stores.port import BatchOutcomes, Request
from crestgate.stores.remote_store import PROBE, RemoteStore

__all__ = ["PicklableMemory", "SavedCounter", "StoreHandle", "WallClock"]

T = TypeVar("T")
RESET_SECONDS = 5.0
"""Timeout of each command of a reset."""
_DELETED_AT_ONCE = 500

SavedCounter = tuple[str, Limit, str, int, int, int, list[tuple[int, int]] | None]
"""A counter of a memory store that is pickled: name, limit, key, time, a, b, and the entries of a log."""


class WallClock:
    """The wall clock at every reading, so that tests which move `time.time` (freezegun, hiro) move the limits, too.

    Where it steps back, no time passes for a counter.
    """

    def ticks(self) -> int:
        return int(time.time() * 1_000_000)

    def wait(self, seconds: float) -> float:
        return seconds


class StoreHandle:
    """The store of a URL, for threads and event loops. It connects when it is first used."""

    def __init__(self, url: str, clock: Clock | None = None) -> None:
        self.url = url
        self.clock = clock or WallClock()
        """What times are counted from that callers see; a server decides by its own clock."""
        try:
            self.store = open_store(url, clock)
        except ConfigError as error:
            raise ConfigurationError(str(error)) from None
        self.backend = Backend(self.store, FailurePolicy("closed", self.store.clock), None)
        self.driver = LoopDriver(self.backend)

    def run(self, steps: Exchange[T]) -> T:
        """Carry out an operation; StoreError when the store fails."""
        try:
            batch = next(steps)
            while True:
                batch = steps.send(self.backend.apply(batch))
        except StopIteration as done:
            result: T = done.value
            return result

    async def run_async(self, steps: Exchange[T]) -> T:
        """The same on an event loop."""
        try:
            batch = next(steps)
            while True:
                batch = steps.send(await self._apply_async(batch))
        except StopIteration as done:
            result: T = done.value
            return result

    def probe_keys(self) -> Sequence[str]:
        return self.store.probe_keys() if isinstance(self.store, RemoteStore) else (PROBE,)

    def delete_all(self) -> int:
        """Delete the counters of the strategies; returns how many there were."""
        if isinstance(self.store, MemoryStore):
            return _empty(self.store)
        if Options(self.url).scheme not in REDIS_SCHEMES:
            raise NotImplementedError(
                f"{redact_url(self.url)!r} cannot be emptied as a whole: clear the limits one by one, or use memory:// "
                "or redis://"
            )
        return _empty_redis(self.url)

    def save(self) -> list[SavedCounter]:
        """The counters of a memory store."""
        store = self.store
        assert isinstance(store, MemoryStore), "only a memory store is pickled"
        with store.mutex:
            return [
                (name, entry.algorithm.limit, key, entry.time, entry.a, entry.b, _entries(entry))
                for name, keys in store.names.items()
                for key, entry in keys.items()
            ]

    def load(self, counters: Sequence[SavedCounter]) -> None:
        """Put saved counters into a new memory store."""
        store = self.store
        assert isinstance(store, MemoryStore)
        with store.mutex:
            now = store.now()
            for name, limit, key, at, a, b, entries in counters:
                log = None if entries is None else ListLog()
                for tick, cost in entries or ():
                    assert log is not None
                    log.append(tick, cost)
                entry = TableEntry(key, build(limit, name), at, a, b, log)
                store.table.insert(entry, entry.algorithm.available_at(entry, now, 0))

    def close(self) -> None:
        self.store.close()

    async def aclose(self) -> None:
        if isinstance(self.store, RemoteStore):
            await self.store.aclose()
        else:
            self.store.close()

    async def _apply_async(self, batch: Sequence[Request]) -> BatchOutcomes:
        driver = self.driver
        if driver.backend.remote is None:
            return await driver.apply(batch)
        coalescer = driver.coalescers.get(asyncio.get_running_loop()) or await driver.open_coalescer()
        future = coalescer.submit(batch)
        try:
            return await future
        except asyncio.CancelledError:
            coalescer.abandon(batch, future)
            raise


class PicklableMemory:
    """A storage in memory is pickled with its counters, as those of `limits` are."""

    handle: StoreHandle

    def __getstate__(self) -> dict[str, Any]:
        state = {name: value for name, value in self.__dict__.items() if name != "handle"}
        return {**state, "saved": (self.handle.url, self.handle.clock, self.handle.save())}

    def __setstate__(self, state: dict[str, Any]) -> None:
        url, clock, counters = state.pop("saved")
        self.__dict__.update(state)
        self.handle = StoreHandle(url, clock)
        self.handle.load(counters)


def _entries(entry: TableEntry) -> list[tuple[int, int]] | None:
    return entry.log.entries() if isinstance(entry.log, ListLog) else None


def _empty(store: MemoryStore) -> int:
    with store.mutex:
        entries = [entry for keys in store.names.values() for entry in keys.values()]
        for entry in entries:
            store.table.remove(entry)
        return len(entries)


def _empty_redis(url: str) -> int:
    """Only the counters of the strategies: what a limiter of Crestgate counts under the same prefix stays."""
    from crestgate.databases.redis_client import FAILURES, describe_error, open_client
    from crestgate.stores.redis.codec import escape

    options = Options(url)
    client, address = open_client(options, RESET_SECONDS)
    tag = b"{*}:" if options.scheme.endswith("+cluster") else b""
    prefix = re.sub(rb"([*?\[\]\\])", rb"\\\1", escape(options.prefix()))
    deleted = 0
    try:
        for name in STRATEGY_NAMES:
            for key in client.scan_iter(match=b"%b:%b%b:*" % (prefix, tag, name.encode()), count=_DELETED_AT_ONCE):
                deleted += client.unlink(key)
    except FAILURES as error:
        raise StoreError(f"{address}: {describe_error(error)}") from None
    finally:
        client.close()
    return deleted
