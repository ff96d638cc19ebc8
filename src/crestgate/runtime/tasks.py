"""Coroutines that run to completion although the caller is cancelled.

A gRPC call is cancelled when its deadline passes or the client disconnects. Some steps must happen together all the
same, such as a refund for a denied request, or the reset that the audit log has announced.
"""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine
from typing import Any, TypeVar

__all__ = ["run_to_completion"]

T = TypeVar("T")

_running: set[asyncio.Task[Any]] = set()
"""Strong references: an event loop only holds weak ones, so a task could be collected before it is done."""


async def run_to_completion(work: Coroutine[Any, Any, T]) -> T:
    """Await a coroutine; it continues if the caller is cancelled."""
    task = asyncio.get_running_loop().create_task(work)
    _running.add(task)
    task.add_done_callback(_running.discard)
    return await asyncio.shield(task)
