"""A server restart while idle costs no check: the first one afterwards is answered.

Connections are dead then, and a Redis has lost the script; neither may fail a check.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Iterator
from uuid import uuid4

import pytest

from crestgate import AsyncLimiter
from integration.network.crew import with_options
from integration.network.victims import KINDS, Kind, breaker_states, victim
from servers.mariadb import MariaDB
from servers.postgres import Postgres
from servers.redis import RedisServer

LIMIT = "1000000/year using fixed_window"
AnyServer = RedisServer | MariaDB | Postgres


@pytest.fixture(scope="module", params=["redis", "mariadb", "postgres"])
def own(request: pytest.FixtureRequest) -> Iterator[AnyServer]:
    make: dict[str, type[AnyServer]] = {"redis": RedisServer, "mariadb": MariaDB, "postgres": Postgres}
    with make[request.param]() as started:
        yield started


def at(server: AnyServer) -> str:
    return with_options(server.url, prefix=uuid4().hex, timeout_ms=5000)


@pytest.mark.parametrize("end", ["stopped", "killed"])
@pytest.mark.parametrize("kind", KINDS)
def test_restart_while_idle(kind: Kind, end: str, own: AnyServer) -> None:
    with victim(kind, at(own), "closed") as one:
        one.at_once(20, "key", LIMIT)  # so that several connections are kept
        if end == "stopped":
            own.stop()
        else:
            own.kill()
        own.start()
        after = one.at_once(20, "key", LIMIT)
        assert {check.reason for check in one.history} == {"ok"}
        assert breaker_states(one.limiter) == {"closed"}
        before = 0 if isinstance(own, RedisServer) else 20  # it keeps nothing on disk
        assert sorted(1_000_000 - check.remaining for check in after) == list(range(before + 1, before + 21))


def test_restart_while_the_loop_is_blocked(own: AnyServer) -> None:
    """The loop was blocked, so it does not know yet that its connections are dead."""

    async def load() -> list[str]:
        async with AsyncLimiter(at(own), on_store_error="closed") as limiter:
            reasons = [d.reason for d in await asyncio.gather(*(limiter.check("key", LIMIT) for _ in range(20)))]
            own.restart()
            return reasons + [(await limiter.check("key", LIMIT)).reason for _ in range(8)]

    assert set(asyncio.run(load())) == {"ok"}


@pytest.mark.parametrize("kind", KINDS)
def test_restart_under_load(kind: Kind, own: AnyServer) -> None:
    """It takes a moment, and then all is as before; nobody has restarted the limiter."""
    with victim(kind, with_options(own.url, prefix=uuid4().hex, timeout_ms=500), "open") as one:
        one.at_once(20, "key", LIMIT)
        own.stop()
        one.at_once(20, "key", LIMIT)
        own.start()
        deadline = time.monotonic() + 3.0
        while one.check("key", LIMIT).reason != "ok":
            assert time.monotonic() < deadline
            time.sleep(0.02)
        assert {check.reason for check in one.at_once(20, "key", LIMIT)} == {"ok"}
