# mypyc: compile
"""Keyed digests of counters, cached: to compute one costs as much as the rest of a check."""

from __future__ import annotations

from hashlib import blake2b
from typing import Final, final

from crestgate.stores.shared.location import Location

__all__ = ["DigestCache"]

MAX_CACHED: Final = 10_000


@final
class DigestCache:
    """The digests of one file's counters under one prefix, by the limit's name and the key."""

    def __init__(self, prefix: str, salt: bytes, stripes: int) -> None:
        self.hasher = blake2b(prefix.encode() + b"\0", digest_size=16, key=salt)
        self.stripes = stripes
        self.by_name: dict[str, dict[str, Location]] = {}
        self.size = 0
        self.last: tuple[str, dict[str, Location]] = ("", {})

    def locate(self, name: str, key: str) -> Location:
        last = self.last  # read once: another thread may be replacing it
        cache = last[1] if name is last[0] else self.of_name(name)
        location = cache.get(key)
        if location is None:
            label = name.encode("utf-8", "surrogatepass")
            hasher = self.hasher.copy()
            # The length keeps (name, key) apart from every other pair with the same letters.
            hasher.update(b"%d\0%b%b" % (len(label), label, key.encode("utf-8", "surrogatepass")))
            digest = hasher.digest()
            if digest.startswith(b"\0\0\0\0\0\0\0\0"):  # means an empty slot
                digest = b"\1" + digest[1:]
            location = Location(digest, int.from_bytes(digest[8:12], "little") % self.stripes)
            if self.size >= MAX_CACHED:
                self.by_name.clear()
                self.size = 0
                cache = self.of_name(name)
            cache[key] = location
            self.size += 1
        return location

    def of_name(self, name: str) -> dict[str, Location]:
        """The cached locations of one name's counters."""
        cache = self.by_name.get(name)
        if cache is None:
            cache = {}
            self.by_name[name] = cache
        self.last = (name, cache)
        return cache
