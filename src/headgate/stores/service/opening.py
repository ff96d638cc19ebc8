"""`headgate://[:KEY@]host[:8080]`, and `headgates://` with TLS: what a store URL says of a service."""

from __future__ import annotations

import ssl

from headgate.stores.clock import Clock
from headgate.stores.options import Options
from headgate.stores.remote import DEFAULT_TIMEOUT_MS
from headgate.stores.service.place import Place
from headgate.stores.service.store import ServiceStore

__all__ = ["DEFAULT_PORT", "open_service_store"]

DEFAULT_PORT = 8080
SECURE = "headgates"


def open_service_store(options: Options, clock: Clock | None) -> ServiceStore:
    """The store that a URL names; nothing is connected to yet. ConfigError for what cannot be meant."""
    options.allow("ssl_ca")
    if "prefix" in options.values:
        raise options.error("prefix is the service's own, and stands in the store URL of its configuration")
    if clock is not None:
        raise options.error("the service goes by its own clock: clock= is for stores on this machine's")
    if options.username is not None:
        raise options.error("a service knows keys, and no users: write headgate://:KEY@host:8080, with the colon")
    if options.path not in ("", "/"):
        raise options.error("a service has no path: write headgate://host:8080")
    places = options.places(DEFAULT_PORT)
    if len(places) > 1:
        raise options.error("one URL names one service; several are a list of URLs, or behind a load balancer")
    key = options.password or None
    if key is not None and not (key.isascii() and key.isprintable() and " " not in key):
        raise options.error("a key has letters, digits and '_' in it, as `headgate keys create` shows it")
    host, port = places[0]
    place = Place(host, port, key, _tls(options))
    return ServiceStore(place, timeout_ms=options.timeout_ms(DEFAULT_TIMEOUT_MS), pool_size=options.pool_size())


def _tls(options: Options) -> ssl.SSLContext | None:
    authority = options.values.get("ssl_ca")
    if options.scheme != SECURE:
        if authority is not None:
            raise options.error("ssl_ca goes with TLS: write headgates://")
        return None
    try:
        return ssl.create_default_context(cafile=authority)
    except OSError as error:  # an ssl.SSLError is one
        raise options.error(f"ssl_ca {authority!r} cannot be read: {error.strerror or error}") from None
