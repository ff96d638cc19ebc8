"""Locks in Redis or Valkey: redis-py's own Lock, and beside it a record of who took it last, which guards writes.

redis-py's Lock is a key that expires (`SET … NX PX`) and that only its holder deletes. It has no versions. So who
has just taken it also writes a record, a hash of version and holder, by a script that first looks whether the lock
is still its own. A guarded write is a transaction (MULTI) that WATCHes the record: Redis carries it out only if
nobody has taken the lock since the record was compared.

The record expires 90 days after the lock was last taken; the next version then starts from the server's clock, which
is higher. In a cluster all keys of one prefix have the same hash tag, `{prefix}`: a transaction cannot span slots, so
whatever is written under these locks must have it too.

A replica that is promoted may not have heard of the last takings: two may then hold one lock. Only one of them can
write: the record on the new master names one holder at most.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager, suppress
from typing import Any

from redis import Redis, RedisCluster
from redis.client import Pipeline
from redis.exceptions import LockNotOwnedError, ResponseError, WatchError
from redis.lock import Lock

from headgate.errors import StoreError
from headgate.locks.holding import Locks, lost
from headgate.locks.names import quoted, short_name
from headgate.locks.port import Lease
from headgate.locks.redis_pipeline import FAILURES, let_go, node_of, told

__all__ = ["RedisLocks"]

RECORD_MS = 90 * 24 * 3600 * 1000
_TAKEN = """
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
    """Locks on a server, a master that Sentinels name, or a cluster."""

    def __init__(self, client: Redis | RedisCluster, address: str, *, prefix: str) -> None:
        super().__init__(address)
        self.client: Any = client  # whose types tell sync and async answers apart only at run time
        self.tag = "{" + quoted(prefix) + "}"
        """What begins the keys of the locks, and in a cluster must begin those of what is written under them."""
        self._taken = self.client.register_script(_TAKEN)
        with self._ours():
            self.client.ping()

    def attempt(self, name: str, holder: str, seconds: float) -> int | None:
        with self._ours():
            lock = self._lock(name, seconds)
            if not lock.acquire(blocking=False, token=holder):
                return None
            version = self._taken(keys=[lock.name, self._key("lease", name)], args=[holder, RECORD_MS])
            return int(version) or None  # 0: the lease ended before we came to say so

    def release(self, lease: Lease) -> None:
        with self._ours(), suppress(LockNotOwnedError):  # it ended by itself, and may be another's by now
            self._lock(lease.name).do_release(lease.holder)

    @contextmanager
    def guarded(self, lease: Lease) -> Iterator[Pipeline]:
        """A pipeline that collects commands. They are carried out when the block ends well, all together."""
        self.check_open()
        record = self._key("lease", lease.name)
        pipeline = self._pipeline()
        try:
            with self._ours():
                pipeline.watch(record)
                found = pipeline.hmget(record, "version", "holder")
            if found != [str(lease.version).encode(), lease.holder.encode()]:
                raise lost(lease)
            pipeline.multi()
            yield pipeline
            with self._ours("; whether it has written is not known"):
                try:
                    pipeline.execute()
                except WatchError as error:
                    if isinstance(error.__context__, FAILURES):  # redis-py calls a lost connection by this name too
                        pipeline.watching = False
                        raise error.__context__ from None
                    raise lost(lease) from None
        finally:
            let_go(pipeline)

    def close(self) -> None:
        super().close()
        self.client.close()

    def _pipeline(self) -> Any:
        return node_of(self.client, self.tag).pipeline(transaction=True)

    def _lock(self, name: str, seconds: float | None = None) -> Lock:
        key: Any = self._key("lock", name)  # bytes are fine too, whatever Lock's type says
        return Lock(self.client, key, timeout=seconds, thread_local=False)

    def _key(self, kind: str, name: str) -> bytes:
        return f"{self.tag}:{kind}:".encode() + short_name(name)

    @contextmanager
    def _ours(self, doubt: str = "") -> Iterator[None]:
        """Errors of Redis become ours."""
        try:
            yield
        except FAILURES as error:
            answered = isinstance(error, ResponseError)
            raise StoreError(f"{self.address}: {told(error)}{'' if answered else doubt}") from None
