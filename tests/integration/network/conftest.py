"""Fixtures of the tests of remote stores: load processes, and servers that tests may kill."""

from __future__ import annotations

from collections.abc import Iterator
from uuid import uuid4

import pytest

from integration.network.crew import Crew
from integration.network.sites import Site
from servers.mariadb import MariaDB
from servers.proxy import CuttingProxy
from servers.redis import RedisServer


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
    """A server that tests may kill. What MariaDB commits survives its process, if not the machine."""
    with RedisServer() if request.param == "redis" else MariaDB(flush_log=2) as started:
        yield started


@pytest.fixture
def site(server: RedisServer | MariaDB) -> Iterator[Site]:
    with CuttingProxy(server.port) as proxy:
        yield Site(server, proxy, uuid4().hex)
