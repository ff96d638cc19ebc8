"""Fixtures of the dashboard."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from unit.service.dashboard.dashboard_client import Dashboard


@pytest.fixture
def anyone(tmp_path: Path) -> Iterator[Dashboard]:
    """Nobody has logged in."""
    made = Dashboard(tmp_path)
    yield made
    made.close()


@pytest.fixture
def dashboard(anyone: Dashboard) -> Dashboard:
    """Logged in with the admin key."""
    assert anyone.log_in().status_code == 303
    return anyone
