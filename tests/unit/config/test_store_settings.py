"""Settings of several stores: a migration, and stores that rules name."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from crestgate import ConfigError, Limiter, Migration, RequestContext
from crestgate.config.settings import load_settings
from crestgate.errors import ValidationError
from crestgate.stores.migrating.store import MigratingStore
from crestgate.stores.spec import NamedStores

Write = Callable[[str], str]


@pytest.fixture
def write(tmp_path: Path) -> Write:
    def write(text: str) -> str:
        path = tmp_path / "crestgate.yaml"
        path.write_text(text)
        return str(path)

    return write


def test_migration(write: Write) -> None:
    settings = load_settings(
        write("migrate: {from: mysql://app:hunter2@db/limits, to: redis://cache:6379/0, percent: 25}\n"), {}
    )
    assert settings.store == Migration("mysql://app:hunter2@db/limits", "redis://cache:6379/0", percent=25)
    assert settings.store_is_set
    assert "hunter2" not in repr(settings.store) + repr(settings)


def test_migration_of_rules_and_endpoints_moves_all_their_subjects(write: Write) -> None:
    text = "migrate: {from: memory://, to: memory://, rules: [orders], endpoints: [/api/*]}\n"
    store = load_settings(write(text), {}).store
    assert store == Migration("memory://", "memory://", 100, ("orders",), ("/api/*",))


def test_variables_change_a_migration(write: Write) -> None:
    file = write("migrate: {from: mysql://db/limits, to: redis://cache:6379/0, percent: 25}\n")
    store = load_settings(file, {"CRESTGATE_MIGRATE__PERCENT": "50"}).store
    assert isinstance(store, Migration)
    assert store.percent == 50
    variables = {
        "CRESTGATE_MIGRATE__FROM": "mysql://db/limits",
        "CRESTGATE_MIGRATE__TO": "redis://cache:6379/0",
        "CRESTGATE_MIGRATE__RULES": "[orders]",
        "CRESTGATE_STORES__HOT": "redis://hot:6379/0",
    }
    assert load_settings(None, variables).store == NamedStores(
        Migration("mysql://db/limits", "redis://cache:6379/0", rules=("orders",)), {"hot": "redis://hot:6379/0"}
    )


def test_limiter_of_a_migration(write: Write) -> None:
    with Limiter.from_config(write("migrate: {from: memory://, to: memory://, percent: 100}\n"), environ={}) as limiter:
        assert isinstance(limiter.store, MigratingStore)
        assert limiter.check("user:1", "2/hour").remaining == 1
        assert limiter.store_counts["migrate_carried"] == 1
    with Limiter(Migration("memory://", "memory://", percent=0)) as limiter:
        assert limiter.check("user:1", "2/hour").remaining == 1
        assert limiter.store_counts["migrate_carried"] == 0


RULES = """\
stores: {hot: "memory://"}
rules:
  - {rule_id: orders, dimension: user, endpoint_pattern: /orders, limit: 2, window_seconds: 60, store: hot}
  - {rule_id: all, dimension: user, limit: 3, window_seconds: 60}
"""


def test_rules_count_in_the_store_that_they_name(write: Write) -> None:
    with Limiter.from_config(write(RULES), environ={}) as limiter:
        context = RequestContext(user="1", path="/orders")
        assert limiter.check_request(context)
        assert limiter.check_request(context)
        denied = limiter.check_request(context)
        assert not denied
        assert denied.name == "orders"
        assert limiter.check_request(RequestContext(user="1", path="/")).remaining == 0  # `all` was given back


def test_a_migration_of_a_rule_moves_its_counters_only(write: Write) -> None:
    text = RULES.replace('stores: {hot: "memory://"}', "migrate: {from: memory://, to: memory://, rules: [orders]}")
    with Limiter.from_config(write(text.replace(", store: hot", "")), environ={}) as limiter:
        assert limiter.check_request(RequestContext(user="1", path="/"))
        assert limiter.store_counts["migrate_carried"] == 0
        assert limiter.check_request(RequestContext(user="1", path="/orders"))
        assert limiter.store_counts["migrate_carried"] == 1


def test_rules_of_other_sources_cannot_name_an_unknown_store(write: Write) -> None:
    from crestgate.limiter.backend import Backend
    from crestgate.limiter.failure_policy import FailurePolicy
    from crestgate.stores.memory import MemoryStore

    store = MemoryStore()
    with pytest.raises(ConfigError, match=r"rule 'orders': there is no store 'hot': add it under stores"):
        Backend(store, FailurePolicy("open", store.clock), None).check_store("hot", "orders")
    with pytest.raises(ValidationError, match=r"rules\[0\].store: there is no store 'hot'"):
        load_settings(write(RULES.replace("hot: ", "cold: ")), {})
