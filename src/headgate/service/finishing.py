"""Work that is done to its end, whoever goes meanwhile.

A call over gRPC is cancelled when its deadline passes or its caller goes. Some steps belong together all the same: what
was taken for a denied request is given back, and what the audit log says was forgotten is forgotten.
"""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine
from typing import Any, TypeVar

__all__ = ["to_the_end"]

T = TypeVar("T")

_under_way: set[asyncio.Task[Any]] = set()
"""An event loop does not hold its tasks: somebody has to, or they may be gone before they are done."""


async def to_the_end(work: Coroutine[Any, Any, T]) -> T:
    """What comes of some work. It goes on when whoever waits for it here is cancelled."""
    task = asyncio.get_running_loop().create_task(work)
    _under_way.add(task)
    task.add_done_callback(_under_way.discard)
    return await asyncio.shield(task)
