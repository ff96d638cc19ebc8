"""Locks that hold across processes and machines, so that two writers of one thing never mix. See docs/locks.md."""

from headgate.errors import LeaseLost
from headgate.locks.opening import open_locks
from headgate.locks.port import Lease, LockService

__all__ = ["Lease", "LeaseLost", "LockService", "open_locks"]
