"""The Lua program, put together from its parts: one file per idea, as the Python it is the twin of.

Redis knows it by the SHA-1 of its text, so the text never depends on any input.
"""

from __future__ import annotations

import re
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
    "records",
    "program",
)

_CONSTANTS = re.compile(r"^local ([A-Z_]+(?:, [A-Z_]+)*) = (-?[0-9]+(?:, -?[0-9]+)*) *(?:--.*)?\n", re.MULTILINE)


def _inlined(text: str) -> str:
    """The text with its constants written out: in Lua each name that a function uses is work at every call."""
    values: dict[str, str] = {}
    for names, numbers in _CONSTANTS.findall(text):
        values.update(zip(names.split(", "), numbers.split(", "), strict=True))
    return re.sub(r"\b[A-Z_]{2,}\b", lambda name: values.get(name[0], name[0]), _CONSTANTS.sub("", text))


PROGRAM = _inlined(
    "\n".join((files("headgate.stores.redis") / "lua" / f"{part}.lua").read_text("utf-8") for part in _PARTS)
)
PROGRAM_SHA = sha1(PROGRAM.encode(), usedforsecurity=False).hexdigest()
