"""Redaction of secrets in messages and keys.

Messages go into logs and onto screens, and a misplaced value is often the URL of a store. So whatever looks like a URL
loses everything before its `@`, well formed or not.
"""

from __future__ import annotations

import re

__all__ = [
    "MASK",
    "client_id_from_api_key",
    "digest",
    "digest_api_key",
    "mask_api_key",
    "may_contain_secret",
    "redact_client",
    "redact_text",
    "redact_values",
]

MASK = "***"
LENGTH = 12
"""Hex digits of a digest: the chance of a collision among a million keys is one in 500."""
_VALUE = re.compile(r"(?i)((?:pass|pasw|pwd|secret|token)[^\s=&]{0,64}\s*=\s*)[^&#]*")
_API_KEY = re.compile(r"(?s)(?<!\w)(apikey:)[^|]+")
_SCHEME = re.compile(r"[A-Za-z][A-Za-z0-9+.-]{0,31}")


def redact_text(text: str) -> str:
    """The text without anything that may be a password.

    >>> redact_text("redis://user:secret@localhost:6379/0"), redact_text("redis:user:my secret@localhost")
    ('redis://***@localhost:6379/0', '***@localhost')
    >>> redact_text("alice@example.com"), redact_text("redis://localhost?password=secret")
    ('alice@example.com', 'redis://localhost?password=***')
    """
    before, at, after = text.rpartition("@")
    if at and before and ("/" in text or ":" in text):
        scheme, colon, _ = before.partition("://")
        text = f"{scheme}{colon}{MASK}@{after}" if colon and _SCHEME.fullmatch(scheme) else f"{MASK}@{after}"
    return redact_values(text)


def redact_values(text: str) -> str:
    """The text without the values of password-like parameters.

    >>> redact_values("?db=0&sentinel_password=secret&tls=1")
    '?db=0&sentinel_password=***&tls=1'
    """
    return _VALUE.sub(rf"\1{MASK}", text)


def mask_api_key(key: str) -> str:
    """A counter's key without the API key that it may contain.

    >>> mask_api_key("apikey:secret"), mask_api_key("key:apikey:secret|route:/v1"), mask_api_key("user:42")
    ('apikey:***', 'key:apikey:***|route:/v1', 'user:42')
    """
    return _API_KEY.sub(rf"\1{MASK}", key)


def digest(key: str) -> str:
    """A stable digest to show instead of a key.

    >>> digest("user:42")
    'sha256:ea3fd43be1e5'
    """
    from hashlib import sha256  # not above: it loads OpenSSL, and programs that limit by plans have no digests

    return f"sha256:{sha256(key.encode('utf-8', 'surrogatepass')).hexdigest()[:LENGTH]}"


def digest_api_key(key: str) -> str:
    """A counter's key with a digest of the whole key in place of its API key.

    >>> digest_api_key("user:42"), digest_api_key("apikey:secret|route:/v1")
    ('user:42', 'apikey:sha256:d2c600977c47|route:/v1')
    """
    return mask_api_key(key).replace(MASK, digest(key)) if "apikey:" in key else key


def client_id_from_api_key(api_key: str) -> str:
    """The name of a client that is only known by its API key: the digest of that key.

    >>> client_id_from_api_key("secret"), digest_api_key("apikey:secret")
    ('sha256:ca195b975018', 'apikey:sha256:ca195b975018')
    """
    return digest(f"apikey:{api_key}")


def redact_client(key: str, api_key: str) -> str:
    """A counter's key with a digest instead of an API key that is used as a client's name.

    >>> redact_client("client:secret", "secret"), redact_client("ip:10.0.0.1", "secret")
    ('client:sha256:ca195b975018', 'ip:10.0.0.1')
    >>> redact_client("key:client:se%7Ccret|route:/v1", "se|cret")
    'key:client:sha256:49b394141daf|route:/v1'
    """
    shown = f"client:{client_id_from_api_key(api_key)}"
    joined = api_key.replace("%", "%25").replace("|", "%7C")  # as composite keys escape it
    return key.replace(f"client:{api_key}", shown).replace(f"client:{joined}", shown)


def may_contain_secret(text: str) -> bool:
    """Whether the text may contain a URL or another secret."""
    return "://" in text or "@" in text or redact_values(text) != text
