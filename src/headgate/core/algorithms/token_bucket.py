"""Token bucket: a bucket of `burst` tokens, refilled at `count` per `period`; a request takes `cost` of them.

The usual choice for an API: a client may spend what it saved up at once and then lives on the rate. The state
keeps the tokens *taken* (see `level`), so that a bucket whose size changes does not forget.
"""

from __future__ import annotations

from typing import final

from headgate.core.algorithms.level import Level

__all__ = ["TokenBucket"]


@final
class TokenBucket(Level):
    """The level is the tokens taken and not yet refilled."""
