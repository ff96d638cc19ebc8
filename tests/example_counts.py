"""How many examples Hypothesis tries.

`make test` runs the same properties on the compiled and on the pure build of the same source. The compiled one,
which is faster, tries all examples; the pure one, selected by `CRESTGATE_EXPECT`, a third of them. A run by hand tries
all.
"""

from __future__ import annotations

import os

__all__ = ["examples"]

MIN_EXAMPLES = 20


def examples(count: int) -> int:
    """`count`, or a third of it on the pure build of `make test`."""
    return max(MIN_EXAMPLES, count // 3) if os.environ.get("CRESTGATE_EXPECT") == "pure Python" else count
