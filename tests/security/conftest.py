"""Services to be attacked: started by the tests, on loopback, and ended with them."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path

import pytest

from integration.service.serving import Service


@pytest.fixture
def serve(tmp_path: Path) -> Iterator[Callable[..., Service]]:
    """Starts services of a test's own, in its folder, and sees to it that none outlives it."""
    with ExitStack() as stack:

        def start(folder: Path = tmp_path, **options: object) -> Service:
            return stack.enter_context(Service(folder, **options))  # type: ignore[arg-type]

        yield start
