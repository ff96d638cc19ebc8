"""Older FastAPI ignores marked coroutine functions, and calls such a dependency in a thread. It counts there too."""

from __future__ import annotations

import asyncio
from functools import partial

import pytest
from anyio import to_thread
from fastapi import Response
from starlette.requests import HTTPConnection

from crestgate import AsyncLimiter, RateLimitExceeded
from crestgate.integrations.fastapi import limit
from crestgate.testing import FakeClock


def test_dependency_called_in_a_thread_is_checked_on_the_loop() -> None:
    five = limit("1/minute", limiter=AsyncLimiter("memory://", clock=FakeClock(1_700_000_000)))
    response = Response()

    async def called() -> None:
        scope = {"type": "http", "method": "GET", "path": "/", "headers": [], "client": ("10.0.0.1", 5)}
        asking = partial(five, connection=HTTPConnection(scope), response=response)
        await to_thread.run_sync(asking)

    asyncio.run(called())
    assert response.headers["x-ratelimit-remaining"] == "0"
    with pytest.raises(RateLimitExceeded):
        asyncio.run(called())
