"""`crestgate migrate status`."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from crestgate import Limiter, Migration
from crestgate.stores.migrating.share import Share
from servers.process import GivenServer
from servers.redis import RedisServer
from unit.cli.conftest import Run
from unit.cli.fake_service import TOKEN, fake_service

SQL = "sqlite:///old.db?timeout_ms=30000"
KEYS = [f"user:{number}" for number in range(40)]
REPORT = {
    "from": {"store": "mysql://db/limits", "counters": 7, "to_move": 3, "complete": True, "error": None},
    "to": {"store": "redis://cache:6379/0", "counters": 1, "to_move": 0, "complete": True, "error": None},
    "percent": 25,
    "rules": [],
    "endpoints": [],
    "carried": {"to": 1, "back": 0, "from_errors": 0, "to_errors": 2},
}


def use(source: str, to: str, percent: float, keys: list[str]) -> None:
    """Check keys once, by an instance with these settings."""
    with Limiter(Migration(source, to, percent), on_store_error="closed") as limiter:
        for key in keys:
            assert limiter.check(key, "10/hour", cost=2)


def test_progress_between_two_databases(run: Run, folder: Path, redis_server: RedisServer | GivenServer) -> None:
    to = f"{redis_server.url}?prefix=status:{folder.name}"
    use(SQL, to, 0, KEYS)
    moved = [key for key in KEYS if Share(50).has_subject(key)]
    use(SQL, to, 50, moved[:5])
    (folder / "crestgate.yaml").write_text(f"migrate: {{from: '{SQL}', to: '{to}', percent: 50}}\n")
    code, out, err = run("migrate", "status", "--json")
    assert (code, err) == (0, "")
    report = json.loads(out)
    # Those that were marked as staying a moment ago stay where they are for ten seconds.
    assert report["from"]["counters"] + report["to"]["counters"] == len(KEYS)
    assert report["from"]["to_move"] == len(moved) - report["to"]["counters"]
    assert report["percent"] == 50
    code, out, err = run("migrate", "status")
    assert (code, err) == (0, "")
    assert f"percent         50\nin from         {report['from']['counters']} counters\n" in out


def test_carried_counters_are_in_the_new_store(run: Run, folder: Path) -> None:
    use(SQL, "sqlite:///new.db?timeout_ms=30000", 100, KEYS[:3])
    (folder / "crestgate.yaml").write_text(
        f"migrate: {{from: '{SQL}', to: 'sqlite:///new.db?timeout_ms=30000', percent: 100}}\n"
    )
    report = json.loads(run("migrate", "status", "--json").out)
    assert (report["from"]["counters"], report["to"]["counters"], report["to"]["to_move"]) == (0, 3, 0)


def test_unreachable_store_is_an_error(run: Run, folder: Path) -> None:
    (folder / "crestgate.yaml").write_text(
        "migrate: {from: memory://, to: 'redis://:hunter2@127.0.0.1:1/0', rules: [orders]}\n"
    )
    code, out, err = run("migrate", "status", "--json")
    report = json.loads(out)
    assert code == 2
    assert "127.0.0.1:1" in err
    assert "hunter2" not in out + err
    assert report["from"]["counters"] is None  # a memory store is its process's own
    assert report["to"]["error"] is not None


@pytest.mark.parametrize("settings", ["", "store: redis://cache:6379/0\n"])
def test_without_a_migration(run: Run, folder: Path, settings: str) -> None:
    (folder / "crestgate.yaml").write_text(settings)
    code, out, err = run("migrate", "status")
    assert (code, out) == (2, "")
    assert err.startswith("crestgate: the settings have no migration: write migrate: {from: mysql")


def test_of_a_service(run: Run) -> None:
    with fake_service() as service:
        service.responses.append((200, REPORT))
        code, out, err = run("migrate", "status", "--url", service.url, "--token", TOKEN)
    assert (code, err) == (0, "")
    assert "  to move       3 counters\n" in out
    assert "carried         1 to the new store, 0 back\n" in out
    assert service.requests[0][:2] == ("GET", "/api/v1/migration")


def test_summary_of_the_settings(run: Run, folder: Path) -> None:
    (folder / "crestgate.yaml").write_text(
        "migrate: {from: 'mysql://me:hunter2@db/limits', to: redis://cache:6379/0, percent: 12.5, rules: [orders]}\n"
        "stores: {hot: 'redis://:hunter2@hot:6379/0'}\nmode: embedded\n"
    )
    code, out, _ = run("config", "check")
    assert code == 0
    assert "  store           mysql://me:***@db/limits\n" in out
    assert "  migrate         to redis://cache:6379/0: 12.5 % of the subjects, rules orders\n" in out
    assert "  stores          hot: redis://:***@hot:6379/0\n" in out
