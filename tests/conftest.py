"""One server of each kind for all tests, started when the first test asks for it and stopped at the end.

Whoever has servers already names them: `HEADGATE_TEST_REDIS_URL`, and its like. A server that is neither named nor
installed is an error, never a skip.
"""

from __future__ import annotations

import os
from collections.abc import Iterator

import pytest

from servers.process import GivenServer
from servers.redis import RedisServer


def given(variable: str) -> GivenServer | None:
    url = os.environ.get(variable)
    return GivenServer(url) if url else None


@pytest.fixture(scope="session")
def redis_server() -> Iterator[RedisServer | GivenServer]:
    if server := given("HEADGATE_TEST_REDIS_URL"):
        yield server
    else:
        with RedisServer() as started:
            yield started
