"""The keys of descriptors' counters: the domain and the entries, so that people can read them in a list of counters.

    messaging|message_type=marketing|to_number=2061234567        what the request said
    storage|path~files/*                                         `share_threshold`: the pattern, for all that match it

Signs that separate are escaped, so different descriptors never share a key, whatever stands in them: `a_b`, `c` and
`a`, `b_c` differ, and so do a value and a pattern that read alike. A key that is too long for a store ends in a digest
of all of it instead of being refused: a long header must not be a way around a limit. No other key can look like that,
since all entries have a `=` or a `~`.
"""

from __future__ import annotations

from hashlib import sha256
from typing import Final

from headgate.engine.bound import MAX_KEY_BYTES

__all__ = ["SURELY_SHORT", "domain_part", "entry_part", "escaped_value", "fitting"]

SURELY_SHORT: Final = MAX_KEY_BYTES // 4
"""Characters, of which none has more than four bytes."""
DIGEST: Final = "|sha256:"
_HEAD: Final = MAX_KEY_BYTES - len(DIGEST) - 64


def domain_part(domain: str) -> str:
    """How the keys of a domain begin."""
    return domain.replace("%", "%25").replace("|", "%7C")


def entry_part(key: str, pattern: bool) -> str:
    """What stands before the value of an entry, or before the pattern in its place."""
    name = key.replace("%", "%25").replace("|", "%7C").replace("=", "%3D").replace("~", "%7E")
    return f"|{name}~" if pattern else f"|{name}="


def escaped_value(value: str) -> str:
    return value.replace("%", "%25").replace("|", "%7C")


def fitting(key: str) -> str:
    """The key as it is, or shortened to what a store takes."""
    data = key.encode("utf-8", "surrogatepass")
    if len(data) <= MAX_KEY_BYTES:
        return key
    return f"{data[:_HEAD].decode('utf-8', 'ignore')}{DIGEST}{sha256(data).hexdigest()}"
