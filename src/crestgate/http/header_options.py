"""Header settings; not compiled, because settings are pickled."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final, Literal

from crestgate.errors import ConfigError

__all__ = ["RESETS", "HeaderStyle", "Reset"]

Reset = Literal["seconds", "epoch"]
RESETS: Final[tuple[Reset, ...]] = ("seconds", "epoch")


@dataclass(frozen=True, slots=True)
class HeaderStyle:
    """Which header families are sent, and whether a reset is relative or a Unix time."""

    ratelimit: bool = True
    x_ratelimit: bool = True
    retry_after: bool = True
    reset: Reset = "seconds"

    def __post_init__(self) -> None:
        if self.reset not in RESETS:
            raise ConfigError(f"reset must be one of {', '.join(RESETS)}, not {self.reset!r}")
