"""Dict with a maximum size, which is cleared when it is full.

For caches whose keys callers choose: a flood of fresh keys must not grow them without bound, and what is still in use
is soon cached again. Only a miss pays for the check. Compiled modules look up a BoundedCache as fast as a dict, if it
is annotated as `dict`; modules that are not compiled keep a plain dict for hot lookups, and add to it by `add_bounded`.
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
    {'c': 3}
    """

    __slots__ = ("max_size",)

    def __init__(self, max_size: int) -> None:
        super().__init__()
        self.max_size = max_size

    def __setitem__(self, key: K, value: V) -> None:
        if len(self) >= self.max_size and key not in self:
            self.clear()
        dict.__setitem__(self, key, value)


def add_bounded(cache: dict[K, V], key: K, value: V, max_size: int) -> V:
    """Add an entry to a plain dict, which is cleared first when it is full. Returns the value."""
    if len(cache) >= max_size and key not in cache:
        cache.clear()
    cache[key] = value
    return value
