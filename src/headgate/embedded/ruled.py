"""What rules add to both limiters, apart from the lines that do I/O: a catalog, and where it comes from."""

from __future__ import annotations

import os
import signal
import threading
from collections.abc import Callable, Mapping, Sequence
from types import FrameType
from typing import Self, SupportsIndex

from headgate.config.settings import Settings, load_settings
from headgate.core.pressure import PressureEvent
from headgate.embedded.asking import Asking, CatalogPlans, Prepared, PreparedChain, PreparedMembers, said
from headgate.engine.bound import check_input, whole_cost
from headgate.engine.failure import OnStoreError
from headgate.engine.limiting import Limiting
from headgate.engine.plans import Limits, Plans
from headgate.errors import ConfigError
from headgate.rules.catalog import Catalog
from headgate.rules.context import Asked
from headgate.rules.repositories.port import Source
from headgate.stores.clock import Clock
from headgate.stores.port import Member, Op, Store
from headgate.stores.remote import RemoteStore

__all__ = ["Ruled"]


class Ruled(Limiting):
    """A limiter that may have a catalog of rules."""

    def __init__(
        self,
        store: str | Sequence[str] | Store = "memory://",
        *,
        plans: Plans | None = None,
        clock: Clock | None = None,
        on_store_error: OnStoreError = "open",
        on_pressure: Callable[[PressureEvent], object] | None = None,
        catalog: Catalog | None = None,
    ) -> None:
        if catalog is not None and plans is None:
            plans = CatalogPlans(catalog)
        super().__init__(store, plans=plans, clock=clock, on_store_error=on_store_error, on_pressure=on_pressure)
        self._asking = Asking(catalog, self._engine) if catalog is not None else None
        self._owns_catalog = False
        self.settings: Settings | None = None
        """The configuration that this limiter was made from, if it was from one."""

    @classmethod
    def sharing(cls, other: Ruled, *, connect: bool = True) -> Self:
        """A limiter of this kind with the store, rules, plans and counters of another: the same limits, for threads
        or for event loops. It is closed with the other, which has opened them. One for threads reaches its store now,
        unless it is told not to: the first check does it then."""
        made = cls.__new__(cls)
        vars(made).update(vars(other))
        made._owns_store = made._owns_catalog = False
        made._start(connect)
        return made

    @classmethod
    def from_config(
        cls,
        path: str | os.PathLike[str] | None = None,
        *,
        environ: Mapping[str, str] | None = None,
        clock: Clock | None = None,
        on_pressure: Callable[[PressureEvent], object] | None = None,
        sighup: bool = False,
    ) -> Self:
        """A limiter with the store, rules and plans of a configuration file; `HEADGATE_…` in the environment wins.
        Without a file, of the environment alone.

        Invalid, with every mistake, when the configuration has any. The file and the rule database are read here and
        now. Changes to the rules take effect within two seconds, without a restart; with `sighup` they are also read
        again when the process gets that signal.
        """
        from headgate.rules.repositories.opening import open_repository

        settings = load_settings(None if path is None else os.fspath(path), os.environ if environ is None else environ)
        sources: list[Source] = [settings.rule_files()]
        if settings.rules_store is not None:
            sources.append(open_repository(settings.rules_store))
        catalog = Catalog(sources, settings.refresh_seconds)
        try:
            made = cls(
                settings.store,
                clock=clock,
                on_store_error=settings.on_store_error,
                on_pressure=on_pressure,
                catalog=catalog,
            )
            made._owns_catalog = True
            made.settings = settings
            if sighup:
                made._reload_on_sighup()
        except BaseException:
            catalog.close()
            raise
        return made

    @property
    def catalog(self) -> Catalog:
        """The rules this limiter goes by."""
        return self._rules().catalog

    @property
    def shadow_denials(self) -> Mapping[str, int]:
        """How many requests each shadow rule would have denied, by rule_id, in this process."""
        return dict(self._rules().shadow_denials)

    @property
    def has_rules(self) -> bool:
        """Whether requests can be matched against rules."""
        return self._asking is not None or self._far({}) is not None

    @property
    def asks_for_routes(self) -> bool:
        """Whether a request's route is part of the key whose policy joins its chain."""
        asking = self._asking
        return asking is not None and "route" in asking.catalog.current.defaults.policy_key

    def policy_key(self, context: Asked, route: str) -> str | None:
        """The key whose policy joins the chain of a request for this route: where the template is known it counts, and
        not each path. None where routes are no part of such keys."""
        key = self._rules().catalog.current.keys(context, route).get("key") if self.asks_for_routes else None
        return None if key is None else key.removeprefix("key:")

    def prepare(self, op: Op, context: Asked, cost: SupportsIndex = 1) -> Prepared:
        """What is to be asked about a request under rules: for whoever asks about many at once, or gives back later."""
        if self._asking is None:
            standing = self._far(said(context))
            if standing is not None:
                standing.cost = whole_cost(cost)
                check_input("-", standing.cost)
                return PreparedMembers(self._engine, op, [standing])
        return self._rules().prepare(op, context, cost)

    def _far(self, context: Mapping[str, str]) -> Member | None:
        """What stands for the rules that the store has, if it has some of its own."""
        return self._store.rules_for(context) if isinstance(self._store, RemoteStore) else None

    def prepare_plans(self, op: Op, key: str, plans: Limits, cost: SupportsIndex = 1) -> PreparedChain:
        """The same for a key under plans, or other limits."""
        return PreparedChain(self._bind(plans), op, key, cost)

    def reload(self) -> None:
        """Have all rules read again soon, whether or not they seem to have changed. A signal handler may call it."""
        self._rules().catalog.reload()

    def _rules(self) -> Asking:
        if self._asking is None:
            raise ConfigError(
                "this limiter has no rules to match a request against: build it with from_config('headgate.yaml'), or "
                "check a key under limits with check('user:42', '100/minute')"
            )
        return self._asking

    def _reload_on_sighup(self) -> None:
        """Not done unasked: a program has SIGHUP to itself, and without a handler it ends when its terminal does."""
        if threading.current_thread() is not threading.main_thread():
            raise ConfigError("sighup=True needs the main thread, where Python handles signals: call reload() yourself")
        before = signal.getsignal(signal.SIGHUP)

        def handle(number: int, frame: FrameType | None) -> None:
            self.reload()
            if callable(before):
                before(number, frame)

        signal.signal(signal.SIGHUP, handle)
