"""Which headers are said. A file of its own: settings are sent to worker processes, and what is compiled cannot be."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final, Literal

from crestgate.errors import ConfigError

__all__ = ["RESETS", "HeaderStyle"]

Reset = Literal["seconds", "epoch"]
RESETS: Final[tuple[Reset, ...]] = ("seconds", "epoch")


@dataclass(frozen=True, slots=True)
class HeaderStyle:
    """Which families of headers are said, and what a reset is counted from."""

    ratelimit: bool = True
    x_ratelimit: bool = True
    retry_after: bool = True
    reset: Reset = "seconds"

    def __post_init__(self) -> None:
        if self.reset not in RESETS:
            raise ConfigError(f"reset must be one of {', '.join(RESETS)}, not {self.reset!r}")
