"""Rule ids of policies, client limits and overrides: derived from their names."""

from __future__ import annotations

from hashlib import sha256
from urllib.parse import quote

from crestgate.rules.rule import MAX_ID_BYTES

__all__ = ["derived_id", "derived_id_prefix", "shorten"]

MAX_NAME = 100
"""Characters of a long name that are kept."""


def derived_id(kind: str, *names: str) -> str:
    """The id for a kind and its names, of any characters; different names never share one.

    >>> derived_id("policy", "user-123"), derived_id("client", "a:b", "API", "/web/test")
    ('policy:user-123', 'client:a%3Ab:API:/web/test')
    """
    quoted = [_quoted(name) for name in names]
    joined = ":".join((kind, *quoted))
    if len(joined) <= MAX_ID_BYTES:
        return joined
    return f"{kind}:{quoted[0][:MAX_NAME]}:sha256:{sha256(joined.encode()).hexdigest()}"


def derived_id_prefix(kind: str, name: str) -> str:
    """The common prefix of all ids of a kind and a first name; a few other ids may have it, too."""
    quoted = _quoted(name)
    return f"{kind}:{quoted}:" if len(quoted) <= MAX_NAME else f"{kind}:{quoted[:MAX_NAME]}"


def shorten(name: str) -> str:
    """A name as part of a rule's name, which has a maximum length."""
    return name if len(name) <= MAX_NAME else f"{name[:MAX_NAME]}…"


def _quoted(name: str) -> str:
    return quote(name.encode("utf-8", "surrogatepass"), safe="/@+,=!$&'()*~")
