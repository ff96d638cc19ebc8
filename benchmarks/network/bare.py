"""What a round trip costs at least: redis-py and a script of one key that counts, and nothing around it."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from benchmarks.network.entry import Contender, Entry

__all__ = ["bare", "bare_threads"]

SCRIPT = """\
local count = redis.call('INCR', KEYS[1])
if count == 1 then redis.call('EXPIRE', KEYS[1], ARGV[1]) end
return count
"""
DAY = 86_400


async def bare(entry: Entry) -> Contender:
    from redis.asyncio import Redis

    client = Redis.from_url(entry.store)
    return _contender(entry, client.evalsha, await client.script_load(SCRIPT))


def bare_threads(entry: Entry) -> Contender:
    from redis import Redis

    client = Redis.from_url(entry.store)
    return _contender(entry, client.evalsha, str(client.script_load(SCRIPT)))


def _contender(entry: Entry, evalsha: Callable[..., Any], script: str) -> Contender:
    space, amount = entry.space, entry.amount

    def check(key: str) -> Any:
        return evalsha(script, 1, f"{space}:{key}", DAY)

    return Contender(check, lambda count: 0 < count <= amount)
