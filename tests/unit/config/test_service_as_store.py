"""A service as the store of a configuration: in embedded mode only."""

from __future__ import annotations

from pathlib import Path

import pytest

from crestgate.config.settings import Settings, load_settings
from crestgate.errors import ConfigError, ValidationError
from crestgate.service.preflight import complete_settings

URL = "crestgate://:cg_secret@limits:8080"


def test_embedded_mode_accepts_a_service_as_store(tmp_path: Path) -> None:
    path = tmp_path / "crestgate.yaml"
    path.write_text(f"store: {URL}\n")
    assert load_settings(str(path), {}).store == URL


@pytest.mark.parametrize("store", [URL, ("redis://a", "CRESTGATES://limits")])
def test_service_mode_refuses_a_service_as_store(store: str | tuple[str, ...]) -> None:
    settings = Settings(store=store, rules_store="sqlite:///rules.db", store_is_set=True)
    with pytest.raises(ConfigError, match="is a service itself, which clients should call directly") as raised:
        complete_settings(settings)
    assert "secret" not in str(raised.value)


def test_service_is_no_rules_store(tmp_path: Path) -> None:
    path = tmp_path / "crestgate.yaml"
    path.write_text(f"rules_store: {URL}\n")
    with pytest.raises(ValidationError, match="rules cannot be stored in 'crestgate://:") as raised:
        load_settings(str(path), {})
    assert "secret" not in str(raised.value)
