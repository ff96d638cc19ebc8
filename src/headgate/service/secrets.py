"""What must never be shown, as far as it is known at the start: the log looks for it in every line it writes."""

from __future__ import annotations

from collections.abc import Mapping

from headgate.config.settings import Settings
from headgate.service.observe.scrubbing import secrets_of_url, secrets_of_webhook

__all__ = ["secrets_of"]


def secrets_of(settings: Settings, environ: Mapping[str, str]) -> tuple[str, ...]:
    """Passwords in URLs, the webhook's address, and the first key."""
    urls = [settings.store] if isinstance(settings.store, str) else list(settings.store)
    found = [environ.get("HEADGATE_ADMIN_KEY", "").strip()]
    for url in (*urls, settings.rules_store or ""):
        found += secrets_of_url(url)
    if settings.webhook is not None:
        found += [settings.webhook, *secrets_of_webhook(settings.webhook)]
    return tuple(dict.fromkeys(text for text in found if text))
