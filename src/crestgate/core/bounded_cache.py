"""Dict with a maximum size, which is cleared when it is full.

For caches whose keys callers choose: a flood of fresh keys must not grow them without bound, and what is still in use
is soon cached again. Subclassing dict keeps lookups as fast as those of a dict, in compiled modules too; only a miss
pays for the check. (So annotate as `dict` in compiled modules.)
"""

from __future__ import annotations

from typing import TypeVar

__all__ = ["BoundedCache"]

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
