"""The entries of a contest: a contender, its store, and its load."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

__all__ = ["Contender", "Entry"]


@dataclass(frozen=True)
class Entry:
    """One contender under one load. No two entries of a contest have the same label.

    The load is `tasks` or `threads`, with a number of callers without a pause, or `arrivals` at a rate per second.
    """

    label: str
    library: str
    store: str
    algorithm: str = "token_bucket"
    build: str = "compiled"
    load: str = "tasks"
    callers: int = 100
    keys: int = 1000
    loop: str = "asyncio"

    @property
    def amount(self) -> int:
        """The limit for a day: never reached in a run, and filled up again so slowly that counters do not expire."""
        return 1_000_000 if self.keys > 1 else 100_000_000

    @property
    def space(self) -> str:
        """The prefix of its keys, so that contenders on one server use different ones."""
        return "".join(letter if letter.isalnum() else "-" for letter in self.label)


@dataclass(frozen=True)
class Contender:
    """`check` is called as it is, so that nothing stands between a limiter and the clock; with tasks it is awaited."""

    check: Callable[[str], Any]
    admitted: Callable[[Any], bool]
    failures: Callable[[], int] = lambda: 0
    """How many answers were not the store's."""
