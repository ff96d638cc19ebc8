"""Deletes expired usage history and audit entries: soon after the start, and every hour.

A worker may not live for an hour, hence the first sweep. It runs some seconds after the start, in a thread and a few
rows at a time, so that nothing waits for it; at a random moment, because nodes that share a database often start
together. One worker of a node sweeps.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Callable
from random import uniform
from typing import TYPE_CHECKING

from crestgate.errors import CrestgateError, StoreClosedError

if TYPE_CHECKING:
    from crestgate.history.port import History
    from crestgate.limiter.reservation_access import ReservationAccess
    from crestgate.rules.port import Repository

__all__ = ["purge_rules", "sweep_history", "sweep_reservations"]

FIRST_DELAY_SECONDS = (1.0, 10.0)
"""Range of the delay before the first sweep."""
INTERVAL_SECONDS = (3300.0, 3900.0)
_log = logging.getLogger("crestgate")


async def sweep_history(
    history: History, first: tuple[float, float] = FIRST_DELAY_SECONDS, every: tuple[float, float] = INTERVAL_SECONDS
) -> None:
    """Sweep until cancelled. Failures are logged, and retried the next time."""
    await _repeat(lambda: history.sweep(time.time_ns() // 1000), "the usage history", first, every)


async def purge_rules(
    repository: Repository,
    first: tuple[float, float] = FIRST_DELAY_SECONDS,
    every: tuple[float, float] = INTERVAL_SECONDS,
) -> None:
    """The same for what the rule database no longer retains, such as old audit entries, when nobody writes to it."""
    await _repeat(repository.purge, "the rule database", first, every)


async def sweep_reservations(
    reservations: ReservationAccess, first: tuple[float, float] = (0.5, 2.0), every: tuple[float, float] = (5.0, 10.0)
) -> None:
    """Open the book of reservations that is there already: from then on a thread sweeps it. A service that was
    restarted must give back what has ended meanwhile, although nobody reserves."""
    await _repeat(reservations.open_existing, "the reservations", first, every)


async def _repeat(
    action: Callable[[], None], target: str, first: tuple[float, float], every: tuple[float, float]
) -> None:
    await asyncio.sleep(uniform(*first))  # noqa: S311 - nothing secret
    while True:
        try:
            await asyncio.to_thread(action)
        except StoreClosedError:
            return
        except (CrestgateError, OSError) as error:
            _log.warning("cannot sweep %s: %s", target, error)
        except Exception:  # noqa: BLE001 - the next sweep must run
            _log.exception("unhandled error in the sweep of %s", target)
        await asyncio.sleep(uniform(*every))  # noqa: S311 - nothing secret
