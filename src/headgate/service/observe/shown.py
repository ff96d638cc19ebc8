"""How a key is shown, in logs, events and the labels of metrics.

Keys are whom somebody limits: user names, addresses, API keys. Unless the configuration says `logs: {keys: plain}`, a
digest stands in their place. It is the beginning of SHA-256, without a secret of its own: every instance shows the same
key alike, and who knows a key can look for it (`printf %s user:42 | sha256sum | cut -c1-12`). So it hides names from
readers; it does not withstand somebody who tries all addresses. API keys are secrets, and shown by digest always.
"""

from __future__ import annotations

from typing import Literal

from headgate.core.masking import digest, without_secrets

__all__ = ["Keys", "shown_key"]

Keys = Literal["hashed", "plain"]


def shown_key(key: str, keys: Keys) -> str:
    """A key as the configuration wants it shown.

    >>> shown_key("user:42", "plain"), shown_key("user:42", "hashed")
    ('user:42', 'sha256:ea3fd43be1e5')
    """
    return without_secrets(key) if keys == "plain" else digest(key)
