"""A worker's numbers on their way out: to its file on the board, and from all files into an answer.

The tally belongs to the event loop, so what it has counted is copied there; files are written and read in threads. Who
asks for the sum has its own worker's numbers written first, and gets what is in the files: see board.py.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING

from headgate import __version__
from headgate.service.observe.board import Board, Seen
from headgate.service.observe.last_uses import LastUses
from headgate.service.observe.metrics import BREAKER_STATES, exposition
from headgate.service.observe.shown import Keys, shown_key
from headgate.service.observe.snapshot import FRESH_US, Snapshot, merged
from headgate.service.observe.tally import Tally

if TYPE_CHECKING:
    from headgate.embedded.async_limiter import AsyncLimiter

__all__ = ["Publisher"]

SEEN_EVERY_US = 2_000_000
"""Who was seen lately is written this often at most, because there may be much of it."""
_log = logging.getLogger("headgate")


class Publisher:
    """Publishes what one worker has counted. All of it is called on the worker's event loop."""

    def __init__(
        self,
        tally: Tally,
        board: Board,
        limiter: AsyncLimiter,
        *,
        prefix: str,
        keys: Keys,
        last_uses: LastUses | None = None,
        totals: Callable[[], Mapping[str, int]] = dict,
    ) -> None:
        """`keys` says how keys are shown; `totals` gives further counters of this process by name, such as those of
        the webhook."""
        self._tally = tally
        self._board = board
        self._limiter = limiter
        self._prefix = prefix
        self._keys = keys
        self._totals = totals
        self._last_uses = last_uses
        self._rules_known = limiter.catalog.current
        self._seen_at_us = 0

    def snapshot(self, now_us: int) -> Snapshot:
        """What was counted until now."""
        limiter = self._limiter
        rules = limiter.catalog.current
        if rules is not self._rules_known:
            self._rules_known = rules
            self._tally.cached("rules", False)
        totals = {
            "store_errors": limiter.store_failures,
            **limiter.store_counts,
            "rules_reload_failures": limiter.catalog.failures,
            **self._totals(),
        }
        breakers = {server: BREAKER_STATES[state] for server, state in limiter.breakers().items()}
        taken = self._tally.snapshot(now_us, totals, len(rules.rules), breakers)
        taken.remaining = [(rule, shown_key(key, self._keys), left, at) for rule, key, left, at in taken.remaining]
        return taken

    async def publish(self, now_us: int) -> None:
        """Write this worker's numbers: to be called about every second."""
        await asyncio.to_thread(self._board.publish, self.snapshot(now_us))
        if now_us - self._seen_at_us >= SEEN_EVERY_US:
            await self._publish_seen(now_us)
        if self._last_uses is not None:
            uses = self._tally.take_uses()
            if uses or self._last_uses.changed:
                await asyncio.to_thread(self._last_uses.publish, uses)

    async def exposition(self, now_us: int, accept: str = "") -> tuple[bytes, str]:
        """All workers' numbers for Prometheus, and the content type."""
        mine = self.snapshot(now_us)
        return await asyncio.to_thread(self._exposition, mine, now_us, accept)

    def close(self, now_us: int) -> None:
        """Write the last numbers of a worker that stops."""
        if self._last_uses is not None:
            self._last_uses.note(self._tally.take_uses())
        self._board.publish(self.snapshot(now_us))

    def _exposition(self, mine: Snapshot, now_us: int, accept: str) -> tuple[bytes, str]:
        try:
            self._board.publish(mine)
        except (
            OSError
        ) as error:  # a full disk, say: what was written before is still true, and this is when people look
            _log.warning("the numbers of this worker cannot be written: %s", error)
        snapshots = self._board.snapshots()
        workers = sum(1 for one in snapshots if one.at_us >= now_us - FRESH_US)
        return exposition(merged(snapshots, now_us), self._prefix, __version__, workers, accept)

    async def _publish_seen(self, now_us: int) -> None:
        keys, clients = self._tally.keys, self._tally.clients
        if keys.changed or clients.changed:
            keys.changed = clients.changed = False
            self._seen_at_us = now_us
            await asyncio.to_thread(self._board.publish_seen, Seen(dict(keys.last_us), dict(clients.last_us)))
