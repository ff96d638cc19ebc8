"""What the integration tests share: children, and a place for figures.

What a test measures (how much was admitted too much, how long a change took) is worth seeing also when all is well. It
is shown at the end of the run.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path

import pytest

from integration.children import Child

_figures: list[str] = []


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


@pytest.fixture
def report(request: pytest.FixtureRequest) -> Callable[[str], None]:
    """Takes a figure to be shown at the end."""

    def take(figure: str) -> None:
        _figures.append(f"{request.node.name}: {figure}")

    return take


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    if _figures:
        terminalreporter.section("figures")
        for figure in _figures:
            terminalreporter.write_line(figure)
