"""Locks of the operating system on files, and what to say where there are none.

`shared://` needs open file description locks, the files of Linux's `/proc`, and Linux's `struct flock`; macOS has locks
of that name with another structure, so it is the system that counts. Windows has no `fcntl` at all. Whatever imports
this module imports everywhere; what cannot work says so when it is opened.
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from importlib import import_module
from types import ModuleType

__all__ = [
    "F_OFD_SETLK",
    "F_UNLCK",
    "F_WRLCK",
    "NEEDS_LINUX",
    "fcntl",
    "has_flock",
    "has_shared_memory",
    "try_flock",
    "unlock",
]

NEEDS_LINUX = "shared:// needs Linux (open file description locks); use memory://, sqlite:///file or redis:// here"


def _optional(name: str) -> ModuleType | None:
    try:
        return import_module(name)
    except ModuleNotFoundError:
        return None


def _missing(_file: int, _command: int, _argument: bytes) -> object:
    raise OSError(NEEDS_LINUX)


_module = _optional("fcntl")
F_OFD_SETLK: int = getattr(_module, "F_OFD_SETLK", -1)
F_WRLCK: int = getattr(_module, "F_WRLCK", -1)
F_UNLCK: int = getattr(_module, "F_UNLCK", -1)
fcntl: Callable[[int, int, bytes], object] = getattr(_module, "fcntl", _missing)


def has_shared_memory() -> bool:
    """Whether `shared://` works on this system."""
    return sys.platform == "linux" and F_OFD_SETLK >= 0


def has_flock() -> bool:
    """Whether whole files can be locked between processes: on Linux and macOS, not on Windows."""
    return hasattr(_module, "flock")


def try_flock(file: int) -> bool:
    """Lock a whole file against other processes, if it is free. OSError where it cannot be locked at all."""
    assert _module is not None
    try:
        _module.flock(file, _module.LOCK_EX | _module.LOCK_NB)
    except BlockingIOError:
        return False
    return True


def unlock(file: int) -> None:
    assert _module is not None
    _module.flock(file, _module.LOCK_UN)
