"""How deeply JSON may be nested: what is deeper than anything we read is refused before it is read."""

from __future__ import annotations

import re

__all__ = ["MOST_DEPTH", "too_deep"]

MOST_DEPTH = 32
_TOKENS = re.compile(rb'"[^"\\]*(?:\\.[^"\\]*)*"?|[\[{]|[\]}]', re.DOTALL)


def too_deep(body: bytes) -> bool:
    """Whether a body is nested deeper than MOST_DEPTH, whatever else may be wrong with it.

    >>> too_deep(b"[" * 32 + b"]" * 32), too_deep(b'{"a":' * 33), too_deep(b'["' + b"[" * 99 + b'"]')
    (False, True, False)
    """
    if body.count(b"[") + body.count(b"{") <= MOST_DEPTH:
        return False
    depth = 0
    for token in _TOKENS.finditer(body):
        mark = token[0][:1]
        if mark in b"[{":
            depth += 1
            if depth > MOST_DEPTH:
                return True
        elif mark in b"]}":
            depth -= 1
    return False
