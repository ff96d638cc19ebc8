"""Which counters a migration moves: a share of the subjects, everywhere or under certain rules only.

The share is a stable hash of the key: the same subjects always move, a higher percentage only adds some, and a lower
one only takes some away.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from hashlib import blake2b
from typing import final

from crestgate.core.algorithms.algorithm import Algorithm
from crestgate.errors import ConfigError

__all__ = ["MAX_SELECTED", "Share"]

PARTS = 10_000
"""A percentage has two digits behind its point."""
MAX_SELECTED = 1000


@final
@dataclass(frozen=True, slots=True)
class Share:
    """`percent` of the subjects; of the rules and endpoints that are named, if any are.

    >>> share = Share(percent=25)
    >>> sum(share.has_subject(f"user:{number}") for number in range(1000))
    267
    >>> all(Share(percent=50).has_subject(key) for key in map(str, range(100)) if share.has_subject(key))
    True
    """

    percent: float = 100
    rules: Sequence[str] = ()
    """The rule_id of each."""
    endpoints: Sequence[str] = ()
    """Rules with this endpoint_pattern, or one that begins with it: `/api/v1/orders` has `/api/v1/orders/*`."""

    def __post_init__(self) -> None:
        percent = self.percent
        if not isinstance(percent, int | float) or isinstance(percent, bool) or not 0 <= percent <= 100:
            raise ConfigError.of("percent", f"must be a number from 0 to 100, not {percent!r}")
        for name in ("rules", "endpoints"):
            given = getattr(self, name)
            if isinstance(given, str) or not all(isinstance(one, str) and one for one in given):
                raise ConfigError.of(name, f"must be a list of names, not {given!r}")
            if len(given) > MAX_SELECTED:
                raise ConfigError.of(name, f"has {len(given)} entries; the maximum is {MAX_SELECTED}")

    def has_subject(self, key: str) -> bool:
        """Whether the counters of this key are moved, under limits that are."""
        digest = blake2b(key.encode("utf-8", "surrogatepass"), digest_size=8, person=b"migrate").digest()
        return int.from_bytes(digest) % PARTS < round(self.percent * PARTS / 100)

    def has_limit(self, algorithm: Algorithm) -> bool:
        """Whether counters of this limit are moved, of subjects that are."""
        if not self.rules and not self.endpoints:
            return True
        endpoint = algorithm.endpoint
        if endpoint is None:  # not of a rule
            return False
        return algorithm.label in self.rules or any(_covers(wanted, endpoint) for wanted in self.endpoints)


def _covers(wanted: str, endpoint: str) -> bool:
    """Whether an endpoint pattern is the wanted one, or lies below it."""
    if wanted in ("*", "**", endpoint):
        return True
    stem = wanted.rstrip("*").rstrip("/")
    return bool(stem) and (endpoint == stem or endpoint.startswith(f"{stem}/"))
