"""One server of each kind for all tests, started when the first test asks for it and stopped at the end.

To use servers that run already, set `CRESTGATE_TEST_REDIS_URL` and the like. A server that is neither configured nor
installed is an error, never a skip.

`--no-servers` skips the tests that would start one: `make quick` needs none.

`report` collects what tests measure (such as over-admission, or how long others waited). The figures are printed
at the end of the run, also when all tests pass.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path

import pytest
from hypothesis import HealthCheck, settings

from integration.service.service_process import Service
from servers import machine
from servers.mariadb import MariaDB, MariaDBPair
from servers.postgres import Postgres
from servers.process import GivenServer
from servers.redis import RedisCluster, RedisSentinels, RedisServer
from stalls import Stalls

_figures: list[str] = []

# The duration of an example means nothing on a machine with other load.
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
    """Starts services in the test's folder, and stops them after the test."""
    with ExitStack() as stack:

        def start(folder: Path = tmp_path, **options: object) -> Service:
            return stack.enter_context(Service(folder, **options))  # type: ignore[arg-type]

        yield start


@pytest.fixture
def stalls() -> Iterator[Stalls]:
    """Subtracts the time in which this process did not run from measured durations."""
    with Stalls() as watching:
        yield watching


@pytest.fixture
def report(request: pytest.FixtureRequest) -> Callable[[str], None]:
    """Collects a figure to print at the end."""

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
