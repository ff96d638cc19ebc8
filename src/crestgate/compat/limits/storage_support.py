"""What sync and async storages have in common."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

__all__ = ["TimestampedSlidingWindow", "wrap_methods"]


def wrap_methods(cls: type, names: tuple[str, ...], wrap: Callable[[Callable[..., Any]], Callable[..., Any]]) -> None:
    """Wrap those of these methods that the class itself implements."""
    for name in names:
        method = cls.__dict__.get(name)
        if method is not None and not getattr(method, "__isabstractmethod__", False):
            setattr(cls, name, wrap(method))


class TimestampedSlidingWindow:
    """Marks storages whose sliding windows are aligned to the epoch: all of Crestgate's."""

    @classmethod
    def sliding_window_keys(cls, key: str, expiry: int, at: float) -> tuple[str, str]:
        """For storages of your own: the keys of the previous and the current window at a time."""
        window = int(at / expiry)
        return f"{key}/{window - 1}", f"{key}/{window}"
