"""Reservations in Redis or Valkey.

    {cg}:reservation:ID             a hash: owner, version, due, open, body
    {cg}:reservations               a sorted set of all ids, by when they must be swept
    {cg}:reservations:OWNER         a set of the ids that are open; OWNER is a digest

A change is one script, so it is whole or not there. All keys have the tag of the prefix, so that a cluster keeps them
in one slot. They expire some days after their last change, in case that nobody sweeps any more.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from hashlib import sha256
from typing import Any

from redis import Redis, RedisCluster

from crestgate.databases.names import quoted
from crestgate.databases.redis_client import FAILURES, describe_error
from crestgate.errors import StoreError
from crestgate.reservations.port import ReservationBook, ReservationRow

__all__ = ["RedisBook"]

LOST_IDS = 100
"""How many ids are looked at when an owner has too many."""
KEY_TTL_MS = 4 * 24 * 3600 * 1000
"""Longer than a reservation may last, and than it is kept after its end."""

_WRITE = """
local before = tonumber(redis.call('HGET', KEYS[1], 'version') or 0)
local version = tonumber(ARGV[2])
if before ~= version - 1 then return 0 end
if before == 0 and redis.call('SCARD', KEYS[3]) >= tonumber(ARGV[7]) then return -1 end
redis.call('HSET', KEYS[1], 'version', ARGV[2], 'due', ARGV[3], 'open', ARGV[4], 'owner', ARGV[5], 'body', ARGV[6])
redis.call('ZADD', KEYS[2], ARGV[3], ARGV[1])
if ARGV[4] == '1' then redis.call('SADD', KEYS[3], ARGV[1]) else redis.call('SREM', KEYS[3], ARGV[1]) end
for i = 1, 3 do redis.call('PEXPIRE', KEYS[i], ARGV[8]) end
return 1
"""
_DELETE = """
if redis.call('HGET', KEYS[1], 'version') ~= ARGV[2] then return 0 end
redis.call('DEL', KEYS[1])
redis.call('ZREM', KEYS[2], ARGV[1])
redis.call('SREM', KEYS[3], ARGV[1])
return 1
"""


class RedisBook(ReservationBook):
    """The rows under `prefix` on a server, a Sentinel master, or a cluster."""

    def __init__(self, client: Redis | RedisCluster, address: str, *, prefix: str) -> None:
        self._client: Any = client  # untyped: redis-py's types mix sync and async replies
        self._address = address
        self._tag = "{" + quoted(prefix) + "}"
        self._write = self._client.register_script(_WRITE)
        self._delete = self._client.register_script(_DELETE)

    def add(self, row: ReservationRow, max_open: int) -> bool:
        return self._put(row, max_open) == 1 or (self._forget_lost(row) and self._put(row, max_open) == 1)

    def find(self, reservation_id: str) -> ReservationRow | None:
        with self._map_errors():
            fields = self._client.hgetall(self._key(reservation_id))
        return _row(reservation_id, fields)

    def replace(self, row: ReservationRow) -> bool:
        return self._put(row, 0) == 1

    def delete(self, row: ReservationRow) -> bool:
        with self._map_errors():
            return bool(self._delete(keys=self._keys(row), args=[row.id, row.version]) == 1)

    def due(self, now_us: int, count: int) -> list[ReservationRow]:
        rows: list[ReservationRow] = []
        with self._map_errors():
            for raw_id in self._client.zrangebyscore(self._due, "-inf", now_us, start=0, num=count):
                reservation_id = raw_id.decode()
                row = _row(reservation_id, self._client.hgetall(self._key(reservation_id)))
                if row is None:
                    self._client.zrem(self._due, raw_id)
                else:
                    rows.append(row)
        return rows

    def close(self) -> None:
        self._client.close()

    def _forget_lost(self, row: ReservationRow) -> bool:
        """Whether some of an owner's open reservations are not there any more, which it then forgets: a server that is
        short of memory, or that was not swept for days, has deleted them, and nobody can settle them."""
        open_ids = self._keys(row)[2]
        with self._map_errors():
            ids = self._client.srandmember(open_ids, LOST_IDS)
            pipeline = self._client.pipeline(transaction=False)
            for one in ids:
                pipeline.hget(self._key(one.decode()), "version")
            lost = [one for one, version in zip(ids, pipeline.execute(), strict=True) if version is None]
            return bool(lost) and bool(self._client.srem(open_ids, *lost))

    def _put(self, row: ReservationRow, max_open: int) -> int:
        args: list[str | int] = [
            row.id,
            row.version,
            row.due_us,
            int(row.is_open),
            row.owner,
            row.body,
            max_open,
            KEY_TTL_MS,
        ]
        with self._map_errors():
            return int(self._write(keys=self._keys(row), args=args))

    @property
    def _due(self) -> str:
        return f"{self._tag}:reservations"

    def _key(self, reservation_id: str) -> str:
        return f"{self._tag}:reservation:{reservation_id}"

    def _keys(self, row: ReservationRow) -> list[str]:
        owner = sha256(row.owner.encode("utf-8", "surrogatepass")).hexdigest()[:32]
        return [self._key(row.id), self._due, f"{self._due}:{owner}"]

    @contextmanager
    def _map_errors(self) -> Iterator[None]:
        try:
            yield
        except FAILURES as error:
            raise StoreError(f"{self._address}: {describe_error(error)}") from None


def _row(reservation_id: str, fields: dict[bytes, bytes]) -> ReservationRow | None:
    if b"body" not in fields:
        return None
    return ReservationRow(
        reservation_id,
        fields[b"owner"].decode(),
        int(fields[b"version"]),
        int(fields[b"due"]),
        fields[b"open"] == b"1",
        fields[b"body"].decode("ascii"),
    )
