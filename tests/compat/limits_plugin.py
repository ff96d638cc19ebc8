"""Pytest plugin: the test-suite of `limits` runs on `crestgate.compat.limits`, and on servers that are already there.

The suite starts its servers with Docker; limits_suite.py has started them before.
"""

from __future__ import annotations

import importlib
import pkgutil
import sys

import pytest

SHIM = "crestgate.compat.limits"


def alias_limits() -> None:
    """`import limits` means the shim, with all its modules."""
    shim = importlib.import_module(SHIM)
    names = [module.name for module in pkgutil.walk_packages(shim.__path__, f"{SHIM}.")]
    for name in (SHIM, *names):
        sys.modules[name.removeprefix("crestgate.compat.")] = importlib.import_module(name)


alias_limits()


class StartedServers:
    """Stands in for Docker Compose."""

    def start(self, name: str) -> None:
        """Already done."""

    def wait_for_service(self, name: str, port: int, check: object) -> None:
        """Not needed: they were waited for."""


@pytest.fixture(scope="session")
def docker_services() -> StartedServers:
    return StartedServers()
