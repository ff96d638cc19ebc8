"""The Lua script, joined from one file per algorithm or topic, each the twin of its Python module.

Redis caches it under the SHA-1 of its text, so the text never depends on any input.
"""

from __future__ import annotations

import re
from hashlib import sha1
from importlib.resources import files

from crestgate.stores.redis.codec import KINDS

__all__ = ["SCRIPT", "SCRIPT_SHA"]

_FOLDER = files("crestgate.stores.redis") / "lua"
_PARTS = (
    "numbers",
    "single",
    "implementations",
    "log",
    "level",
    *(kind for kind in sorted(KINDS) if (_FOLDER / f"{kind}.lua").is_file()),  # three share `level`
    "cells",
    "slow_path",
    "records",
    "main",
)

_CONSTANTS = re.compile(r"^local ([A-Z_]+(?:, [A-Z_]+)*) = (-?[0-9]+(?:, -?[0-9]+)*) *(?:--.*)?\n", re.MULTILINE)


def _inline_constants(text: str) -> str:
    """Replace constants by their values: in Lua each upvalue that a function uses costs time at every call."""
    values = {name.upper(): str(number) for name, number in KINDS.items()}
    for names, numbers in _CONSTANTS.findall(text):
        values.update(zip(names.split(", "), numbers.split(", "), strict=True))
    return re.sub(r"\b[A-Z_]{2,}\b", lambda name: values.get(name[0], name[0]), _CONSTANTS.sub("", text))


SCRIPT = _inline_constants("\n".join((_FOLDER / f"{part}.lua").read_text("utf-8") for part in _PARTS))
SCRIPT_SHA = sha1(SCRIPT.encode(), usedforsecurity=False).hexdigest()
