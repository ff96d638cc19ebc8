"""The observer port: what a limiter reports about its calls, for metrics and traces.

`Limiter(…, observer=…)` calls the observer after each store call, in the thread or task that made it. An observer
therefore must be fast and must not block. An exception in it never changes a decision: it is logged.

No event contains a key: keys identify people, and there are too many of them for labels. The adapters for Prometheus
and OpenTelemetry are in crestgate/observers.
"""

from __future__ import annotations

import time
from typing import Literal, NamedTuple, TypeAlias

from crestgate.core.decision import Decision
from crestgate.errors import ConfigError, StoreError
from crestgate.stores.breaker import BreakerState
from crestgate.stores.port import Store
from crestgate.stores.remote_store import RemoteStore

__all__ = ["LimiterCall", "ObservedCheck", "Observer", "Operation", "StoreStatus", "check_observer"]


class ObservedCheck(NamedTuple):
    """The decision on one check, and the dimension of the rule that decided: `key` for a key under given limits, `none`
    if no rule applied."""

    decision: Decision
    dimension: str


Operation: TypeAlias = Literal["check", "peek", "reset", "settle"]
"""`settle` gives back or charges the difference after a reservation."""


class LimiterCall(NamedTuple):
    """One call of a limiter's store: a check, or several in one round trip."""

    operation: Operation
    checks: tuple[ObservedCheck, ...]
    """The decisions of a check or peek, in order; those of the failure policy too. Empty if there are none."""
    shadow_denials: tuple[ObservedCheck, ...]
    """The shadow rules that would have denied one of the checks."""
    seconds: float
    """How long the caller waited, time in the queue included."""
    store: str
    """Kind and address of the store, without any password."""
    remote: bool
    """Whether the call went over a network or to a database."""
    error: BaseException | None = None
    """Why the store did not decide. If there are checks, the failure policy has decided them."""


class StoreStatus:
    """The store of a limiter, for metrics that are read when they are collected. It lives as long as the limiter."""

    def __init__(self, store: Store) -> None:
        self.remote = isinstance(store, RemoteStore)
        self.title = store.title if isinstance(store, RemoteStore) else type(store).__name__
        self._store = store

    def breakers(self) -> dict[str, BreakerState]:
        """The circuit breaker's state of each server used so far, by the server's name."""
        breakers = self._store.breakers() if isinstance(self._store, RemoteStore) else {}
        now = time.monotonic()
        return {name: breaker.state(now) for name, breaker in breakers.items()}


class Observer:
    """Base class of observers; each method does nothing, so that a subclass overrides what it needs.

    Several limiters may share an observer, and several threads may call it at once.
    """

    def attached(self, status: StoreStatus) -> None:
        """A limiter was created with this observer. Keep only a weak reference to its status."""

    def called(self, call: LimiterCall) -> None:
        """A limiter called its store."""

    def batch_sent(self, size: int) -> None:
        """This many requests were sent to the store in one batch. Concurrent callers of a remote store share one."""

    def store_failed(self, error: StoreError, requests: int) -> None:
        """The store did not decide this many requests."""


def check_observer(observer: object) -> None:
    """ConfigError if it is no observer."""
    if observer is not None and not isinstance(observer, Observer):
        raise ConfigError(
            "observer must be a crestgate.Observer, such as PrometheusObserver() of crestgate.observers.prometheus, "
            f"not {observer!r}"
        )
