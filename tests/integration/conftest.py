"""Fixtures of the integration tests: child processes, counter files, a heap that is not collected."""

from __future__ import annotations

import gc
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path

import pytest

from integration.child_process import Child


@pytest.fixture
def start() -> Iterator[Callable[..., Child]]:
    """Starts children, and sees to it that none outlives its test."""
    with ExitStack() as stack:

        def start_one(program: str, **arguments: object) -> Child:
            return stack.enter_context(Child(program, **arguments))

        yield start_one


@pytest.fixture
def frozen_heap() -> Iterator[None]:
    """For tests that measure time: on a busy machine a garbage collection of pytest's own heap takes a second."""
    gc.collect()
    gc.freeze()
    yield
    gc.unfreeze()


@pytest.fixture
def counters(tmp_path: Path) -> Path:
    """Where a test keeps its file of counters, which is not there yet."""
    return tmp_path / "counters"
