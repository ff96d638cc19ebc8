"""What the tests of stores across a network share: processes that put load on them, and a place for figures.

What such a test measures (how much was admitted too much, how long a check took) is worth seeing also when all is
well. It is shown at the end of the run.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from uuid import uuid4

import pytest

from integration.network.crew import Crew
from integration.network.sites import Site
from servers.mariadb import MariaDB
from servers.proxy import CuttingProxy
from servers.redis import RedisServer

_figures: list[str] = []


@pytest.fixture(scope="session")
def eight(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Crew]:
    with Crew(8, tmp_path_factory.mktemp("histories")) as crew:
        yield crew


@pytest.fixture
def crew(eight: Crew) -> Crew:
    """Eight processes."""
    eight.assemble()
    return eight


@pytest.fixture(scope="module", params=["redis", "mariadb"])
def server(request: pytest.FixtureRequest) -> Iterator[RedisServer | MariaDB]:
    """A server that is ours to harm. What MariaDB commits outlives its process, if not the machine."""
    with RedisServer() if request.param == "redis" else MariaDB(flush_log=2) as started:
        yield started


@pytest.fixture
def site(server: RedisServer | MariaDB) -> Iterator[Site]:
    with CuttingProxy(server.port) as proxy:
        yield Site(server, proxy, uuid4().hex)


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
