"""Base classes of storages: for Crestgate's own, and for storages that a program brings along."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable
from functools import wraps
from typing import Any, ClassVar

from crestgate.compat.limits._storage_scheme import register_schemes
from crestgate.compat.limits.errors import StorageError
from crestgate.compat.limits.storage_support import TimestampedSlidingWindow, wrap_methods
from crestgate.compat.limits.util import LazyDependency

__all__ = [
    "MovingWindowSupport",
    "SlidingWindowCounterSupport",
    "Storage",
    "TimestampedSlidingWindow",
    "wrap_errors",
]


def wrap_errors(method: Callable[..., Any]) -> Callable[..., Any]:
    """The method, with StorageError in place of the storage's own exceptions if that is wanted."""

    @wraps(method)
    def wrapped(self: Storage, *args: Any, **kwargs: Any) -> Any:
        try:
            return method(self, *args, **kwargs)
        except self.base_exceptions as error:
            if self.wrap_exceptions:
                raise StorageError(error) from error
            raise

    return wrapped


class Storage(LazyDependency, ABC):
    """Counters by key. A subclass with a `STORAGE_SCHEME` is found by `storage_from_string`.

    Exceptions of `base_exceptions` are raised as StorageError if `wrap_exceptions` is true.
    """

    STORAGE_SCHEME: ClassVar[list[str] | None] = None

    def __init_subclass__(cls, **kwargs: Any) -> None:
        super().__init_subclass__(**kwargs)
        wrap_methods(cls, ("incr", "get", "get_expiry", "check", "reset", "clear"), wrap_errors)
        register_schemes(cls)

    def __init__(self, uri: str | None = None, wrap_exceptions: bool = False, **options: Any) -> None:
        self.wrap_exceptions = wrap_exceptions

    @property
    @abstractmethod
    def base_exceptions(self) -> type[Exception] | tuple[type[Exception], ...]:
        """The exceptions by which the storage says that it failed."""

    @abstractmethod
    def incr(self, key: str, expiry: int, amount: int = 1) -> int:
        """Add to the counter of a fixed window; returns its count."""

    @abstractmethod
    def get(self, key: str) -> int:
        """The count of a fixed window."""

    @abstractmethod
    def get_expiry(self, key: str) -> float:
        """When a fixed window ends, in seconds since the epoch."""

    @abstractmethod
    def check(self) -> bool:
        """Whether the storage works."""

    @abstractmethod
    def reset(self) -> int | None:
        """Delete all counters; returns how many there were."""

    @abstractmethod
    def clear(self, key: str) -> None:
        """Delete the counters of a key."""


class MovingWindowSupport(ABC):
    """A storage for the moving window."""

    def __init_subclass__(cls, **kwargs: Any) -> None:
        super().__init_subclass__(**kwargs)
        wrap_methods(cls, ("acquire_entry", "get_moving_window"), wrap_errors)

    @abstractmethod
    def acquire_entry(self, key: str, limit: int, expiry: int, amount: int = 1) -> bool:
        """Count so many requests, if they fit."""

    @abstractmethod
    def get_moving_window(self, key: str, limit: int, expiry: int) -> tuple[float, int]:
        """Time of the oldest request of the window, and how many there are."""


class SlidingWindowCounterSupport(ABC):
    """A storage for the sliding window counter."""

    def __init_subclass__(cls, **kwargs: Any) -> None:
        super().__init_subclass__(**kwargs)
        methods = ("acquire_sliding_window_entry", "get_sliding_window", "clear_sliding_window")
        wrap_methods(cls, methods, wrap_errors)

    @abstractmethod
    def acquire_sliding_window_entry(self, key: str, limit: int, expiry: int, amount: int = 1) -> bool:
        """Count so many requests, if they fit."""

    @abstractmethod
    def get_sliding_window(self, key: str, expiry: int) -> tuple[int, float, int, float]:
        """Count and seconds to live of the previous window, and of the current one."""

    @abstractmethod
    def clear_sliding_window(self, key: str, expiry: int) -> None:
        """Delete the counters of a key."""
