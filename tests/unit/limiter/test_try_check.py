"""`Bound.try_check`: checks without waiting."""

from __future__ import annotations

from pathlib import Path

import pytest

from crestgate import Limiter
from crestgate.errors import StoreClosedError
from crestgate.stores.shared.locks import FIRST_STRIPE
from crestgate.stores.shared.store import SharedStore
from slow_store import SlowStore


@pytest.mark.parametrize("kind", ["memory", "shared"])
def test_try_check_equals_check(kind: str, tmp_path: Path) -> None:
    url = "memory://" if kind == "memory" else f"shared://{tmp_path}/counters"
    with Limiter(url) as limiter:
        bound = limiter.resolve("3/day")
        assert bound.check("k").remaining == 2  # the first check of a key in shared memory needs the slow path
        first, second, third = (bound.try_check("k", 1) for _ in range(3))
        assert first is not None
        assert second is not None
        assert third is not None
        assert (first.allowed, first.remaining, first.state) == (True, 1, "normal")
        assert (second.allowed, second.remaining, second.state) == (True, 0, "throttled")
        assert (third.allowed, third.remaining, third.reason) == (False, 0, "limited")
        assert bound.try_check("other", 4) is None  # more than the limit ever admits


@pytest.mark.parametrize(("limits", "key"), [(["3/day", "9/hour"], "k"), ("3/day", "k" * 257), ("3/day", "")])
def test_try_check_returns_none_for_chains_and_long_keys(limits: str | list[str], key: str) -> None:
    assert Limiter().resolve(limits).try_check(key, 1) is None


def test_try_check_returns_none_for_remote_stores() -> None:
    assert Limiter(SlowStore(timeout=0.1)).resolve("3/day").try_check("k", 1) is None


def test_try_check_returns_none_when_the_store_is_busy_or_closed(tmp_path: Path) -> None:
    limiter = Limiter(f"shared://{tmp_path}/counters")
    bound = limiter.resolve("3/day")
    bound.check("k")
    store = limiter.store
    assert isinstance(store, SharedStore)
    stripe = FIRST_STRIPE + store.digests.locate("3/day", "k").stripe
    store.locks.acquire(stripe, 0)
    assert bound.try_check("k", 1) is None
    store.locks.release(stripe)
    assert bound.try_check("k", 1) is not None
    limiter.close()
    assert bound.try_check("k", 1) is None
    with pytest.raises(StoreClosedError):
        bound.check("k")
