"""Where a counter is, where the store is several."""

from __future__ import annotations

from crestgate import Limit
from crestgate.core.algorithms import build
from crestgate.stores.memory import MemoryStore
from crestgate.stores.migrating.share import Share
from crestgate.stores.migrating.store import MigratingStore
from crestgate.stores.named import NamedStoreGroup
from crestgate.stores.port import Member
from crestgate.stores.remote_store import RemoteStore, store_title
from crestgate.stores.sharded import ShardedStore
from crestgate.testing import FakeClock

MEMORY = "the memory of this process"


class Far(RemoteStore):
    """A store that is only described."""

    def __init__(self, title: str) -> None:
        self.title = title
        self.clock = FakeClock(0)
        self.timeout = 0.1


def member(key: str = "a", store: str | None = None) -> Member:
    algorithm = build(Limit.parse("5/minute"), "limit")
    algorithm.store = store
    return Member(key, algorithm, 1)


def test_named_stores() -> None:
    group = NamedStoreGroup(MemoryStore(), {"hot": Far("Redis at hot:6379")})
    assert store_title(group, member()) == MEMORY
    assert store_title(group, member(store="hot")) == "hot: Redis at hot:6379"
    assert store_title(group) == "2 stores"


def test_migration() -> None:
    for percent, title in ((0, "from"), (100, "to")):
        store = MigratingStore(Far("from"), Far("to"), Share(percent=percent))
        assert store_title(store, member()) == title
        assert store_title(NamedStoreGroup(store, {}), member()) == title


def test_shards() -> None:
    shards = ShardedStore({name: Far(name) for name in ("one", "two")})
    assert {store_title(shards, member(str(n))) for n in range(50)} == {"one", "two"}


def test_one_store() -> None:
    assert store_title(MemoryStore(), member()) == MEMORY
    assert store_title(Far("Redis at a:1"), member()) == "Redis at a:1"
