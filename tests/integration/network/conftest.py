"""Fixtures of the tests of remote stores: load processes, and servers that tests may kill."""

from __future__ import annotations

from collections.abc import Iterator
from uuid import uuid4

import pytest

from integration.network.load_processes import LoadProcesses
from integration.network.proxied_server import ProxiedServer
from servers.mariadb import MariaDB
from servers.proxy import CuttingProxy
from servers.redis import RedisServer


@pytest.fixture(scope="session")
def eight_processes(tmp_path_factory: pytest.TempPathFactory) -> Iterator[LoadProcesses]:
    with LoadProcesses(8, tmp_path_factory.mktemp("histories")) as load_processes:
        yield load_processes


@pytest.fixture
def load_processes(eight_processes: LoadProcesses) -> LoadProcesses:
    """Eight processes."""
    eight_processes.ensure_idle()
    return eight_processes


@pytest.fixture(scope="module", params=["redis", "mariadb"])
def server(request: pytest.FixtureRequest) -> Iterator[RedisServer | MariaDB]:
    """A server that tests may kill. What MariaDB commits survives its process, if not the machine."""
    with RedisServer() if request.param == "redis" else MariaDB(flush_log=2) as started:
        yield started


@pytest.fixture
def site(server: RedisServer | MariaDB) -> Iterator[ProxiedServer]:
    with CuttingProxy(server.port) as proxy:
        yield ProxiedServer(server, proxy, uuid4().hex)
