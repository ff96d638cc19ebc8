"""A service as the store of a configuration: for programs, and for nobody who serves."""

from __future__ import annotations

from pathlib import Path

import pytest

from headgate.config.settings import Settings, load_settings
from headgate.errors import ConfigError, Invalid
from headgate.service.starting import completed

URL = "headgate://:hg_secret@limits:8080"


def test_programs_may_have_one(tmp_path: Path) -> None:
    path = tmp_path / "headgate.yaml"
    path.write_text(f"store: {URL}\n")
    assert load_settings(str(path), {}).store == URL


@pytest.mark.parametrize("store", [URL, ("redis://a", "HEADGATES://limits")])
def test_a_service_may_not(store: str | tuple[str, ...]) -> None:
    settings = Settings(store=store, rules_store="sqlite:///rules.db", names_store=True)
    with pytest.raises(ConfigError, match="is a service itself, and clients are to ask it directly") as told:
        completed(settings)
    assert "secret" not in str(told.value)


def test_rules_are_not_kept_in_one(tmp_path: Path) -> None:
    path = tmp_path / "headgate.yaml"
    path.write_text(f"rules_store: {URL}\n")
    with pytest.raises(Invalid, match="rules are not kept in 'headgate://:") as told:
        load_settings(str(path), {})
    assert "secret" not in str(told.value)
