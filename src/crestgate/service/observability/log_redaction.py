"""Redaction of secrets in log lines, as the last line of defence.

Nothing in Crestgate logs a secret on purpose, but a line may contain text that others wrote: driver errors, mistyped
addresses, tracebacks. So each finished line is searched for the secrets of this process, and for whatever looks like a
secret: Crestgate API keys, `Authorization` headers, passwords in URLs.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Mapping
from typing import TYPE_CHECKING
from urllib.parse import parse_qsl, quote, unquote, urlsplit

from crestgate.core.redaction import MASK
from crestgate.stores.spec import store_urls

if TYPE_CHECKING:
    from crestgate.config.settings import Settings

__all__ = ["Redactor", "settings_secrets", "url_secrets", "webhook_secrets"]

MIN_SECRET = 4
"""Characters. Masking every `a` would hide nothing and leave nothing readable."""
MIN_PATH_SECRET = 12
"""Characters of a webhook's path or query that may be a secret. `/hook` is too common to be one."""
_SECRET_OPTION = re.compile(r"(?i)pass|pwd|secret|token|key|sig")
_PATTERNS = (
    (re.compile(r"\b(cg_[A-Za-z0-9]{1,64}_)[A-Za-z0-9_-]{20,}"), rf"\1{MASK}"),
    (re.compile(r"(?i)\b(bearer|basic)\s+[A-Za-z0-9._~+/=-]{6,}"), rf"\1 {MASK}"),
    (re.compile(r"(://[^\s:/@\"']{0,256}):[^\s\"']{0,512}@"), rf"\1:{MASK}@"),
    (re.compile(r"(?i)((?:password|passwd|pwd|secret|token|api_key)=)[^\s&\"',;\\]+"), rf"\1{MASK}"),
)


class Redactor:
    """Masks known secrets, and text that looks like a secret."""

    def __init__(self, secrets: Iterable[str] = ()) -> None:
        forms = {form for secret in secrets for form in _forms(secret) if len(form) >= MIN_SECRET}
        known = "|".join(map(re.escape, sorted(forms, key=len, reverse=True)))
        self._known = re.compile(known) if known else None

    def redact(self, text: str) -> str:
        """
        >>> Redactor(["s3cret"]).redact('cannot log in with s3cret at redis://me:other@cache/0')
        'cannot log in with *** at redis://me:***@cache/0'
        """
        if self._known is not None:
            text = self._known.sub(MASK, text)
        for pattern, mask in _PATTERNS:
            text = pattern.sub(mask, text)
        return text


def settings_secrets(settings: Settings, environ: Mapping[str, str]) -> tuple[str, ...]:
    """All secrets of the configuration: passwords in URLs, the webhook's URL, and the operator's API key."""
    urls = store_urls(settings.store)
    secrets = [environ.get("CRESTGATE_ADMIN_KEY", "").strip()]
    for url in (*urls, settings.rules_store or ""):
        secrets += url_secrets(url)
    if settings.webhook is not None:
        secrets += [settings.webhook, *webhook_secrets(settings.webhook)]
    return tuple(dict.fromkeys(text for text in secrets if text))


def url_secrets(url: str) -> list[str]:
    """Passwords in a store URL.

    >>> url_secrets("redis://me:p%40ss@cache/0?sentinel_password=other")
    ['p%40ss', 'other']
    """
    try:
        parts = urlsplit(url)
    except ValueError:
        return []
    userinfo = parts.netloc.rpartition("@")[0]
    options = [value for name, value in parse_qsl(parts.query) if _SECRET_OPTION.search(name)]
    return [secret for secret in (userinfo.partition(":")[2], *options) if secret]


def webhook_secrets(url: str) -> list[str]:
    """Secrets in a webhook URL. Often the path is the secret: whoever knows it may post.

    >>> webhook_secrets("https://hooks.example.com/services/T0/XyZ")
    ['/services/T0/XyZ']

    A path segment that is long enough counts on its own:

    >>> webhook_secrets("https://hooks.example.com/services/T0/B1946AC92492D2")
    ['/services/T0/B1946AC92492D2', 'B1946AC92492D2']
    """
    try:
        parts = urlsplit(url)
    except ValueError:
        return []
    known = (parts.path, *parts.path.split("/")[1:], parts.query)
    return [*url_secrets(url), *(part for part in dict.fromkeys(known) if len(part) >= MIN_PATH_SECRET)]


def _forms(secret: str) -> set[str]:
    """The encodings of a secret that may occur in a line: plain, in a URL, in JSON."""
    plain = {secret, unquote(secret)}
    return plain | {quote(form, safe="") for form in plain} | {json.dumps(form)[1:-1] for form in plain}
