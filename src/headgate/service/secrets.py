"""What must never be shown, as far as it is known at the start: the log looks for it in every line it writes."""

from __future__ import annotations

from collections.abc import Mapping
from urllib.parse import unquote, urlsplit

from headgate.config.settings import Settings

__all__ = ["secrets_of"]

SHORTEST = 4
"""Characters: shorter ones would be found in words that are no secret."""


def secrets_of(settings: Settings, environ: Mapping[str, str]) -> tuple[str, ...]:
    """Passwords in URLs, the webhook's address, and the first key."""
    urls = [settings.store] if isinstance(settings.store, str) else list(settings.store)
    found = [environ.get("HEADGATE_ADMIN_KEY", "").strip()]
    if settings.webhook is not None:
        found.append(settings.webhook)
    for url in (*urls, settings.rules_store or "", settings.webhook or ""):
        password = _password(url)
        found += [password, unquote(password)]
    return tuple(dict.fromkeys(text for text in found if len(text) >= SHORTEST))


def _password(url: str) -> str:
    """The password in a URL, as it is written there. Lists of hosts are no URL to everybody, so it is cut out."""
    user, at, _ = urlsplit(url).netloc.rpartition("@")
    return user.partition(":")[2] if at else ""
