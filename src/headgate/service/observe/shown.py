"""How a key is shown, in logs, events and the labels of metrics.

Keys are whom somebody limits: user names, addresses, API keys. Unless the configuration says `logs: {keys: plain}`, a
digest stands in their place. It is the beginning of SHA-256, without a secret of its own: every instance shows the same
key alike, and who knows a key can look for it (`printf %s user:42 | sha256sum | cut -c1-12`). So it hides names from
readers; it does not withstand somebody who tries all addresses. API keys are secrets, and shown by digest always.
"""

from __future__ import annotations

from hashlib import sha256
from typing import Literal

from headgate.core.masking import MASK, masked_key

__all__ = ["Keys", "digest", "shown_key", "without_secrets"]

Keys = Literal["hashed", "plain"]
LENGTH = 12
"""Hex digits: two of a million keys are shown alike with a chance of one in 500."""


def digest(key: str) -> str:
    """
    >>> digest("user:42")
    'sha256:ea3fd43be1e5'
    """
    return f"sha256:{sha256(key.encode('utf-8', 'surrogatepass')).hexdigest()[:LENGTH]}"


def shown_key(key: str, keys: Keys) -> str:
    """A key as the configuration wants it shown.

    >>> shown_key("user:42", "plain"), shown_key("user:42", "hashed")
    ('user:42', 'sha256:ea3fd43be1e5')
    """
    return without_secrets(key) if keys == "plain" else digest(key)


def without_secrets(key: str) -> str:
    """A key with a digest in the place of an API key.

    >>> without_secrets("user:42"), without_secrets("apikey:secret|route:/v1")
    ('user:42', 'apikey:sha256:d2c600977c47|route:/v1')
    """
    return masked_key(key).replace(MASK, digest(key)) if "apikey:" in key else key
