# mypyc: compile
"""Token bucket: a bucket of `burst` tokens, refilled at `count` per `period`; a request takes `cost` of them.

The default for an API: a client may spend saved tokens in a burst, and then gets the rate. The state holds the tokens
*taken* (see `level`), so that a bucket whose size changes keeps the use.
"""

from __future__ import annotations

from typing import final

from crestgate.core.algorithms.level import Level

__all__ = ["TokenBucket"]


@final
class TokenBucket(Level):
    """The level is the tokens taken and not yet refilled."""
