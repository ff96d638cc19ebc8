"""Store URLs: valid ones, and errors that name the remedy."""

from __future__ import annotations

from pathlib import Path

import pytest

from crestgate import ConfigError
from crestgate.stores.factory import open_store
from crestgate.stores.memory import MemoryStore
from crestgate.stores.shared import SharedStore


def test_memory_url() -> None:
    store = open_store("memory://?max_keys=7&prefix=app&timeout_ms=50&pool_size=2")
    assert isinstance(store, MemoryStore)
    assert store.table.max_keys == 7
    assert isinstance(open_store("MEMORY://"), MemoryStore)


def test_shared_url(tmp_path: Path) -> None:
    store = open_store(f"shared://{tmp_path}/with%20blank?max_keys=7&timeout_ms=50&prefix=app")
    assert isinstance(store, SharedStore)
    assert store.path == f"{tmp_path}/with blank"
    assert (store.geometry.max_keys, store.timeout) == (7, 0.05)
    store.close()


def test_prefixes_separate_counters(tmp_path: Path) -> None:
    from crestgate import Limiter

    one, other = (Limiter(f"shared://{tmp_path}/file?max_keys=7&prefix={prefix}") for prefix in ("one", "other"))
    one.check("k", "5/hour", cost=5)
    assert other.check("k", "5/hour", cost=5).allowed
    one.close()
    other.close()


@pytest.mark.parametrize(
    ("url", "message"),
    [
        ("", "unknown store URL ''"),
        ("memory", "unknown store URL 'memory'"),
        ("memory:", "unknown store URL"),
        ("mem://", "memory://, shared://name, redis://"),
        ("memory://name", "a memory store has no name"),
        ("memory://?max_key=5", "unknown option 'max_key'; there are max_keys"),
        ("memory://?max_keys=0", "max_keys must be a whole number from 1"),
        ("memory://?max_keys=-5", "max_keys must be a whole number"),
        ("memory://?max_keys=ten", "max_keys must be a whole number"),
        ("memory://?max_keys=", "max_keys must be a whole number"),
        ("memory://?max_keys=5&max_keys=6", "'max_keys' is given twice"),
        ("memory://?timeout_ms=0", "timeout_ms must be a whole number"),
        ("memory://?pool_size=x", "pool_size must be a whole number"),
        ("memory://?prefix=", "prefix must not be empty"),
        ("shared://", "name the file"),
        ("shared:///", "name the file"),
        ("shared:///tmp/", "name the file"),
        ("shared://name/path", "with three slashes"),
        ("shared://..", "letters, digits"),
        ("shared://name?max_keys=1e3", "max_keys must be a whole number"),
        ("shared://name?size=3", "unknown option 'size'"),
        ("shared:///tmp/a#b", "written %23"),
        ("shared:///tmp/a%00b", "may not hold a NUL"),
    ],
)
def test_invalid_urls_are_refused(url: str, message: str) -> None:
    with pytest.raises(ConfigError) as error:
        open_store(url)
    assert message in str(error.value)
