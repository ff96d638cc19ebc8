"""A separate Redis for tests that reconfigure it, flush its scripts or count its commands."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
import redis

from servers.redis import RedisServer


@pytest.fixture(scope="package")
def server() -> Iterator[RedisServer]:
    with RedisServer() as started:
        yield started


@pytest.fixture
def client(server: RedisServer) -> Iterator[redis.Redis]:
    """A plain client, the only one, of an empty server."""
    with redis.Redis.from_url(server.url) as connected:
        connected.client_kill_filter(_type="normal", skipme=True)
        connected.flushall()
        yield connected
