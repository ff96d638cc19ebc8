"""Lines of a log that cannot be used: counted by reason, never an error of the whole run."""

from __future__ import annotations

from typing import Any

__all__ = ["BadLines", "LineError"]

MAX_REASONS = 50
MAX_REASON = 200
"""Characters of a reason."""


class LineError(ValueError):
    """Why a line cannot be used."""


class BadLines:
    """How many there are, the first of them, and how many for each reason."""

    def __init__(self) -> None:
        self.count = 0
        self.first: tuple[int, str] | None = None
        """The number of the line, and the reason."""
        self.reasons: dict[str, int] = {}

    def add(self, line: int, reason: str) -> None:
        reason = reason[:MAX_REASON]
        self.count += 1
        if self.first is None or line < self.first[0]:
            self.first = line, reason
        if reason in self.reasons or len(self.reasons) < MAX_REASONS:
            self.reasons[reason] = self.reasons.get(reason, 0) + 1

    def to_data(self) -> dict[str, Any]:
        first = None if self.first is None else {"line": self.first[0], "reason": self.first[1]}
        reasons = sorted(self.reasons.items(), key=lambda item: -item[1])
        return {"count": self.count, "first": first, "reasons": dict(reasons)}
