"""What the workers of one machine share besides the store: a folder with their own counters and numbers.

It is made when the service starts and goes when it ends. How often somebody called the admin API, and how many checks
this node has answered, is nobody else's business, and must be known when the store is away, too.
"""

from __future__ import annotations

import os
import shutil
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from urllib.parse import quote

__all__ = ["Node", "node_folder"]

MOST_KEYS = 20_000
"""Counters of callers: by key and by address, the latter bounded whoever comes."""


@dataclass(frozen=True, slots=True)
class Node:
    """The folder of one node."""

    folder: str

    @property
    def counters(self) -> str:
        """The URL of the counters that the workers share for themselves."""
        return f"shared://{quote(os.path.join(self.folder, 'callers'))}?max_keys={MOST_KEYS}"

    @property
    def boards(self) -> str:
        return os.path.join(self.folder, "boards")


@contextmanager
def node_folder() -> Iterator[Node]:
    """A new folder, for as long as the service runs. Only its user can look into it."""
    folder = tempfile.mkdtemp(prefix="headgate-")
    try:
        yield Node(folder)
    finally:
        shutil.rmtree(folder, ignore_errors=True)
