"""Which digest stands for a counter in the shared file, and in which stripe it lies.

A digest is computed once for the counters in use and then remembered, by the limit's name and the key: to compute it
costs as much as the rest of a check.
"""

from __future__ import annotations

from hashlib import blake2b
from typing import final

__all__ = ["Digests"]

MAX_REMEMBERED = 10_000


@final
class Digests:
    """The digests of one file's counters, under one prefix."""

    def __init__(self, prefix: str, salt: bytes, stripes: int) -> None:
        self.hasher = blake2b(prefix.encode() + b"\0", digest_size=16, key=salt)
        self.stripes = stripes
        self.by_name: dict[str, dict[str, tuple[bytes, int]]] = {}
        self.remembered = 0
        self.last: tuple[str, dict[str, tuple[bytes, int]]] = ("", {})

    def locate(self, name: str, key: str) -> tuple[bytes, int]:
        """The digest of a counter, and its stripe."""
        last = self.last  # read once: another thread may be replacing it
        known = last[1] if name is last[0] else self.of_name(name)
        found = known.get(key)
        if found is None:
            label = name.encode("utf-8", "surrogatepass")
            hasher = self.hasher.copy()
            # The length keeps (name, key) apart from every other pair with the same letters.
            hasher.update(b"%d\0%b%b" % (len(label), label, key.encode("utf-8", "surrogatepass")))
            digest = hasher.digest()
            if digest.startswith(b"\0\0\0\0\0\0\0\0"):  # means an empty slot
                digest = b"\1" + digest[1:]
            found = (digest, int.from_bytes(digest[8:12], "little") % self.stripes)
            if self.remembered >= MAX_REMEMBERED:
                self.by_name.clear()
                self.remembered = 0
                known = self.of_name(name)
            known[key] = found
            self.remembered += 1
        return found

    def of_name(self, name: str) -> dict[str, tuple[bytes, int]]:
        """What is remembered of one name's counters."""
        known = self.by_name.get(name)
        if known is None:
            known = {}
            self.by_name[name] = known
        self.last = (name, known)
        return known
