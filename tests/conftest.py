"""One server of each kind for all tests, started when the first test asks for it and stopped at the end.

Whoever has servers already names them: `CRESTGATE_TEST_REDIS_URL`, and its like. A server that is neither named nor
installed is an error, never a skip.

`--no-servers` skips the tests that would start one: `make quick` needs none.

What a test measures (how much was admitted too much, how long others waited) is worth seeing also when all is well:
`report` takes such a figure, and it is shown at the end of the run.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path

import pytest
from hypothesis import HealthCheck, settings

from integration.service.serving import Service
from servers import machine
from servers.mariadb import MariaDB, MariaDBPair
from servers.postgres import Postgres
from servers.process import GivenServer
from servers.redis import RedisCluster, RedisSentinels, RedisServer
from stalls import Stalls

_figures: list[str] = []

# How long an example takes says nothing on a machine that does other work, too.
settings.register_profile("crestgate", deadline=None, suppress_health_check=[HealthCheck.too_slow])
settings.load_profile("crestgate")


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--no-servers", action="store_true", help="skip tests that start Redis, MariaDB or PostgreSQL")


def pytest_configure(config: pytest.Config) -> None:
    machine.may_start_servers = not config.getoption("--no-servers")


def given(variable: str) -> GivenServer | None:
    url = os.environ.get(variable)
    return GivenServer(url) if url else None


@pytest.fixture(scope="session")
def redis_server() -> Iterator[RedisServer | GivenServer]:
    if server := given("CRESTGATE_TEST_REDIS_URL"):
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
    if server := given("CRESTGATE_TEST_MYSQL_URL"):
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
    if server := given("CRESTGATE_TEST_POSTGRES_URL"):
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
def stalls() -> Iterator[Stalls]:
    """Takes the time that the machine gave to others out of what a test has timed."""
    with Stalls() as watching:
        yield watching


@pytest.fixture
def report(request: pytest.FixtureRequest) -> Callable[[str], None]:
    """Takes a figure to be shown at the end."""

    def take(figure: str) -> None:
        request.node.user_properties.append(("figure", f"{request.node.name}: {figure}"))

    return take


def pytest_runtest_logreport(report: pytest.TestReport) -> None:
    if report.when == "teardown":
        _figures.extend(str(value) for name, value in report.user_properties if name == "figure")


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    if _figures:
        terminalreporter.section("figures")
        for figure in _figures:
            terminalreporter.write_line(figure)
