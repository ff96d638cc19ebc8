"""Machine words: `i64` is a plain C integer in the compiled build, and `int` in the other.

Every number a step meets stays below 2**53 (see `algorithms.algorithm`), so no product or sum of two leaves 64 bits
and the two builds agree. Only the compiler needs to know the real type; running needs nothing but `int`.
"""

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from mypy_extensions import i64 as i64  # noqa: PLC0414 - the alias marks it as exported from here
else:
    i64 = int

__all__ = ["i64"]
