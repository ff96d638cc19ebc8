"""Sweeps the usage history while the service runs: soon after the start, and every hour.

A worker need not live for an hour, so there is a sweep after the start, too. It comes some seconds later, in a thread,
and a few rows at a time, so that nobody waits for it; at a random moment, because nodes that share a database often
start together. One worker of a node sweeps.
"""

from __future__ import annotations

import asyncio
import logging
import time
from random import uniform
from typing import TYPE_CHECKING

from headgate.errors import HeadgateError, StoreClosed

if TYPE_CHECKING:
    from headgate.history.port import History

__all__ = ["sweep_history"]

FIRST_SECONDS = (1.0, 10.0)
"""The first sweep is between so many seconds after the start."""
EVERY_SECONDS = (3300.0, 3900.0)
_log = logging.getLogger("headgate")


async def sweep_history(
    history: History, first: tuple[float, float] = FIRST_SECONDS, every: tuple[float, float] = EVERY_SECONDS
) -> None:
    """Sweep until cancelled. What fails is logged, and tried again the next time."""
    await asyncio.sleep(uniform(*first))  # noqa: S311 - nothing secret
    while True:
        try:
            await asyncio.to_thread(history.sweep, time.time_ns() // 1000)
        except StoreClosed:
            return
        except (HeadgateError, OSError) as error:
            _log.warning("the usage history could not be swept: %s", error)
        except Exception:  # noqa: BLE001 - whatever it is, the next round must come
            _log.exception("the usage history could not be swept")
        await asyncio.sleep(uniform(*every))  # noqa: S311 - nothing secret
