"""What the tests of stores across a network share: processes that put load on them, and a place for figures.

What such a test measures (how much was admitted too much, how long a check took) is worth seeing also when all is
well. It is shown at the end of the run.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator

import pytest

from integration.network.crew import Crew

_figures: list[str] = []


@pytest.fixture(scope="session")
def eight(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Crew]:
    with Crew(8, tmp_path_factory.mktemp("histories")) as crew:
        yield crew


@pytest.fixture
def crew(eight: Crew) -> Crew:
    """Eight processes."""
    eight.assemble()
    return eight


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
