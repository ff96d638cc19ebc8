"""Applications of each framework, which run until the end of a test."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import ExitStack
from importlib import import_module
from typing import Any

import pytest

from crestgate import Limiter
from crestgate.testing import FakeClock
from integration.frameworks.contract import Setup
from integration.frameworks.suite import APPS, Running

START = 1_700_000_000.0


@pytest.fixture(params=APPS)
def framework(request: pytest.FixtureRequest) -> str:
    name: str = request.param
    return name


@pytest.fixture
def serve(framework: str) -> Iterator[Callable[..., Running]]:
    """Starts an application: the arguments are those of a `Setup`, and its limiter is on virtual time unless given."""
    module = import_module(f"integration.frameworks.apps.{framework}_app")
    with ExitStack() as stack:

        def start(limiter: Limiter | None = None, plans: Any = None, **made: Any) -> Running:
            clock = FakeClock(START)
            if limiter is None:
                limiter = Limiter("memory://", clock=clock, plans=plans)
            setup = Setup(limiter, **made)
            url = stack.enter_context(module.serve(setup))
            stack.callback(setup.released.set)  # before the server is stopped: no handler may still wait
            return Running(url, setup, clock)

        yield start
