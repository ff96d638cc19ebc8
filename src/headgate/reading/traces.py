"""Whether files have changed since they were read.

It is told by stamps (which file it is, its size and times), which costs a look at each. A file system counts time in
steps of some milliseconds, and two edits within one step leave one stamp: so the first look after a reading compares
the bytes once more.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping
from typing import TypeVar

from headgate.reading.document import Stamp, digest_of

__all__ = ["Seen", "Traces"]

Seen = Stamp | tuple[str, ...] | None
"""By what a change is noticed: a file's stamp, the names in a folder, None for what is not there."""

T = TypeVar("T")


class Traces:
    """What files and folders looked like when they were read."""

    def __init__(self) -> None:
        self._seen: dict[str, Seen] = {}
        self._digests: dict[str, bytes | None] = {}
        self._settled = False

    def take(self, seen: Mapping[str, Seen], digests: Mapping[str, bytes | None]) -> None:
        """They were read, and this is what they looked like, and their contents in short."""
        self._seen = _anchored(seen)
        self._digests = _anchored(digests)
        self._settled = False

    def changed(self, look: Callable[[str], Seen]) -> bool:
        """Whether any of them is another now."""
        if any(look(path) != seen for path, seen in self._seen.items()):
            return True
        if self._settled:
            return False
        self._settled = True
        return any(digest_of(path) != digest for path, digest in self._digests.items())

    def same(self, digests: Mapping[str, bytes | None]) -> bool:
        """Whether files with these contents are what was read."""
        return _anchored(digests) == self._digests


def _anchored(by_path: Mapping[str, T]) -> dict[str, T]:
    """A program may go to another folder; its files stay where they are."""
    return {os.path.abspath(path): value for path, value in by_path.items()}
