"""Distributed locks with fencing: see docs/locks.md."""

from crestgate.errors import LeaseLostError
from crestgate.locks.factory import open_locks
from crestgate.locks.port import Lease, LockService

__all__ = ["Lease", "LeaseLostError", "LockService", "open_locks"]
