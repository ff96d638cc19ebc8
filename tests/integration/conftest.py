"""What the integration tests share: children, and where their counters are."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path

import pytest

from integration.children import Child


@pytest.fixture
def start() -> Iterator[Callable[..., Child]]:
    """Starts children, and sees to it that none outlives its test."""
    with ExitStack() as stack:

        def start_one(program: str, **arguments: object) -> Child:
            return stack.enter_context(Child(program, **arguments))

        yield start_one


@pytest.fixture
def counters(tmp_path: Path) -> Path:
    """Where a test keeps its file of counters, which is not there yet."""
    return tmp_path / "counters"
