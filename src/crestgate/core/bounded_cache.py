"""Dict with a maximum size: when it is full, the oldest eighth of its entries makes room.

For caches whose keys callers choose: a flood of fresh keys must not grow them without bound, and must not cost the
others all that was cached. Only a miss pays for that. Compiled modules look up a BoundedCache as fast as a dict, if it
is annotated as `dict`; modules that are not compiled keep a plain dict for hot lookups, and add to it by `add_bounded`.

The oldest are those that were added first. Knowing which were used last would cost every hit a write.
"""

from __future__ import annotations

from typing import TypeVar

__all__ = ["BoundedCache", "add_bounded"]

K = TypeVar("K")
V = TypeVar("V")


class BoundedCache(dict[K, V]):
    """At most `max_size` entries. Add them by `cache[key] = value` only.

    >>> cache: dict[str, int] = BoundedCache(2)
    >>> for number, key in enumerate("abbc"):
    ...     cache[key] = number
    >>> cache
    {'b': 2, 'c': 3}
    """

    __slots__ = ("max_size",)

    def __init__(self, max_size: int) -> None:
        super().__init__()
        self.max_size = max_size

    def __setitem__(self, key: K, value: V) -> None:
        if len(self) >= self.max_size and key not in self:
            make_room(self)
        dict.__setitem__(self, key, value)


def add_bounded(cache: dict[K, V], key: K, value: V, max_size: int) -> V:
    """Add an entry to a plain dict, in which the oldest make room when it is full. Returns the value."""
    if len(cache) >= max_size and key not in cache:
        make_room(cache)
    cache[key] = value
    return value


def make_room(cache: dict[K, V]) -> None:
    """Delete the oldest eighth. Other threads may add or delete meanwhile: the keys are copied in one step."""
    for key in list(cache)[: len(cache) // 8 + 1]:
        cache.pop(key, None)
