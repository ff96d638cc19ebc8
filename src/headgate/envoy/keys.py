"""The keys of descriptors' counters: the domain and the entries, so that people can read them in a list of counters.

    messaging|message_type=marketing|to_number=2061234567        what the request said
    storage|path~files/*                                         `share_threshold`: the pattern, for all that match it

Signs that separate are escaped, so different descriptors never share a key, whatever stands in them: `a_b`, `c` and
`a`, `b_c` differ, and so do a value and a pattern that read alike. A key that is too long for a store ends in a digest
of all of it instead of being refused: a long header must not be a way around a limit. No other key can look like that,
since all entries have a `=` or a `~`.

Counters' keys are shown to operators, and labels to everybody who reads metrics. So of an entry whose name says that
its value is a secret (`api_key`, `authorization`, `x-auth-token`, …) a digest stands in both, and the secret nowhere.
"""

from __future__ import annotations

import re
from hashlib import sha256
from typing import Final

from headgate.core.masking import digest
from headgate.engine.bound import MAX_KEY_BYTES

__all__ = [
    "SURELY_SHORT",
    "domain_part",
    "entry_part",
    "escaped_value",
    "fitting",
    "is_secret",
    "secret_part",
    "shown_value",
]

SURELY_SHORT: Final = MAX_KEY_BYTES // 4
"""Characters, of which none has more than four bytes."""
DIGEST: Final = "|sha256:"
_HEAD: Final = MAX_KEY_BYTES - len(DIGEST) - 64
_SECRET: Final = re.compile(r"(?i)api[-_.]?key|authorization|cookie|credential|passw|secret|session|token")


def domain_part(domain: str) -> str:
    """How the keys of a domain begin."""
    return domain.replace("%", "%25").replace("|", "%7C")


def entry_part(key: str, pattern: bool) -> str:
    """What stands before the value of an entry, or before the pattern in its place."""
    name = key.replace("%", "%25").replace("|", "%7C").replace("=", "%3D").replace("~", "%7E")
    return f"|{name}~" if pattern else f"|{name}="


def escaped_value(value: str) -> str:
    return value.replace("%", "%25").replace("|", "%7C")


def is_secret(key: str) -> bool:
    """Whether the values of an entry are to be kept to oneself, by its name.

    >>> is_secret("api_key"), is_secret("X-Api-Key"), is_secret("remote_address")
    (True, True, False)
    """
    return _SECRET.search(key) is not None


def secret_part(value: str) -> str:
    """What stands in the place of a secret: all of its digest, so that no two share a counter."""
    return sha256(value.encode("utf-8", "surrogatepass")).hexdigest()


def shown_value(key: str, value: str) -> str:
    """A value as labels have it."""
    return digest(value) if is_secret(key) else value


def fitting(key: str) -> str:
    """The key as it is, or shortened to what a store takes."""
    data = key.encode("utf-8", "surrogatepass")
    if len(data) <= MAX_KEY_BYTES:
        return key
    return f"{data[:_HEAD].decode('utf-8', 'ignore')}{DIGEST}{sha256(data).hexdigest()}"
