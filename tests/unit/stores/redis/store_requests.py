"""Helpers that send requests to a store."""

from __future__ import annotations

from crestgate.core.algorithms import Algorithm, build
from crestgate.core.decision import Decision
from crestgate.core.limit import Limit
from crestgate.stores.factory import open_store
from crestgate.stores.port import Member, Op, Outcome, Request, Store
from crestgate.stores.redis import RedisStore
from crestgate.testing import FakeClock

__all__ = ["ALGORITHMS", "apply", "limit", "peek", "store_at", "take"]

ALGORITHMS = (
    "token_bucket",
    "leaky_bucket",
    "fixed_window",
    "sliding_window_log",
    "sliding_window_counter",
    "gcra",
)


def store_at(url: str, clock: FakeClock | None = None, **options: object) -> RedisStore:
    """The store of a URL with options; its timeout is long enough for a busy machine."""
    text = "&".join(f"{name}={value}" for name, value in ({"timeout_ms": 10_000} | options).items())
    store = open_store(f"{url}{'&' if '?' in url else '?'}{text}", clock)
    assert isinstance(store, RedisStore)
    return store


def limit(text: str, name: str = "limit") -> Algorithm:
    """A compiled limit, such as `5/hour using gcra`."""
    return build(Limit.parse(text), name)


def apply(store: Store, op: Op, *members: Member) -> list[Outcome]:
    """One request."""
    return store.apply([Request(op, members)])[0]


def take(store: Store, algorithm: Algorithm, key: str = "key", cost: int = 1) -> Decision:
    return apply(store, Op.TAKE, Member(key, algorithm, cost))[0].decision


def peek(store: Store, algorithm: Algorithm, key: str = "key", cost: int = 1) -> Decision:
    return apply(store, Op.PEEK, Member(key, algorithm, cost))[0].decision
