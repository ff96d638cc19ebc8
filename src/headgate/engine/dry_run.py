"""A dry run denies nobody: what it would have denied is logged, once a second at most, however many it is."""

from __future__ import annotations

import logging
import time

from headgate.core.decision import Decision

__all__ = ["DryRun"]

_log = logging.getLogger("headgate")


class DryRun:
    """What would have been denied, to be told of now and then."""

    __slots__ = ("_logged_at", "_unlogged")

    def __init__(self) -> None:
        self._logged_at = float("-inf")
        self._unlogged = 0

    def denied(self, decision: Decision) -> None:
        """One more."""
        self._unlogged += 1
        now = time.monotonic()
        if now - self._logged_at >= 1.0:
            self._logged_at = now
            _log.warning("dry run: %s would have denied (%d since last said)", decision.name, self._unlogged)
            self._unlogged = 0
