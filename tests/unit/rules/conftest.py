"""Fixtures: an editor and its repository."""

from __future__ import annotations

import pytest

from crestgate.rules.editor import Editor
from unit.rules.editing import ALICE
from unit.rules.memory_repository import MemoryRepository


@pytest.fixture
def repository() -> MemoryRepository:
    return MemoryRepository()


@pytest.fixture
def editor(repository: MemoryRepository) -> Editor:
    return Editor(repository, ALICE, now_us=repository.clock.ticks)
