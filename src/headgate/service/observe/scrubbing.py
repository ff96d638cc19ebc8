"""The last line of defence: a line of the log without the secrets that may stand in it.

Nothing in Headgate logs a secret on purpose. But what is logged has parts that others made: messages of drivers,
addresses that somebody mistyped, tracebacks. So the finished line is looked through for what this process knows to be
secret, and for what looks like it: tokens of Headgate, `Authorization`, passwords in URLs.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterable
from urllib.parse import parse_qsl, quote, unquote, urlsplit

from headgate.core.masking import MASK

__all__ = ["Scrubber", "secrets_of_url", "secrets_of_webhook"]

SHORTEST = 4
"""Characters. To take out every `a` would hide nothing, and leave nothing to read."""
SHORTEST_PATH = 12
"""Characters of a webhook's path or query that may be a secret; `/hook` is none, and stands in other paths, too."""
_SECRET_OPTION = re.compile(r"(?i)pass|pwd|secret|token|key|sig")
_PATTERNS = (
    (re.compile(r"\b(hg_[A-Za-z0-9]{1,64}_)[A-Za-z0-9_-]{20,}"), rf"\1{MASK}"),
    (re.compile(r"(?i)\b(bearer|basic)\s+[A-Za-z0-9._~+/=-]{6,}"), rf"\1 {MASK}"),
    (re.compile(r"(://[^\s:/@\"']{0,256}):[^\s\"']{0,512}@"), rf"\1:{MASK}@"),
    (re.compile(r"(?i)((?:password|passwd|pwd|secret|token|api_key)=)[^\s&\"',;\\]+"), rf"\1{MASK}"),
)


class Scrubber:
    """Knows some secrets, and takes them out of text."""

    def __init__(self, secrets: Iterable[str] = ()) -> None:
        forms = {form for secret in secrets for form in _forms(secret) if len(form) >= SHORTEST}
        known = "|".join(map(re.escape, sorted(forms, key=len, reverse=True)))
        self._known = re.compile(known) if known else None

    def scrub(self, text: str) -> str:
        """
        >>> Scrubber(["s3cret"]).scrub('cannot log in with s3cret at redis://me:other@cache/0')
        'cannot log in with *** at redis://me:***@cache/0'
        """
        if self._known is not None:
            text = self._known.sub(MASK, text)
        for pattern, mask in _PATTERNS:
            text = pattern.sub(mask, text)
        return text


def secrets_of_url(url: str) -> list[str]:
    """What in a store's URL nobody else is to know.

    >>> secrets_of_url("redis://me:p%40ss@cache/0?sentinel_password=other")
    ['p%40ss', 'other']
    """
    try:
        parts = urlsplit(url)
    except ValueError:
        return []
    userinfo = parts.netloc.rpartition("@")[0]
    options = [value for name, value in parse_qsl(parts.query) if _SECRET_OPTION.search(name)]
    return [secret for secret in (userinfo.partition(":")[2], *options) if secret]


def secrets_of_webhook(url: str) -> list[str]:
    """Who knows the whole URL of a webhook may post to it: often its path is the secret.

    >>> secrets_of_webhook("https://hooks.example.com/services/T0/XyZ")
    ['/services/T0/XyZ']

    So may be a part of the path that is long enough for one:

    >>> secrets_of_webhook("https://hooks.example.com/services/T0/B1946AC92492D2")
    ['/services/T0/B1946AC92492D2', 'B1946AC92492D2']
    """
    try:
        parts = urlsplit(url)
    except ValueError:
        return []
    known = (parts.path, *parts.path.split("/")[1:], parts.query)
    return [*secrets_of_url(url), *(part for part in dict.fromkeys(known) if len(part) >= SHORTEST_PATH)]


def _forms(secret: str) -> set[str]:
    """A secret as it may stand in a line: as it is, in a URL, and in JSON."""
    plain = {secret, unquote(secret)}
    return plain | {quote(form, safe="") for form in plain} | {json.dumps(form)[1:-1] for form in plain}
