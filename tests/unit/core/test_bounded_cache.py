"""A full cache makes room by deleting its oldest entries, not all of them."""

from __future__ import annotations

import random

import pytest

from crestgate.core.bounded_cache import BoundedCache, add_bounded


@pytest.mark.parametrize("max_size", [1, 2, 7, 8, 100, 4096])
def test_oldest_make_room(max_size: int) -> None:
    cache: dict[int, int] = BoundedCache(max_size)
    plain: dict[int, int] = {}
    for key in range(3 * max_size):
        cache[key] = -key
        assert add_bounded(plain, key, -key, max_size) == -key
        assert len(cache) <= max_size
        assert list(cache) == list(range(key - len(cache) + 1, key + 1)), "the newest are kept"
        assert cache == plain
        assert len(cache) >= min(key + 1, max_size - max_size // 8 - 1)


def test_new_value_of_a_known_key_deletes_nothing() -> None:
    cache: dict[int, int] = BoundedCache(8)
    for key in [*range(8), 3]:
        cache[key] = key
    assert len(cache) == 8


def test_slightly_too_many_keys_still_hit() -> None:
    """Whoever has a few keys more than fit must not lose the whole cache again and again."""
    chance = random.Random(20)
    cache: dict[int, int] = BoundedCache(1000)
    hits = 0
    for _ in range(20_000):
        key = chance.randrange(1200)
        hits += key in cache
        if key not in cache:
            cache[key] = key
    assert hits > 14_000
