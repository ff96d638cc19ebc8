"""Names of stores, which rules can have: how they are spelled, and what to say about one that does not exist."""

from __future__ import annotations

from collections.abc import Sequence

__all__ = ["STORE_NAME", "unknown_store"]

STORE_NAME = r"[A-Za-z0-9][A-Za-z0-9_-]{0,63}"


def unknown_store(name: str, names: Sequence[str]) -> str:
    """
    >>> unknown_store("hott", ["hot"])
    "there is no store 'hott': write hot, or add it under stores in the settings"
    >>> unknown_store("hot", [])
    "there is no store 'hot': add it under stores in the settings, as stores: {hot: redis://host:6379/0}"
    """
    if names:
        return f"there is no store {name!r}: write {' or '.join(names)}, or add it under stores in the settings"
    return (
        f"there is no store {name!r}: add it under stores in the settings, as stores: {{{name}: redis://host:6379/0}}"
    )
