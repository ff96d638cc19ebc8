"""Names as they are kept: UTF-8, cut to what a column has room for."""

from __future__ import annotations

from collections.abc import Mapping

__all__ = ["MOST_BYTES", "kept_name", "merged", "read_name"]

MOST_BYTES = 1024


def kept_name(name: str) -> bytes:
    """As many whole characters as fit, also halves of surrogate pairs.

    >>> kept_name("é" * 600) == "é".encode() * 512
    True
    """
    data = name.encode("utf-8", "surrogatepass")
    end = len(data)
    if end > MOST_BYTES:
        end = MOST_BYTES
        while data[end] & 0xC0 == 0x80:  # in the middle of a character
            end -= 1
    return data[:end]


def read_name(data: bytes) -> str:
    """A name that somebody else has written must not keep all others from being shown."""
    try:
        return data.decode("utf-8", "surrogatepass")
    except UnicodeDecodeError:
        return data.decode("utf-8", "backslashreplace")


def merged(counts: Mapping[str, tuple[int, ...]]) -> dict[bytes, tuple[int, ...]]:
    """The counts that are not zero, by the names that are kept, in their order.

    >>> merged({"b": (1, 0), "a": (0, 2), "c": (0, 0)})
    {b'a': (0, 2), b'b': (1, 0)}
    """
    sums: dict[bytes, tuple[int, ...]] = {}
    for name, numbers in counts.items():
        if any(numbers):
            kept = kept_name(name)
            old = sums.get(kept)
            sums[kept] = tuple(numbers) if old is None else tuple(map(int.__add__, old, numbers))
    return dict(sorted(sums.items()))
