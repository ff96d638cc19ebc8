"""One server of each kind for all tests, started when the first test asks for it and stopped at the end.

Whoever has servers already names them: `HEADGATE_TEST_REDIS_URL`, and its like. A server that is neither named nor
installed is an error, never a skip.
"""

from __future__ import annotations

import os
from collections.abc import Iterator

import pytest

from servers.mariadb import MariaDB, MariaDBPair
from servers.postgres import Postgres
from servers.process import GivenServer
from servers.redis import RedisCluster, RedisSentinels, RedisServer


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


@pytest.fixture(scope="session")
def redis_cluster() -> Iterator[RedisCluster]:
    with RedisCluster() as started:
        yield started


@pytest.fixture(scope="session")
def redis_sentinels() -> Iterator[RedisSentinels]:
    with RedisSentinels() as started:
        yield started


@pytest.fixture(scope="session")
def mariadb() -> Iterator[MariaDB | GivenServer]:
    if server := given("HEADGATE_TEST_MYSQL_URL"):
        yield server
    else:
        with MariaDB() as started:
            yield started


@pytest.fixture(scope="session")
def mariadb_pair() -> Iterator[MariaDBPair]:
    with MariaDBPair() as started:
        yield started


@pytest.fixture(scope="session")
def postgres() -> Iterator[Postgres | GivenServer]:
    if server := given("HEADGATE_TEST_POSTGRES_URL"):
        yield server
    else:
        with Postgres() as started:
            yield started
