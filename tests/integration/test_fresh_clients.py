"""A million clients that nobody has configured leave memory and the rule database as they were."""

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
from integration.child_process import Child

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
def test_a_million_fresh_clients(tmp_path: Path, start: Callable[..., Child]) -> None:
    database, config = tmp_path / "rules.db", tmp_path / "crestgate.yaml"
    config.write_text(CONFIG.format(database=database))
    with closing(open_repository(f"sqlite:///{database}")) as repository:
        Editor(repository, Actor("test")).configure_client("acme", [ClientLimit("acme", "DEFAULT", "GLOBAL", "DAY", 5)])
    before = rows(database)
    assert sum(before.values()) > 0

    told = start("fresh_clients.ask", config=str(config), early=MILLION // 10, most=MILLION).hear(patience=300)

    assert told["late"] < 1.1 * told["early"], told
    assert told["seen"] == MAX_SEEN
    assert told["rules"] == 2, "a client becomes a rule only when somebody configures it"
    assert (told["denied"], told["failures"]) == (0, 0), "each of them has limits of its own"
    assert told["known"] == 5, "who is configured has what it was given, and no more"
    assert rows(database) == before
