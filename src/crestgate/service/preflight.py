"""Preflight: everything is tried once before the first request, and the result is printed.

The store is reached, the rule database is created or migrated, the rules are read, and a first API key is created if
there is none. Errors show on the terminal of whoever starts the service, before any request is served.
"""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Iterator, Mapping
from contextlib import closing, contextmanager
from dataclasses import dataclass, replace

from crestgate.config.default_folder import (
    default_rules_url,
    default_store_note,
    default_store_url,
    make_default_folder,
)
from crestgate.config.settings import Address, ServerSettings, Settings, Tls
from crestgate.config.urls import check_service_store
from crestgate.envoy.xds.client import require_grpcio
from crestgate.errors import ConfigError
from crestgate.history.factory import open_history
from crestgate.limiter.limiter import Limiter
from crestgate.rules.catalog import Catalog
from crestgate.rules.port import Actor, Repository
from crestgate.rules.storage.factory import open_repository
from crestgate.runtime.file_locks import has_shared_memory
from crestgate.service.auth.guard import is_loopback, required_check_scope
from crestgate.service.auth.keys import ApiKeys, create_key
from crestgate.service.observability.tracing import create_tracer
from crestgate.stores.spec import NamedStores, store_urls

__all__ = [
    "ADMIN_KEY",
    "PreflightReport",
    "check_settings",
    "complete_settings",
    "refuse_beyond_loopback",
    "run_preflight",
]

ADMIN_KEY = "CRESTGATE_ADMIN_KEY"
FIRST_KEY_NAME = "first"


@dataclass(frozen=True, slots=True)
class PreflightReport:
    """What the preflight found."""

    counters: str
    """The store, without passwords."""
    rules: str
    rule_count: int
    descriptors: str | None
    """A summary of the limits on Envoy's descriptors, if there are any."""
    http_needs_key: bool
    """For checks."""
    grpc_needs_key: bool
    new_token: str | None
    """Of the API key that was created; printed only now."""
    first_key_given: bool
    admins: int
    """API keys with scope write, besides that one."""
    resp_needs_key: bool | None = None
    """None without a RESP listener."""

    def lines(self, http: Address, grpc: Address, server: ServerSettings, resp: Address | None = None) -> Iterator[str]:
        """The lines to print. The addresses are those of the open sockets."""
        url = f"{'http' if server.tls is None else 'https'}://{http}"
        yield f"Crestgate listens on {url} with {server.workers} worker{'s' if server.workers > 1 else ''}."
        yield f"  gRPC       {grpc}{_tls_note(server.tls)}"
        if resp is not None:
            yield f"  RESP       {resp}{' with TLS' if server.tls is not None else ''}"
        yield f"  counters   {self.counters}"
        yield f"  rules      {self.rules} ({self.rule_count} now)"
        if self.descriptors is not None:
            yield f"  envoy      {self.descriptors}"
        yield f"  checks     {_checks_note(self.http_needs_key, self.grpc_needs_key, self.resp_needs_key)}"
        if self.new_token is not None:
            yield f"  admin key  {self.new_token}"
            yield "             created now, and not shown again: keep it. `crestgate keys` creates others."
        elif self.first_key_given:
            yield f"  admin key  the one in {ADMIN_KEY}"
        else:
            yield f"  admin key  {self.admins} in the rule database"
            yield "             `crestgate keys create NAME --scope write` creates another."
        yield f"  dashboard  {url}/"
        yield f"  API        {url}/docs"


def complete_settings(settings: Settings, environ: Mapping[str, str] = os.environ) -> Settings:
    """The settings with defaults for the store and the rule database, whose directory is created."""
    checked = check_settings(settings, environ)
    if not settings.store_is_set or settings.rules_store is None:
        make_default_folder("set store and rules_store")
    elif settings.envoy.xds is not None and settings.envoy.xds.cache is None:
        make_default_folder("set envoy.xds.cache")
    return checked


def check_settings(settings: Settings, environ: Mapping[str, str]) -> Settings:
    """The settings with defaults; nothing is created or connected to. ConfigError for everything that would stop a
    start and can be known before: what `crestgate config check` accepts, `crestgate serve` starts with."""
    store = settings.store
    if not settings.store_is_set:
        store = NamedStores(default_store_url(), store.named) if isinstance(store, NamedStores) else default_store_url()
    check_service_store(store)
    if settings.server.workers > 1 and not hasattr(signal, "pthread_sigmask"):
        raise ConfigError(
            f"server.workers: {settings.server.workers} workers share their sockets and are stopped by signals, which "
            "needs Linux or macOS; run one worker here"
        )
    if settings.server.workers > 1 and any(url.lower().startswith("memory:") for url in store_urls(store)):
        raise ConfigError(
            f"store: memory:// is one process's own, and {settings.server.workers} workers would each count for "
            f"themselves: leave store out for {'shared memory' if has_shared_memory() else 'SQLite'}, or run one worker"
        )
    create_tracer(settings.tracing.enabled)
    if settings.envoy.xds is not None:
        require_grpcio()
    ApiKeys(dict, _admin_key(environ))
    return replace(settings, store=store, rules_store=settings.rules_store or default_rules_url())


def run_preflight(settings: Settings, environ: Mapping[str, str]) -> PreflightReport:
    """Try everything once, with complete settings; ConfigError or StoreError if something fails."""
    assert settings.rules_store is not None
    given = _admin_key(environ)
    repository = open_repository(settings.rules_store)
    with _open_catalog(settings, repository) as catalog:
        keys = ApiKeys(lambda: catalog.keys, given)
        admins = keys.admins(time.time_ns() // 1000)
        if not admins and not settings.server.insecure:
            refuse_beyond_loopback(settings.server)
        with Limiter(settings.store, on_store_error=settings.on_store_error, catalog=catalog) as limiter:
            counters = limiter.title + ("" if settings.store_is_set else default_store_note())
        with closing(open_history(settings.rules_store)):
            pass
        resp = settings.server.resp
        token = None
        if not admins:
            _, token = create_key(repository, Actor("crestgate"), FIRST_KEY_NAME, "write")
        return PreflightReport(
            counters,
            repository.title,
            len(catalog.current.rules),
            settings.descriptors_summary,
            required_check_scope(settings.server, settings.server.http) is not None,
            required_check_scope(settings.server, settings.server.grpc) is not None,
            token,
            given is not None,
            admins,
            None if resp is None else required_check_scope(settings.server, resp) is not None,
        )


def _admin_key(environ: Mapping[str, str]) -> str | None:
    return environ.get(ADMIN_KEY, "").strip() or None


def refuse_beyond_loopback(server: ServerSettings) -> None:
    """ConfigError if other machines could reach a service that has no API keys."""
    addresses = {"server.http": server.http, "server.grpc": server.grpc, "server.resp": server.resp}
    beyond = [
        f"{name}: {address}"
        for name, address in addresses.items()
        if address is not None and not is_loopback(address.host)
    ]
    if beyond:
        raise ConfigError(
            f"{' and '.join(beyond)} {'are' if len(beyond) > 1 else 'is'} reached from other machines, and there is no "
            f"admin key yet: set {ADMIN_KEY}, or create one with `crestgate keys create NAME --scope write`, or listen "
            "on 127.0.0.1; --insecure starts all the same"
        )


def _tls_note(tls: Tls | None) -> str:
    if tls is None:
        return ""
    return " with TLS" if tls.grpc_client_ca is None else " with TLS, client certificate required"


def _checks_note(http: bool, grpc: bool, resp: bool | None) -> str:
    """Which protocols need an API key for checks."""
    needs = {"HTTP": http, "gRPC": grpc} | ({} if resp is None else {"RESP": resp})
    with_key = [name for name, needs_key in needs.items() if needs_key]
    without = [name for name, needs_key in needs.items() if not needs_key]
    if not with_key or not without:
        return "need a key" if with_key else "are open: no key is needed"
    return f"need a key over {' and '.join(with_key)}, and none over {' and '.join(without)}"


@contextmanager
def _open_catalog(settings: Settings, repository: Repository) -> Iterator[Catalog]:
    catalog = Catalog([settings.rule_files(), repository], settings.refresh_seconds)
    try:
        yield catalog
    finally:
        catalog.close()
