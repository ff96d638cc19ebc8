"""One service shared by the tests that need no own one: a start takes seconds."""

from __future__ import annotations

from collections.abc import Iterator

import httpx
import pytest

from integration.service.service_process import GENEROUS, Service


@pytest.fixture(scope="session")
def service(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Service]:
    """A service with default settings, except for generous own limits."""
    with Service(tmp_path_factory.mktemp("service"), environment=GENEROUS) as started:
        yield started
        _, found, rest = started.logged.partition("Traceback")
        assert not found, rest[:3000]


@pytest.fixture(scope="session")
def admin(service: Service) -> Iterator[httpx.Client]:
    """A client with the admin key."""
    with service.client(service.key) as client:
        yield client


@pytest.fixture(scope="session")
def anyone(service: Service) -> Iterator[httpx.Client]:
    """A client without a key."""
    with service.client() as client:
        yield client
