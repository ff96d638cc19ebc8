"""Text that somebody wrote, as a message may repeat it: without the passwords that may stand in it.

A message goes into logs and onto screens, and what was written in the wrong place is often the URL of a store. So
whatever looks like an address loses what stands before its `@`, well formed or not.
"""

from __future__ import annotations

import re
from hashlib import sha256

__all__ = [
    "MASK",
    "client_of_api_key",
    "digest",
    "holds_address",
    "masked_key",
    "masked_text",
    "masked_values",
    "without_client",
    "without_secrets",
]

MASK = "***"
LENGTH = 12
"""Hex digits of a digest: two of a million keys are shown alike with a chance of one in 500."""
_VALUE = re.compile(r"(?i)((?:pass|pasw|pwd|secret|token)[^\s=&]{0,64}\s*=\s*)[^&#]*")
_API_KEY = re.compile(r"(?s)(?<!\w)(apikey:)[^|]+")
_SCHEME = re.compile(r"[A-Za-z][A-Za-z0-9+.-]{0,31}")


def masked_text(text: str) -> str:
    """The text without what may be a password.

    >>> masked_text("redis://user:secret@localhost:6379/0"), masked_text("redis:user:my secret@localhost")
    ('redis://***@localhost:6379/0', '***@localhost')
    >>> masked_text("alice@example.com"), masked_text("redis://localhost?password=secret")
    ('alice@example.com', 'redis://localhost?password=***')
    """
    before, at, after = text.rpartition("@")
    if at and before and ("/" in text or ":" in text):
        scheme, colon, _ = before.partition("://")
        text = f"{scheme}{colon}{MASK}@{after}" if colon and _SCHEME.fullmatch(scheme) else f"{MASK}@{after}"
    return masked_values(text)


def masked_values(text: str) -> str:
    """The text without the values of what is called a password.

    >>> masked_values("?db=0&sentinel_password=secret&tls=1")
    '?db=0&sentinel_password=***&tls=1'
    """
    return _VALUE.sub(rf"\1{MASK}", text)


def masked_key(key: str) -> str:
    """A counter's key without the API key that may stand in it.

    >>> masked_key("apikey:secret"), masked_key("key:apikey:secret|route:/v1"), masked_key("user:42")
    ('apikey:***', 'key:apikey:***|route:/v1', 'user:42')
    """
    return _API_KEY.sub(rf"\1{MASK}", key)


def digest(key: str) -> str:
    """What is shown in a key's place: the same for the same key, everywhere.

    >>> digest("user:42")
    'sha256:ea3fd43be1e5'
    """
    return f"sha256:{sha256(key.encode('utf-8', 'surrogatepass')).hexdigest()[:LENGTH]}"


def without_secrets(key: str) -> str:
    """A counter's key with a digest in the place of an API key.

    >>> without_secrets("user:42"), without_secrets("apikey:secret|route:/v1")
    ('user:42', 'apikey:sha256:d2c600977c47|route:/v1')
    """
    return masked_key(key).replace(MASK, digest(key)) if "apikey:" in key else key


def client_of_api_key(api_key: str) -> str:
    """What a client is called whom only its API key names: by the digest that the key itself is shown with.

    >>> client_of_api_key("secret"), without_secrets("apikey:secret")
    ('sha256:ca195b975018', 'apikey:sha256:ca195b975018')
    """
    return digest(f"apikey:{api_key}")


def without_client(key: str, api_key: str) -> str:
    """A counter's key without the API key that stands in it as the name of a client, alone or among others.

    >>> without_client("client:secret", "secret"), without_client("ip:10.0.0.1", "secret")
    ('client:sha256:ca195b975018', 'ip:10.0.0.1')
    >>> without_client("key:client:se%7Ccret|route:/v1", "se|cret")
    'key:client:sha256:49b394141daf|route:/v1'
    """
    shown = f"client:{client_of_api_key(api_key)}"
    joined = api_key.replace("%", "%25").replace("|", "%7C")  # as keys that are made of several have it
    return key.replace(f"client:{api_key}", shown).replace(f"client:{joined}", shown)


def holds_address(text: str) -> bool:
    """Whether there may be a URL in it, or something else of which not all is to be shown."""
    return "://" in text or "@" in text or masked_values(text) != text
