"""One server of each kind for all tests, started when the first test asks for it and stopped at the end.

Whoever has servers already names them: `HEADGATE_TEST_REDIS_URL`, and its like. A server that is neither named nor
installed is an error, never a skip.

What a test measures (how much was admitted too much, how long others waited) is worth seeing also when all is well:
`report` takes such a figure, and it is shown at the end of the run.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path

import pytest

from integration.service.serving import Service
from servers.mariadb import MariaDB, MariaDBPair
from servers.postgres import Postgres
from servers.process import GivenServer
from servers.redis import RedisCluster, RedisSentinels, RedisServer

_figures: list[str] = []


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


@pytest.fixture
def serve(tmp_path: Path) -> Iterator[Callable[..., Service]]:
    """Starts services of a test's own, in its folder, and sees to it that none outlives it."""
    with ExitStack() as stack:

        def start(folder: Path = tmp_path, **options: object) -> Service:
            return stack.enter_context(Service(folder, **options))  # type: ignore[arg-type]

        yield start


@pytest.fixture
def report(request: pytest.FixtureRequest) -> Callable[[str], None]:
    """Takes a figure to be shown at the end."""

    def take(figure: str) -> None:
        _figures.append(f"{request.node.name}: {figure}")

    return take


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    if _figures:
        terminalreporter.section("figures")
        for figure in _figures:
            terminalreporter.write_line(figure)
