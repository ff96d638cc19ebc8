"""Limiters with rules: the only module of this package that knows rules and configuration, which are above it."""

from __future__ import annotations

import os
import signal
import threading
from collections.abc import Callable, Mapping
from types import FrameType
from typing import TypeVar

from crestgate.config.environment import read_environment
from crestgate.config.location import find_config, no_config
from crestgate.config.settings import load_settings
from crestgate.core.plans import Plans
from crestgate.core.pressure import PressureEvent
from crestgate.errors import ConfigError
from crestgate.limiter.backend import Backend
from crestgate.limiter.limiter_core import LimiterCore, RequestEvaluator
from crestgate.limiter.observer import Observer
from crestgate.rules.catalog import Catalog
from crestgate.rules.evaluator import CatalogPlans, RemoteRuleEvaluator, RuleEvaluator
from crestgate.rules.port import Source
from crestgate.rules.storage.factory import open_repository
from crestgate.runtime.clock import Clock
from crestgate.stores.remote_store import RemoteStore

__all__ = ["build_limiter", "catalog_plans", "evaluator_of"]

L = TypeVar("L", bound=LimiterCore)


def catalog_plans(catalog: Catalog) -> Plans:
    """The plans of a catalog, always up to date."""
    return CatalogPlans(catalog)


def evaluator_of(catalog: Catalog | None, backend: Backend) -> RequestEvaluator:
    """What matches requests against the rules of a catalog, or (None) of the store itself."""
    if catalog is not None:
        return RuleEvaluator(catalog, backend)
    assert isinstance(backend.store, RemoteStore)
    return RemoteRuleEvaluator(backend.store, backend)


def build_limiter(
    kind: type[L],
    path: str | os.PathLike[str] | None,
    environ: Mapping[str, str] | None,
    clock: Clock | None,
    on_pressure: Callable[[PressureEvent], object] | None,
    sighup: bool,
    observer: Observer | None = None,
) -> L:
    """A limiter with the store, rules and plans of a configuration: see `Limiter.from_config`."""
    variables = os.environ if environ is None else environ
    file = find_config(path, variables)
    if file is None and read_environment(variables) == ([], []):
        raise no_config(
            "write that file, name one as from_config('path.yaml'), or set variables such as CRESTGATE_STORE"
        )
    settings = load_settings(file, variables)
    sources: list[Source] = [settings.rule_files()]
    if settings.rules_store is not None:
        sources.append(open_repository(settings.rules_store))
    catalog = Catalog(sources, settings.refresh_seconds)
    try:
        limiter = kind(
            settings.store,
            clock=clock,
            on_store_error=settings.on_store_error,
            fallback_instances=settings.fallback_instances,
            denial_cache=settings.denial_cache,
            on_pressure=on_pressure,
            catalog=catalog,
            observer=observer,
        )
        limiter.owns_catalog = True
        limiter.settings = settings
        if sighup:
            _reload_on_sighup(limiter)
    except BaseException:
        catalog.close()
        raise
    return limiter


def _reload_on_sighup(limiter: LimiterCore) -> None:
    """Only on request: a program may use SIGHUP itself, and without a handler it ends when its terminal does."""
    if not hasattr(signal, "SIGHUP"):
        raise ConfigError("sighup=True needs SIGHUP, which this system does not have: call reload() yourself")
    if threading.current_thread() is not threading.main_thread():
        raise ConfigError("sighup=True needs the main thread, where Python handles signals: call reload() yourself")
    before = signal.getsignal(signal.SIGHUP)

    def handle(number: int, frame: FrameType | None) -> None:
        limiter.reload()
        if callable(before):
            before(number, frame)

    signal.signal(signal.SIGHUP, handle)
