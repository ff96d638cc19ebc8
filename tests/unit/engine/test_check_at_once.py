"""Checks that an event loop makes itself, because nobody has to be waited for."""

from __future__ import annotations

from pathlib import Path

import pytest

from headgate import Limiter
from headgate.errors import StoreClosed
from headgate.stores.shared.locks import FIRST_STRIPE
from headgate.stores.shared.store import SharedStore
from slow_store import SlowStore


@pytest.mark.parametrize("kind", ["memory", "shared"])
def test_a_local_store_answers_at_once_as_it_does_otherwise(kind: str, tmp_path: Path) -> None:
    url = "memory://" if kind == "memory" else f"shared://{tmp_path}/counters"
    with Limiter(url) as limiter:
        bound = limiter._bind("3/day")
        assert bound.check("k").remaining == 2  # the first of a key in shared memory needs more care
        first, second, third = (bound.check_at_once("k", 1) for _ in range(3))
        assert first is not None
        assert second is not None
        assert third is not None
        assert (first.allowed, first.remaining, first.state) == (True, 1, "normal")
        assert (second.allowed, second.remaining, second.state) == (True, 0, "throttled")
        assert (third.allowed, third.remaining, third.reason) == (False, 0, "limited")
        assert bound.check_at_once("other", 4) is None  # more than the limit ever lets through


@pytest.mark.parametrize(("limits", "key"), [(["3/day", "9/hour"], "k"), ("3/day", "k" * 257), ("3/day", "")])
def test_what_needs_more_care_is_left_to_a_check(limits: str | list[str], key: str) -> None:
    assert Limiter()._bind(limits).check_at_once(key, 1) is None


def test_a_store_across_a_network_does_not_answer_at_once() -> None:
    assert Limiter(SlowStore(timeout=0.1))._bind("3/day").check_at_once("k", 1) is None


def test_a_busy_or_closed_shared_store_does_not_answer_at_once(tmp_path: Path) -> None:
    limiter = Limiter(f"shared://{tmp_path}/counters")
    bound = limiter._bind("3/day")
    bound.check("k")
    store = limiter._store
    assert isinstance(store, SharedStore)
    stripe = FIRST_STRIPE + store.digests.locate("3/day", "k")[1]
    store.locks.acquire(stripe, 0)
    assert bound.check_at_once("k", 1) is None
    store.locks.release(stripe)
    assert bound.check_at_once("k", 1) is not None
    limiter.close()
    assert bound.check_at_once("k", 1) is None
    with pytest.raises(StoreClosed):
        bound.check("k")
