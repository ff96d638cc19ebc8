"""Fixtures of the integration tests: child processes, counter files, a frozen heap."""

from __future__ import annotations

import gc
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path

import pytest

from integration.child_process import ChildProcess


@pytest.fixture
def start() -> Iterator[Callable[..., ChildProcess]]:
    """Starts child processes and kills them at the end of the test."""
    with ExitStack() as stack:

        def start_one(program: str, **arguments: object) -> ChildProcess:
            return stack.enter_context(ChildProcess(program, **arguments))

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
    """The path of a counter file that does not exist yet."""
    return tmp_path / "counters"
