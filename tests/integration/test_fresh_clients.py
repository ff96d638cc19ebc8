"""A million clients that are not configured grow neither memory nor the rule database."""

from __future__ import annotations

import sqlite3
from collections.abc import Callable
from contextlib import closing
from pathlib import Path

import pytest

from crestgate.rules.compat.clients import MAX_SEEN, ClientLimit
from crestgate.rules.editor import Editor
from crestgate.rules.port import Actor
from crestgate.rules.storage.factory import open_repository
from integration.child_process import ChildProcess

MILLION = 1_000_000
CONFIG = """
store: memory://?max_keys=20000
rules_store: sqlite:///{database}
rules:
  - {{rule_id: per-user, dimension: user, limit: 1000, window_seconds: 60}}
"""


def rows(database: Path) -> dict[str, int]:
    """How many rows each table has."""
    with closing(sqlite3.connect(database)) as connection:
        tables = [name for (name,) in connection.execute("SELECT name FROM sqlite_master WHERE type = 'table'")]
        return {name: connection.execute(f"SELECT count(*) FROM {name}").fetchone()[0] for name in tables}


@pytest.mark.slow
def test_a_million_fresh_clients(tmp_path: Path, start: Callable[..., ChildProcess]) -> None:
    database, config = tmp_path / "rules.db", tmp_path / "crestgate.yaml"
    config.write_text(CONFIG.format(database=database))
    with closing(open_repository(f"sqlite:///{database}")) as repository:
        Editor(repository, Actor("test")).configure_client("acme", [ClientLimit("acme", "DEFAULT", "GLOBAL", "DAY", 5)])
    before = rows(database)
    assert sum(before.values()) > 0

    result = start(
        "fresh_clients.check_fresh_clients", config=str(config), early=MILLION // 10, clients=MILLION
    ).receive(timeout=300)

    assert result["late"] < 1.1 * result["early"], result
    assert result["seen"] == MAX_SEEN
    assert result["rules"] == 2, "a client becomes a rule only when it is configured"
    assert (result["denied"], result["failures"]) == (0, 0), "each has its own limits"
    assert result["known"] == 5, "the configured client has exactly its limit"
    assert rows(database) == before
