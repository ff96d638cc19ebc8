"""The nonces of the revisions that a repository object has returned.

A replica that is promoted may lack the last writes: they are lost, and their revisions are assigned again to other
writes; so does a backup that is restored. So each write also has a nonce, a random text, and `changes` compares that of
the reader's revision with what was returned: if it differs, the reader gets everything. A revision that this object has
never returned is accepted without that check, and so is one without a nonce.
"""

from __future__ import annotations

from secrets import token_hex

from crestgate.runtime.fork_safety import fork_safe_lock

__all__ = ["MAX_WRITES", "SeenNonces", "create_nonce"]

MAX_SEEN = 100
"""Revisions whose nonce is kept in memory: the last ones that were returned."""
MAX_WRITES = 10_000
"""Writes whose nonce is stored: a reader of an older revision gets everything."""


def create_nonce() -> str:
    return token_hex(8)


class SeenNonces:
    """Nonces by revision, for readers in any thread."""

    def __init__(self) -> None:
        self._seen: dict[int, str] = {}
        self._lock = fork_safe_lock()

    def get(self, revision: int) -> str | None:
        with self._lock:
            return self._seen.get(revision)

    def remember(self, revision: int, nonce: str | None) -> None:
        with self._lock:
            self._seen.pop(revision, None)
            if nonce is not None:
                self._seen[revision] = nonce
            if len(self._seen) > MAX_SEEN:
                del self._seen[next(iter(self._seen))]
