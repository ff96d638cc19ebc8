"""Stored names: UTF-8, truncated to the size of the column."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TypeVar

from crestgate.history.port import MAX_DENIED, MAX_SUBJECTS

__all__ = ["MAX_NAME_BYTES", "decode_name", "encode_name", "merge_counts", "top_names"]

MAX_NAME_BYTES = 1024
Name = TypeVar("Name", str, bytes)
"""As it is counted, or as it is stored."""


def encode_name(name: str) -> bytes:
    """As many whole characters as fit, lone surrogates included.

    >>> encode_name("é" * 600) == "é".encode() * 512
    True
    """
    data = name.encode("utf-8", "surrogatepass")
    end = len(data)
    if end > MAX_NAME_BYTES:
        end = MAX_NAME_BYTES
        while data[end] & 0xC0 == 0x80:  # in the middle of a character
            end -= 1
    return data[:end]


def decode_name(data: bytes) -> str:
    """Never fails: one malformed name must not hide all others."""
    try:
        return data.decode("utf-8", "surrogatepass")
    except UnicodeDecodeError:
        return data.decode("utf-8", "backslashreplace")


def merge_counts(counts: Mapping[str, tuple[int, ...]]) -> dict[bytes, tuple[int, ...]]:
    """The counts that are not zero, by stored name, sorted.

    >>> merge_counts({"b": (1, 0), "a": (0, 2), "c": (0, 0)})
    {b'a': (0, 2), b'b': (1, 0)}
    """
    sums: dict[bytes, tuple[int, ...]] = {}
    for name, numbers in counts.items():
        if any(numbers):
            key = encode_name(name)
            old = sums.get(key)
            sums[key] = tuple(numbers) if old is None else tuple(map(int.__add__, old, numbers))
    return dict(sorted(sums.items()))


def top_names(
    counts: Mapping[Name, tuple[int, int]], max_subjects: int = MAX_SUBJECTS, max_denied: int = MAX_DENIED
) -> set[Name]:
    """The subjects that are kept, of these numbers allowed and denied: those with the most requests, and those with the
    most denials. An attack is seldom among the busiest.

    >>> sorted(top_names({"busy": (9, 0), "busier": (99, 0), "attack": (0, 5), "unlucky": (3, 1)}, 1, 1))
    ['attack', 'busier']
    """
    busiest: list[Name] = sorted(counts, key=lambda name: (-sum(counts[name]), name))[:max_subjects]
    denied: list[Name] = sorted((name for name in counts if counts[name][1]), key=lambda name: (-counts[name][1], name))
    return set(busiest + denied[:max_denied])
