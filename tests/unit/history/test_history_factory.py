"""URLs of the usage history."""

from __future__ import annotations

from contextlib import closing
from pathlib import Path

import pytest

from crestgate.errors import ConfigError, StoreError
from crestgate.history.factory import open_history
from crestgate.history.redis import RedisHistory
from crestgate.history.sql import SqlHistory
from crestgate.rules.storage.factory import open_repository
from servers.process import GivenServer
from servers.redis import RedisServer


def test_open_by_url(tmp_path: Path, redis_server: RedisServer | GivenServer) -> None:
    with closing(open_history(f"sqlite:///{tmp_path}/rules.db")) as history:
        assert isinstance(history, SqlHistory)
    with closing(open_history(redis_server.url)) as history:
        assert isinstance(history, RedisHistory)


def test_history_and_rules_share_a_database(tmp_path: Path) -> None:
    url = f"sqlite:///{tmp_path}/rules.db"
    with closing(open_repository(url)), closing(open_history(url)) as history:
        history.add(0, {"a": (1, 0, 0)}, {})
        assert len(history.usage(0, 1, "hour")) == 1


@pytest.mark.parametrize("url", ["memory://", "rules.yaml", "", "shared://counters", "http://user:secret@host/"])
def test_urls_without_a_database(url: str) -> None:
    with pytest.raises(ConfigError, match=r"usage cannot be stored in '.*': .*write the URL of a database") as caught:
        open_history(url)
    assert "secret" not in str(caught.value)


def test_wrong_url_fails_immediately(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="unknown option 'what'"):
        open_history(f"sqlite:///{tmp_path}/rules.db?what=1")
    with pytest.raises(StoreError, match="is it running"):
        open_history("redis://127.0.0.1:1/0")
