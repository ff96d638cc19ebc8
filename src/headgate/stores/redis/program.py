"""The Lua program, put together from its parts: one file per idea, as the Python it is the twin of.

Redis knows it by the SHA-1 of its text, so the text never depends on any input.
"""

from __future__ import annotations

from hashlib import sha1
from importlib.resources import files

__all__ = ["PROGRAM", "PROGRAM_SHA"]

_PARTS = (
    "numbers",
    "log",
    "level",
    "fixed_window",
    "sliding_window_counter",
    "sliding_window_log",
    "cells",
    "rare",
    "program",
)

PROGRAM = "\n".join((files("headgate.stores.redis") / "lua" / f"{part}.lua").read_text("utf-8") for part in _PARTS)
PROGRAM_SHA = sha1(PROGRAM.encode(), usedforsecurity=False).hexdigest()
