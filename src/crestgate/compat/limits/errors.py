"""The exceptions of `limits`. They are also Crestgate's, so that code of both kinds can catch them."""

from __future__ import annotations

from crestgate.errors import ConfigError, CrestgateError

__all__ = ["ConcurrentUpdateError", "ConfigurationError", "StorageError"]


class ConfigurationError(ConfigError):
    """A storage URL, option or limit that cannot be used; the message says what to write instead."""


class ConcurrentUpdateError(CrestgateError):
    """For storages of your own that give up after so many conflicting updates. Crestgate's stores never raise it."""

    def __init__(self, key: str, attempts: int) -> None:
        super().__init__(f"unable to update {key!r} after {attempts} attempts")


class StorageError(CrestgateError):
    """A storage failed, and was built with `wrap_exceptions=True`; `storage_error` is its own exception."""

    def __init__(self, storage_error: Exception) -> None:
        super().__init__(storage_error)
        self.storage_error = storage_error
