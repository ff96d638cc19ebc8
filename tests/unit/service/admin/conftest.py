"""Control plane fixtures."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from unit.service.admin.admin_client import Control


@pytest.fixture
def control(tmp_path: Path) -> Iterator[Control]:
    made = Control(tmp_path)
    yield made
    made.close()


@pytest.fixture
def control_with(tmp_path: Path) -> Iterator[Callable[..., Control]]:
    """Factory of control planes with rule files of these contents."""
    made: list[Control] = []

    def make(*files: str) -> Control:
        made.append(Control(tmp_path, files))
        return made[-1]

    yield make
    for one in made:
        one.close()
