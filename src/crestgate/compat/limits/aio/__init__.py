"""The same for asyncio."""

from crestgate.compat.limits.aio import storage, strategies

__all__ = ["storage", "strategies"]
