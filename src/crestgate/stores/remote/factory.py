"""Opens stores by URL: `crestgate://[:KEY@]host[:8080]`, and `crestgates://` with TLS."""

from __future__ import annotations

import ssl

from crestgate.runtime.clock import Clock
from crestgate.runtime.url_options import Options
from crestgate.stores.remote.http_connection import ServiceAddress
from crestgate.stores.remote.store import ServiceStore
from crestgate.stores.remote_store import DEFAULT_TIMEOUT_MS

__all__ = ["DEFAULT_PORT", "open_service_store"]

DEFAULT_PORT = 8080
SECURE = "crestgates"


def open_service_store(options: Options, clock: Clock | None) -> ServiceStore:
    """The store of a URL, not connected yet. ConfigError for invalid options."""
    options.allow("ssl_ca")
    if "prefix" in options.values:
        raise options.error("prefix is the service's own, and stands in the store URL of its configuration")
    if clock is not None:
        raise options.error("the service goes by its own clock: clock= is for stores on this machine's")
    if options.username is not None:
        raise options.error("a service knows keys, and no users: write crestgate://:KEY@host:8080, with the colon")
    if options.path not in ("", "/"):
        raise options.error("a service has no path: write crestgate://host:8080")
    servers = options.servers(DEFAULT_PORT)
    if len(servers) > 1:
        raise options.error("one URL names one service; several are a list of URLs, or behind a load balancer")
    key = options.password or None
    if key is not None and not (key.isascii() and key.isprintable() and " " not in key):
        raise options.error("a key has letters, digits and '_' in it, as `crestgate keys create` shows it")
    host, port = servers[0]
    address = ServiceAddress(host, port, key, _tls(options))
    return ServiceStore(address, timeout_ms=options.timeout_ms(DEFAULT_TIMEOUT_MS), pool_size=options.pool_size())


def _tls(options: Options) -> ssl.SSLContext | None:
    authority = options.values.get("ssl_ca")
    if options.scheme != SECURE:
        if authority is not None:
            raise options.error("ssl_ca is only valid with TLS: write crestgates://")
        return None
    try:
        return ssl.create_default_context(cafile=authority)
    except OSError as error:  # an ssl.SSLError is one
        raise options.error(f"ssl_ca {authority!r} cannot be read: {error.strerror or error}") from None
