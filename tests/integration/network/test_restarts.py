"""A server restart while idle fails no check: the first one afterwards succeeds.

Connections are dead then, and Redis has lost the script; neither may fail a check.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Iterator
from uuid import uuid4

import pytest

from crestgate import AsyncLimiter
from integration.network.load_processes import with_options
from integration.network.policy_limiters import KINDS, Kind, breaker_states, open_limiter
from servers.mariadb import MariaDB
from servers.postgres import Postgres
from servers.redis import RedisServer

LIMIT = "1000000/year using fixed_window"
AnyServer = RedisServer | MariaDB | Postgres


@pytest.fixture(scope="module", params=["redis", "mariadb", "postgres"])
def server(request: pytest.FixtureRequest) -> Iterator[AnyServer]:
    make: dict[str, type[AnyServer]] = {"redis": RedisServer, "mariadb": MariaDB, "postgres": Postgres}
    with make[request.param]() as started:
        yield started


def at(server: AnyServer) -> str:
    return with_options(server.url, prefix=uuid4().hex, timeout_ms=5000)


@pytest.mark.parametrize("end", ["stopped", "killed"])
@pytest.mark.parametrize("kind", KINDS)
def test_restart_while_idle(kind: Kind, end: str, server: AnyServer) -> None:
    with open_limiter(kind, at(server), "closed") as caller:
        caller.check_concurrently(20, "key", LIMIT)  # so that several connections are open
        if end == "stopped":
            server.stop()
        else:
            server.kill()
        server.start()
        after = caller.check_concurrently(20, "key", LIMIT)
        assert {check.reason for check in caller.history} == {"ok"}
        assert breaker_states(caller.limiter) == {"closed"}
        before = 0 if isinstance(server, RedisServer) else 20  # Redis has no persistence here
        assert sorted(1_000_000 - check.remaining for check in after) == list(range(before + 1, before + 21))


def test_restart_while_the_loop_is_blocked(server: AnyServer) -> None:
    """The loop was blocked, so it does not know yet that its connections are dead."""

    async def load() -> list[str]:
        async with AsyncLimiter(at(server), on_store_error="closed") as limiter:
            reasons = [d.reason for d in await asyncio.gather(*(limiter.check("key", LIMIT) for _ in range(20)))]
            server.restart()
            return reasons + [(await limiter.check("key", LIMIT)).reason for _ in range(8)]

    assert set(asyncio.run(load())) == {"ok"}


@pytest.mark.parametrize("kind", KINDS)
def test_restart_under_load(kind: Kind, server: AnyServer) -> None:
    """Checks recover after a short time without restarting the limiter."""
    with open_limiter(kind, with_options(server.url, prefix=uuid4().hex, timeout_ms=500), "open") as caller:
        caller.check_concurrently(20, "key", LIMIT)
        server.stop()
        caller.check_concurrently(20, "key", LIMIT)
        server.start()
        deadline = time.monotonic() + 3.0
        while caller.check("key", LIMIT).reason != "ok":
            assert time.monotonic() < deadline
            time.sleep(0.02)
        assert {check.reason for check in caller.check_concurrently(20, "key", LIMIT)} == {"ok"}
