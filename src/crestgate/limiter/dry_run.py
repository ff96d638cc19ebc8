"""Dry run: denials are logged, at most once a second, and not carried out."""

from __future__ import annotations

import logging
import time

from crestgate.core.decision import Decision

__all__ = ["DryRun"]

_log = logging.getLogger("crestgate")


class DryRun:
    """Logs what would have been denied."""

    __slots__ = ("_logged_at", "_unlogged")

    def __init__(self) -> None:
        self._logged_at = float("-inf")
        self._unlogged = 0

    def denied(self, decision: Decision) -> None:
        """Count a denial, and log if the last log line is older than a second."""
        self._unlogged += 1
        now = time.monotonic()
        if now - self._logged_at >= 1.0:
            self._logged_at = now
            _log.warning("dry run: %s would have denied (%d since last logged)", decision.name, self._unlogged)
            self._unlogged = 0
