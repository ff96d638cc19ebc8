"""`/api/v1/migration`."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

from crestgate import Limiter, Migration
from unit.service.admin.admin_client import Control


def test_without_a_migration(control: Control) -> None:
    response = control.get("/api/v1/migration")
    assert response.status_code == 404
    assert "no migration is configured" in response.json()["detail"]


def test_progress(control: Control, tmp_path: Path) -> None:
    old, new = (f"sqlite:///{tmp_path / name}?timeout_ms=30000" for name in ("old.db", "new.db"))
    with Limiter(Migration(old, new, percent=100), on_store_error="closed") as limiter:
        assert limiter.check("user:1", "10/hour")
    settings = replace(control.parts.settings, store=Migration(old, new, percent=100))
    object.__setattr__(control.parts, "settings", settings)
    report = control.get("/api/v1/migration").json()
    assert report["from"]["counters"] == 0
    assert report["to"]["counters"] == 1
    assert report["percent"] == 100
