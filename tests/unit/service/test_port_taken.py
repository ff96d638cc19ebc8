"""A port that is taken: nothing was made that would then be lost."""

from __future__ import annotations

import signal
import socket
from collections.abc import Iterator
from pathlib import Path

import pytest

from headgate.config.settings import load_settings
from headgate.errors import ConfigError
from headgate.service.running import serve


@pytest.fixture(autouse=True)
def hanging_up() -> Iterator[None]:
    """What this process does when its terminal goes, which a service changes."""
    before = signal.getsignal(signal.SIGHUP)
    yield
    signal.signal(signal.SIGHUP, before)


def test_no_key_is_made_for_a_service_that_cannot_listen(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    said: list[str] = []
    with socket.create_server(("127.0.0.1", 0)) as taken:
        address = f"127.0.0.1:{taken.getsockname()[1]}"
        with pytest.raises(ConfigError, match=f"cannot listen on {address}"):
            serve(load_settings(None, {"HEADGATE_SERVER__HTTP": address}), {}, said.append)
    assert said == []
    assert not (tmp_path / ".headgate" / "rules.db").exists(), "the next start makes the first key, and shows it"
