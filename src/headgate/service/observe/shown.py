"""How keys and rules are shown, in logs, events, traces and the labels of metrics.

Keys are whom somebody limits: user names, addresses, API keys. Unless the configuration says `logs: {keys: plain}`, a
digest stands in their place. It is the beginning of SHA-256, without a secret of its own: every instance shows the same
key alike, and who knows a key can look for it (`printf %s user:42 | sha256sum | cut -c1-12`). So it hides names from
readers; it does not withstand somebody who tries all addresses. API keys are secrets, and shown by digest always.

The ids that are made for the rule of one policy, client or user have that one's key in them. It is left out, so that
such rules are shown, and counted, as one: `policy`, whosever it is.
"""

from __future__ import annotations

from contextvars import ContextVar
from typing import Literal

from headgate.core.masking import digest, without_client, without_secrets
from headgate.http.headers import general_name

__all__ = ["CLIENT_KEY", "NO_RULE", "Keys", "shown_key", "shown_rule"]

Keys = Literal["hashed", "plain"]
NO_RULE = "no_rule"
"""In the place of a rule where none applied."""
CLIENT_KEY: ContextVar[str | None] = ContextVar("CLIENT_KEY", default=None)
"""The API key that is the name of a client, while a request of that client is decided: the counter's key alone does not
say that there is a secret in it."""


def shown_key(key: str, keys: Keys) -> str:
    """A key as the configuration wants it shown.

    >>> shown_key("user:42", "plain"), shown_key("user:42", "hashed")
    ('user:42', 'sha256:ea3fd43be1e5')
    """
    secret = CLIENT_KEY.get()
    if secret is not None:
        key = without_client(key, secret)
    return without_secrets(key) if keys == "plain" else digest(key)


def shown_rule(label: str) -> str:
    """A rule by a name that says nothing of whom it is for, and that all have in common.

    >>> shown_rule("gold"), shown_rule("override:alice:orders"), shown_rule("policy:alice"), shown_rule("")
    ('gold', 'override:orders', 'policy', 'no_rule')
    """
    name = general_name(label)
    if name != label:  # an id that would have been too long ends in a digest of all of it
        name = name.partition(":sha256:")[0]
    return name or NO_RULE
