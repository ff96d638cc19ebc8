"""The shared-memory store: see `store` for how it works."""

from crestgate.stores.shared.store import SharedStore

__all__ = ["SharedStore"]
