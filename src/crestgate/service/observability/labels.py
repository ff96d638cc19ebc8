"""How keys and rules appear in logs, events, traces and metric labels.

Keys identify people: user names, addresses, API keys. Unless the configuration says `logs: {keys: plain}`, they are
replaced by a digest: the start of SHA-256, unsalted. Every instance logs the same digest for a key, and whoever knows a
key can search for it (`printf %s user:42 | sha256sum | cut -c1-12`). It hides names from readers of the log; it does
not resist somebody who tries all addresses. API keys are secrets, and always logged as a digest.

The ids of rules that were created for one policy, client or user contain its key. It is left out, so such rules are
logged, and counted, as one: `policy`.
"""

from __future__ import annotations

from contextvars import ContextVar
from typing import Literal

from crestgate.core.redaction import digest, digest_api_key, redact_client
from crestgate.observers.labels import NO_RULE, rule_label

__all__ = ["CLIENT_KEY", "NO_RULE", "KeyFormat", "key_label", "rule_label"]

KeyFormat = Literal["hashed", "plain"]
CLIENT_KEY: ContextVar[str | None] = ContextVar("CLIENT_KEY", default=None)
"""The API key that names the client of the current request: the key of the counter does not show that it contains a
secret."""


def key_label(key: str, keys: KeyFormat) -> str:
    """A key in the configured format.

    >>> key_label("user:42", "plain"), key_label("user:42", "hashed")
    ('user:42', 'sha256:ea3fd43be1e5')
    """
    secret = CLIENT_KEY.get()
    if secret is not None:
        key = redact_client(key, secret)
    return digest_api_key(key) if keys == "plain" else digest(key)
