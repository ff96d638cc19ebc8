"""The rule_id of what was not written as a rule: made from its own name, so that nobody has to think of one."""

from __future__ import annotations

from hashlib import sha256
from urllib.parse import quote

from headgate.rules.rule import MOST_ID_BYTES

__all__ = ["shown", "view_id", "view_prefix"]

SHOWN = 100
"""How much of a long name is left to be recognised by."""


def view_id(kind: str, *names: str) -> str:
    """One id for a kind and its names, whatever characters they have; different names never share one.

    >>> view_id("policy", "user-123"), view_id("client", "a:b", "API", "/web/test")
    ('policy:user-123', 'client:a%3Ab:API:/web/test')
    """
    quoted = [_quoted(name) for name in names]
    made = ":".join((kind, *quoted))
    if len(made) <= MOST_ID_BYTES:
        return made
    return f"{kind}:{quoted[0][:SHOWN]}:sha256:{sha256(made.encode()).hexdigest()}"


def view_prefix(kind: str, name: str) -> str:
    """What all ids of a kind and a first name begin with; those of a few others may, too."""
    quoted = _quoted(name)
    return f"{kind}:{quoted}:" if len(quoted) <= SHOWN else f"{kind}:{quoted[:SHOWN]}"


def shown(name: str) -> str:
    """A name as part of a rule's name, which is for people to read and must not grow too long to be kept."""
    return name if len(name) <= SHOWN else f"{name[:SHOWN]}…"


def _quoted(name: str) -> str:
    return quote(name.encode("utf-8", "surrogatepass"), safe="/@+,=!$&'()*~")
