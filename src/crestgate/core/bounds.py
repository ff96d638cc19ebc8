# mypyc: compile
"""Bounds on keys and costs, and the checks that enforce them."""

from __future__ import annotations

from operator import index
from typing import Final, Protocol, SupportsIndex

from crestgate.errors import input_error

__all__ = ["DEFAULT_PREFIX", "MAX_COST", "MAX_KEY_BYTES", "KeyText", "check_input", "is_text", "whole_cost"]

MAX_COST: Final = 2**31 - 1
MAX_KEY_BYTES: Final = 1024
DEFAULT_PREFIX: Final = "cg"


class KeyText(Protocol):
    """`str`, but not numbers or bytes, for type checkers. At run time anything may be passed, and is validated."""

    def isidentifier(self) -> bool: ...


def whole_cost(cost: SupportsIndex, name: str = "cost") -> int:
    """A cost as an int; a float is an error even when it is 1.0."""
    try:
        return index(cost)
    except TypeError:
        raise input_error(ValueError, name, f"must be a whole number from 0 to {MAX_COST}, not {cost!r}") from None


def check_input(key: KeyText, cost: int) -> str:
    """Validate a key and a cost; returns the key as text."""
    if cost < 0 or cost > MAX_COST:
        raise input_error(ValueError, "cost", f"must be a whole number from 0 to {MAX_COST}, not {cost!r}")
    if not isinstance(key, str):
        raise input_error(TypeError, "key", f"must be text such as 'user:42', not {key!r}")
    if not key:
        raise input_error(ValueError, "key", "must not be empty: name what is limited, for example 'user:42'")
    size = len(key.encode("utf-8", "surrogatepass"))
    if size > MAX_KEY_BYTES:
        reason = f"is {size} bytes long; the maximum is {MAX_KEY_BYTES}: use a digest of what it is made from"
        raise input_error(ValueError, "key", reason)
    return key


def is_text(name: str) -> bool:
    """Whether it can be encoded as UTF-8. A lone surrogate cannot, so no file or response could contain it."""
    try:
        name.encode()
    except UnicodeEncodeError:
        return False
    return True
