# mypyc: compile
"""Where a counter of the shared file is, and its state as this process last read or wrote it.

Each commit of a slot gives it a number that it has not had before (see slot.py). So as long as the number is the same,
the state is, too, and need not be read: see `SlotTable.load`. Only an interrupted chain takes numbers back, of commits
that nobody else has seen.
"""

from __future__ import annotations

from typing import SupportsIndex, final

from crestgate.core.algorithms.algorithm import Algorithm
from crestgate.core.mypyc_types import i64
from crestgate.core.state import State

__all__ = ["Location"]


@final
class Location:
    """A counter's digest, and the stripe of the file that holds it. The rest is used under the stripe's lock only, and
    valid while `algorithm` is set."""

    __slots__ = (
        "algorithm",
        "commit_word",
        "commits",
        "digest",
        "digest_word",
        "expiry_word",
        "first_copy",
        "signature",
        "state",
        "stripe",
        "used",
        "used_word",
    )

    def __init__(self, digest: bytes, stripe: int) -> None:
        self.digest = digest
        self.stripe = stripe
        self.algorithm: Algorithm | None = None
        """The limit that wrote the state."""
        self.signature = b""
        """Its numbers, as they are beside the state."""
        self.state = State(0, 0, 0, None)
        self.commits: i64 = 0
        self.used: i64 = 0
        """When this process last wrote down that the counter was used."""
        self.first_copy: i64 = 0
        """Where the slot's first copy is, in bytes."""
        # Where its words are. Not C integers: each would be made an object again whenever it is used.
        self.digest_word: SupportsIndex = 0
        self.expiry_word: SupportsIndex = 0
        self.used_word: SupportsIndex = 0
        self.commit_word: SupportsIndex = 0
