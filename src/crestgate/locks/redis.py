"""Locks in Redis or Valkey: redis-py's own Lock, and a record of the latest lease, which fences writes.

redis-py's Lock is a key that expires (`SET … NX PX`) and that only its holder deletes. It has no versions. So a new
holder also writes a record, a hash of version and holder, by a script that first checks that the lock is still its
own. A guarded write is a transaction (MULTI) that WATCHes the record: Redis executes it only if the lock was not taken
since the record was compared.

The record expires 90 days after the lock was last taken; the next version then starts from the server's clock, which
is higher. In a cluster all keys of one prefix have the same hash tag, `{prefix}`: a transaction cannot span slots, so
all keys written under these locks must have it too.

A promoted replica may lack the latest leases, so that two clients hold one lock. Only one of them can write: the record
on the new master names one holder at most.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager, suppress
from typing import Any

from redis import Redis, RedisCluster
from redis.client import Pipeline
from redis.exceptions import LockNotOwnedError, ResponseError, WatchError
from redis.lock import Lock

from crestgate.databases.names import quoted, short_name
from crestgate.databases.redis_client import FAILURES, describe_error, node_for_key, release_pipeline
from crestgate.errors import StoreError
from crestgate.locks.lock import Locks, lease_lost
from crestgate.locks.port import Lease

__all__ = ["RedisLocks"]

RECORD_TTL_MS = 90 * 24 * 3600 * 1000
_RECORD_LEASE = """
if redis.call('GET', KEYS[1]) ~= ARGV[1] then
  return 0
end
local time = redis.call('TIME')
local last = tonumber(redis.call('HGET', KEYS[2], 'version') or 0)
local version = string.format('%.0f', math.max(last + 1, time[1] * 1000000 + time[2]))
redis.call('HSET', KEYS[2], 'version', version, 'holder', ARGV[1])
redis.call('PEXPIRE', KEYS[2], ARGV[2])
return version
"""


class RedisLocks(Locks[Pipeline]):
    """Locks on a server, a Sentinel master, or a cluster."""

    def __init__(self, client: Redis | RedisCluster, address: str, *, prefix: str) -> None:
        super().__init__(address)
        self.client: Any = client  # untyped: redis-py's types mix sync and async replies
        self.tag = "{" + quoted(prefix) + "}"
        """Prefix of the locks' keys; in a cluster, of all keys that are written under them."""
        self._record_lease = self.client.register_script(_RECORD_LEASE)
        with self._map_errors():
            self.client.ping()

    def attempt(self, name: str, holder: str, seconds: float) -> int | None:
        with self._map_errors():
            lock = self._lock(name, seconds)
            if not lock.acquire(blocking=False, token=holder):
                return None
            version = self._record_lease(keys=[lock.name, self._key("lease", name)], args=[holder, RECORD_TTL_MS])
            return int(version) or None  # 0: the lease has expired already

    def release(self, lease: Lease) -> None:
        with self._map_errors(), suppress(LockNotOwnedError):  # it has expired, and another holder may have it
            self._lock(lease.name).do_release(lease.holder)

    @contextmanager
    def guarded(self, lease: Lease) -> Iterator[Pipeline]:
        """A pipeline that collects commands, which are executed together at the end of the block."""
        self.check_open()
        record = self._key("lease", lease.name)
        pipeline = self._pipeline()
        try:
            with self._map_errors():
                pipeline.watch(record)
                latest = pipeline.hmget(record, "version", "holder")
            if latest != [str(lease.version).encode(), lease.holder.encode()]:
                raise lease_lost(lease)
            pipeline.multi()
            yield pipeline
            with self._map_errors("; the outcome of the write is unknown"):
                try:
                    pipeline.execute()
                except WatchError as error:
                    if isinstance(error.__context__, FAILURES):  # redis-py raises it for a lost connection, too
                        pipeline.watching = False
                        raise error.__context__ from None
                    raise lease_lost(lease) from None
        finally:
            release_pipeline(pipeline)

    def close(self) -> None:
        super().close()
        self.client.close()

    def _pipeline(self) -> Any:
        return node_for_key(self.client, self.tag).pipeline(transaction=True)

    def _lock(self, name: str, seconds: float | None = None) -> Lock:
        key: Any = self._key("lock", name)  # bytes work too, despite Lock's type
        return Lock(self.client, key, timeout=seconds, thread_local=False)

    def _key(self, kind: str, name: str) -> bytes:
        return f"{self.tag}:{kind}:".encode() + short_name(name)

    @contextmanager
    def _map_errors(self, suffix: str = "") -> Iterator[None]:
        """Map redis-py's errors to StoreError."""
        try:
            yield
        except FAILURES as error:
            replied = isinstance(error, ResponseError)
            raise StoreError(f"{self.address}: {describe_error(error)}{'' if replied else suffix}") from None
