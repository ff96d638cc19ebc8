"""Integer types of mypyc: `i64` is a C integer in the compiled build, and `int` in the other.

Every number of a step stays below 2**53 (see `algorithms.algorithm`), so no sum or product overflows 64 bits, and both
builds agree.
"""

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from mypy_extensions import i64 as i64  # noqa: PLC0414 - the alias marks it as exported from here
else:
    i64 = int

__all__ = ["i64"]
