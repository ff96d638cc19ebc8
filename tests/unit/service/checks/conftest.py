"""Shared fixtures."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import pytest

from unit.service.checks.proxy import Proxy, domains_of


@pytest.fixture(scope="module")
def domains(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Any:
    """The limits in the YAML of the test module."""
    return domains_of(tmp_path_factory.mktemp("envoy"), request.module.YAML)


@pytest.fixture
def proxies(domains: Any) -> Iterator[Callable[..., Proxy]]:
    """Factory of proxies over the `domains` of the test module; closes them."""
    made: list[Proxy] = []

    def make(**options: Any) -> Proxy:
        made.append(Proxy(domains, **options))
        return made[-1]

    yield make
    for one in made:
        one.close()
