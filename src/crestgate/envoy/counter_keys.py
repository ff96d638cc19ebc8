# mypyc: compile
"""Counter keys of descriptors: the domain and the entries, readable in a list of counters.

    messaging|message_type=marketing|to_number=2061234567        the values of the request
    storage|path~files/*                                         `share_threshold`: the pattern, for all that match it

Separators are escaped, so different descriptors never share a key: `a_b`, `c` and `a`, `b_c` differ, and so do a value
and a pattern of the same text. A key that is too long for a store ends in a digest of all of it instead of being
refused: a long header must not circumvent a limit. No other key can look like that, since all entries have a `=` or a
`~`.

Operators see counter keys, and readers of metrics see labels. So for an entry whose name suggests a secret
 (`api_key`, `authorization`, `x-auth-token`, …) both have a digest of the value.
"""

from __future__ import annotations

import re
from hashlib import sha256
from typing import Final

from crestgate.core.bounds import MAX_KEY_BYTES
from crestgate.core.redaction import digest

__all__ = [
    "SHORT_KEY",
    "domain_part",
    "entry_part",
    "escaped_value",
    "is_secret",
    "secret_part",
    "shorten_key",
    "value_label",
]

SHORT_KEY: Final = MAX_KEY_BYTES // 4
"""Characters that always fit: each has at most four bytes."""
DIGEST: Final = "|sha256:"
_HEAD: Final = MAX_KEY_BYTES - len(DIGEST) - 64
_SECRET: Final = re.compile(r"(?i)api[-_.]?key|authorization|cookie|credential|passw|secret|session|token")


def domain_part(domain: str) -> str:
    """The first part of the keys of a domain."""
    return domain.replace("%", "%25").replace("|", "%7C")


def entry_part(key: str, pattern: bool) -> str:
    """The part of a key before the value of an entry, or before its pattern."""
    name = key.replace("%", "%25").replace("|", "%7C").replace("=", "%3D").replace("~", "%7E")
    return f"|{name}~" if pattern else f"|{name}="


def escaped_value(value: str) -> str:
    return value.replace("%", "%25").replace("|", "%7C")


def is_secret(key: str) -> bool:
    """Whether the values of an entry are secret, by its name.

    >>> is_secret("api_key"), is_secret("X-Api-Key"), is_secret("remote_address")
    (True, True, False)
    """
    return _SECRET.search(key) is not None


def secret_part(value: str) -> str:
    """The digest of a secret in a key: all of it, so that no two share a counter."""
    return sha256(value.encode("utf-8", "surrogatepass")).hexdigest()


def value_label(key: str, value: str) -> str:
    """A value for a label."""
    return digest(value) if is_secret(key) else value


def shorten_key(key: str) -> str:
    """The key, shortened if it is too long for a store."""
    data = key.encode("utf-8", "surrogatepass")
    if len(data) <= MAX_KEY_BYTES:
        return key
    return f"{data[:_HEAD].decode('utf-8', 'ignore')}{DIGEST}{sha256(data).hexdigest()}"
