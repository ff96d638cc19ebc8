"""What happens before the first request: everything is tried once, and said in plain words.

The store is reached, the rule database is made or brought up to date, the rules are read, and the first key is made if
there is none. What is wrong shows here, on the terminal of whoever starts the service, and nobody is answered yet.
"""

from __future__ import annotations

import os
import time
from collections.abc import Iterator, Mapping
from contextlib import closing, contextmanager
from dataclasses import dataclass, replace

from headgate.config.settings import Address, Server, Settings, Tls
from headgate.config.urls import check_serving
from headgate.config.usual import make_usual_folder, usual_rules_store, usual_store
from headgate.embedded.limiter import Limiter
from headgate.errors import ConfigError
from headgate.history.opening import open_history
from headgate.rules.catalog import Catalog
from headgate.rules.repositories.opening import open_repository
from headgate.rules.repositories.port import Actor, Repository
from headgate.service.auth.guard import is_loopback, needed_to_check
from headgate.service.auth.keys import Keys, create_key
from headgate.service.observe.tracing import tracer_of

__all__ = ["ADMIN_KEY", "Start", "checked", "completed", "refuse_beyond_loopback", "start"]

ADMIN_KEY = "HEADGATE_ADMIN_KEY"
FIRST_NAME = "first"


@dataclass(frozen=True, slots=True)
class Start:
    """What was found at the start."""

    counters: str
    """Where they are, without any password."""
    rules: str
    rule_count: int
    descriptors: str | None
    """The limits on Envoy's descriptors, in words; None where there are none."""
    http_needs_key: bool
    """For checks."""
    grpc_needs_key: bool
    new_token: str | None
    """Of the key that was made, to be shown this once."""
    first_key_given: bool
    admins: int
    """Keys that may do everything, besides that one."""

    def lines(self, http: Address, grpc: Address, server: Server) -> Iterator[str]:
        """What is said about it. The two addresses are those that really answer."""
        url = f"{'http' if server.tls is None else 'https'}://{http}"
        yield f"Headgate listens on {url} with {server.workers} worker{'s' if server.workers > 1 else ''}."
        yield f"  gRPC       {grpc}{_secured(server.tls)}"
        yield f"  counters   {self.counters}"
        yield f"  rules      {self.rules} ({self.rule_count} now)"
        if self.descriptors is not None:
            yield f"  envoy      {self.descriptors}"
        yield f"  checks     {_checks(self.http_needs_key, self.grpc_needs_key)}"
        if self.new_token is not None:
            yield f"  admin key  {self.new_token}"
            yield "             made just now, and shown this once: keep it. `headgate keys` makes others."
        elif self.first_key_given:
            yield f"  admin key  the one in {ADMIN_KEY}"
        else:
            yield f"  admin key  one of {self.admins} in the rule database"
            yield "             `headgate keys create NAME --scope write` makes another."
        yield f"  API        {url}/docs"


def completed(settings: Settings, environ: Mapping[str, str] = os.environ) -> Settings:
    """The settings with a store and a rule database in this folder, where none is named. Its folder is made."""
    found = checked(settings, environ)
    if not settings.names_store or settings.rules_store is None:
        make_usual_folder("set store and rules_store")
    return found


def checked(settings: Settings, environ: Mapping[str, str]) -> Settings:
    """The same, and nothing is made or connected to. ConfigError for all that would stop a start and can be known
    before it: what `headgate config check` says is fine, `headgate serve` starts with."""
    store = settings.store if settings.names_store else usual_store()
    check_serving(store)
    if settings.server.workers > 1 and any(url.lower().startswith("memory:") for url in _urls(store)):
        raise ConfigError(
            f"store: memory:// is one process's own, and {settings.server.workers} workers would each count for "
            "themselves: leave store out for shared memory, or run one worker"
        )
    tracer_of(settings.tracing.enabled)
    Keys(dict, _given_key(environ))
    return replace(settings, store=store, rules_store=settings.rules_store or usual_rules_store())


def start(settings: Settings, environ: Mapping[str, str]) -> Start:
    """Try everything once. `settings` are completed ones. ConfigError or StoreError say what is wrong."""
    assert settings.rules_store is not None
    given = _given_key(environ)
    repository = open_repository(settings.rules_store)
    with _catalog(settings, repository) as catalog:
        keys = Keys(lambda: catalog.keys, given)
        admins = keys.admins(time.time_ns() // 1000)
        if not admins and not settings.server.insecure:
            refuse_beyond_loopback(settings.server)
        with Limiter(settings.store, on_store_error=settings.on_store_error, catalog=catalog) as limiter:
            counters = limiter.title
        with closing(open_history(settings.rules_store)):
            pass
        token = None
        if not admins:
            _, token = create_key(repository, Actor("headgate"), FIRST_NAME, "write")
        return Start(
            counters,
            repository.title,
            len(catalog.current.rules),
            settings.descriptors_told,
            needed_to_check(settings.server, settings.server.http) is not None,
            needed_to_check(settings.server, settings.server.grpc) is not None,
            token,
            given is not None,
            admins,
        )


def _given_key(environ: Mapping[str, str]) -> str | None:
    return environ.get(ADMIN_KEY, "").strip() or None


def refuse_beyond_loopback(server: Server) -> None:
    """There are no keys, so only this machine may reach it."""
    places = {"server.http": server.http, "server.grpc": server.grpc}
    beyond = [f"{name}: {address}" for name, address in places.items() if not is_loopback(address.host)]
    if beyond:
        raise ConfigError(
            f"{' and '.join(beyond)} {'are' if len(beyond) > 1 else 'is'} reached from other machines, and there is no "
            f"admin key yet: set {ADMIN_KEY}, or make one with `headgate keys create NAME --scope write`, or listen on "
            "127.0.0.1; --insecure starts all the same"
        )


def _secured(tls: Tls | None) -> str:
    if tls is None:
        return ""
    return " with TLS" if tls.grpc_client_ca is None else " with TLS, for callers with a certificate"


def _checks(http: bool, grpc: bool) -> str:
    """Where a check needs a key."""
    if http == grpc:
        return "need a key" if http else "are open: no key is needed"
    return "need a key over HTTP, and none over gRPC" if http else "need a key over gRPC, and none over HTTP"


@contextmanager
def _catalog(settings: Settings, repository: Repository) -> Iterator[Catalog]:
    catalog = Catalog([settings.rule_files(), repository], settings.refresh_seconds)
    try:
        yield catalog
    finally:
        catalog.close()


def _urls(store: str | tuple[str, ...]) -> tuple[str, ...]:
    return (store,) if isinstance(store, str) else store
