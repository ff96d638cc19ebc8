"""What the two limiters share: a store, plans, rules, compiled chains, and checks that are prepared without I/O.

The limiters add the calls that wait, with and without `await`. Requests are matched against rules by a
`RequestEvaluator`, since rules are above this package; from_config.py connects the two.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Protocol, Self, SupportsIndex, TypeAlias, TypeVar, cast

from crestgate.core.algorithms import Algorithm
from crestgate.core.bounded_cache import add_bounded
from crestgate.core.bounds import check_input, whole_cost
from crestgate.core.context import ContextFields
from crestgate.core.decision import Decision
from crestgate.core.failure_policies import DEFAULT_FAILURE_POLICY, OnStoreError
from crestgate.core.limit import Limit
from crestgate.core.plans import MAX_CACHED, Limits, Plans, Resolver, reusable
from crestgate.core.pressure import PressureEvent
from crestgate.errors import ConfigError, StoreError
from crestgate.limiter.backend import Backend
from crestgate.limiter.chain import Bound
from crestgate.limiter.failure_policy import FailurePolicy, check_policy
from crestgate.limiter.limit_share import check_instances
from crestgate.limiter.observer import Observer, check_observer
from crestgate.limiter.pending_check import PendingCheck, try_decide
from crestgate.limiter.reservation_access import ReservationAccess
from crestgate.limiter.reservation_terms import (
    Costs,
    PreparedReservation,
    check_terms,
    has_costs,
    prepare_costs,
    prepare_one_cost,
)
from crestgate.limiter.wait_queue import WaitQueue
from crestgate.runtime.clock import Clock
from crestgate.stores.factory import open_store
from crestgate.stores.port import BatchOutcomes, LocalStore, Member, Op, Request, Store
from crestgate.stores.remote_store import DEFAULT_TIMEOUT_MS, RemoteStore, store_title
from crestgate.stores.spec import Migration, NamedStores, StoreSpec

if TYPE_CHECKING:
    from crestgate.config.settings import Settings
    from crestgate.limiter.observation import Observation
    from crestgate.limiter.remote_hold import RemoteHold
    from crestgate.rules.catalog import Catalog

__all__ = ["MAX_TIMEOUT", "LimiterCore", "ManyItem", "RequestEvaluator", "acquire_input", "decorator_cost"]

MAX_TIMEOUT = 10**9
B = TypeVar("B")
ManyItem: TypeAlias = "tuple[str, Limits] | tuple[str, Limits, int]"
"""What `check_many` takes: a key, limits, and optionally a cost."""


class RequestEvaluator(Protocol):
    """Matches requests against rules."""

    catalog: Catalog | None
    """The rules; None where the store has them."""

    @property
    def shadow_denials(self) -> dict[str, int]: ...

    @property
    def uses_routes(self) -> bool: ...

    def prepare(
        self, op: Op, context: ContextFields, cost: SupportsIndex, now_us: int = 0, hold: bool = False
    ) -> PendingCheck: ...

    def policy_key(self, context: ContextFields, route: str) -> str | None: ...


class LimiterCore:
    """The part of `Limiter` and `AsyncLimiter` that does no I/O."""

    def __init__(
        self,
        store: StoreSpec | Store = "memory://",
        *,
        plans: Plans | None = None,
        clock: Clock | None = None,
        on_store_error: OnStoreError = DEFAULT_FAILURE_POLICY,
        fallback_instances: int = 1,
        on_pressure: Callable[[PressureEvent], object] | None = None,
        catalog: Catalog | None = None,
        observer: Observer | None = None,
        denial_cache: bool = True,
    ) -> None:
        _check_denial_cache(denial_cache)
        if on_pressure is not None and not callable(on_pressure):
            raise ConfigError(f"on_pressure must be a callable that takes a PressureEvent, not {on_pressure!r}")
        if clock is not None and (isinstance(clock, type) or not callable(getattr(clock, "ticks", None))):
            raise ConfigError(f"clock must be a clock such as FakeClock(1_700_000_000), not {clock!r}")
        check_observer(observer)
        check_policy(on_store_error)  # before a store is opened, and perhaps a file created
        check_instances(fallback_instances)
        if catalog is not None and plans is None:
            from crestgate.limiter.from_config import catalog_plans

            plans = catalog_plans(catalog)
        self.resolver = Resolver(plans)
        if isinstance(store, str | list | tuple | Migration | NamedStores):
            self.store: Store = open_store(store, clock)
            self.owns_store = True
        elif not callable(getattr(store, "apply", None)):
            raise ConfigError(
                f"a limiter needs a store URL such as 'memory://', or a store, not {type(store).__name__}"
            )
        elif clock is not None:
            raise ConfigError("clock= is only valid with a store URL; a store object has its own clock")
        else:
            self.store = cast(Store, store)  # it has `apply`
            self.owns_store = False
        has_own_rules = False
        if isinstance(self.store, RemoteStore):
            self.resolver.plan_of = self.store.plan_of
            has_own_rules = self.store.rules_for({}) is not None
        self.has_server_limits = has_own_rules
        """Whether only the store knows all limits, and may reject a request."""
        failure = FailurePolicy(on_store_error, self.store.clock, fallback_instances)
        observation = None if observer is None else _observation(observer, self.store)
        self.backend = Backend(self.store, failure, on_pressure, observation, denial_cache)
        for algorithm in self.resolver.compiled():
            self.backend.check_support(algorithm)
        self.evaluator: RequestEvaluator | None = None
        if catalog is not None or has_own_rules:
            from crestgate.limiter.from_config import evaluator_of

            self.evaluator = evaluator_of(catalog, self.backend)
            if observation is not None:
                self.evaluator = observation.evaluator(self.evaluator)
        self.owns_catalog, self.owns_reservations = False, True  # and leases: those of the backend
        self.settings: Settings | None = None
        """The configuration that this limiter was built from, if any."""
        self.has_fixed_limits = plans is None
        """Whether limits always mean the same: plans may change."""
        self.wait_queue = WaitQueue()
        self.reservations = ReservationAccess(
            cast(StoreSpec, store) if self.owns_store else None,
            self.store,
            self._apply_in_background,
            self.backend.answer,
        )
        self.chains: dict[tuple[Algorithm, ...], Bound] = {}
        self._by_text: dict[str, Bound] = {}  # empty where limits do not always mean the same
        self._by_identity: dict[object, Bound] = {}
        """By the `identity` of a Limit."""
        self._start()

    def _start(self, connect: bool = True) -> None:
        """Set up what belongs to this kind of limiter; `connect` if that can be done here."""

    @classmethod
    def from_config(
        cls,
        path: str | os.PathLike[str] | None = None,
        *,
        environ: Mapping[str, str] | None = None,
        clock: Clock | None = None,
        on_pressure: Callable[[PressureEvent], object] | None = None,
        sighup: bool = False,
        observer: Observer | None = None,
    ) -> Self:
        """A limiter with the store, rules and plans of a configuration file; `CRESTGATE_…` in the environment wins.

        Without a path the file is the one that CRESTGATE_CONFIG names, else crestgate.yaml in the working folder, if
        there is one; without a file, the environment alone is the configuration. ConfigError when there is neither.

        ConfigError, with every mistake, when the configuration is invalid. The file and the rule database are read
        now. Changes to the rules take effect within two seconds, without a restart; with `sighup` they are also read
        again when the process gets that signal.
        """
        from crestgate.limiter.from_config import build_limiter

        return build_limiter(cls, path, environ, clock, on_pressure, sighup, observer)

    @classmethod
    def sharing(cls, other: LimiterCore, *, connect: bool = True) -> Self:
        """A limiter of this kind with the store, rules, plans and counters of another: the same limits, for threads
        or for event loops. The other owns the store and closes it. A `Limiter` connects to its store now, unless
        `connect` is False: then the first check does."""
        limiter = cls.__new__(cls)
        vars(limiter).update(vars(other))
        limiter.owns_store = limiter.owns_catalog = limiter.owns_reservations = False
        limiter._start(connect)
        return limiter

    def __repr__(self) -> str:
        where = self.store.title if isinstance(self.store, RemoteStore) else type(self.store).__name__
        return f"<{type(self).__name__} on {where}>"

    def __reduce__(self) -> str:
        raise TypeError(
            f"a {type(self).__name__} cannot be sent to another process: build one there, with the same URL"
        )

    def __deepcopy__(self, memo: object) -> Self:
        """Itself: frameworks copy their configuration, and a copy must not have counters of its own."""
        return self

    @property
    def title(self) -> str:
        """Where the counters are, for messages; without any password."""
        return store_title(self.store)

    def title_of(self, member: Member) -> str:
        """Where one counter is: `title`, unless the store is several."""
        return store_title(self.store, member)

    @property
    def clock(self) -> Clock:
        """The clock of decisions: the store's."""
        return self.store.clock

    @property
    def store_timeout(self) -> float:
        """Seconds that a check waits for its store, at most."""
        store = self.store
        return store.timeout if isinstance(store, LocalStore | RemoteStore) else DEFAULT_TIMEOUT_MS / 1000

    @property
    def store_failures(self) -> int:
        """How many checks the store could not decide."""
        return self.backend.failure.failures

    @property
    def store_counts(self) -> dict[str, int]:
        """What the store has counted of itself, by name: corruption and lack of room, or what a migration carried."""
        return self.store.counts() if isinstance(self.store, LocalStore | RemoteStore) else {}

    @property
    def is_local(self) -> bool:
        """Whether the store is on this machine, so that `try_decide` usually succeeds."""
        return isinstance(self.store, LocalStore)

    @property
    def catalog(self) -> Catalog:
        """The rules of this limiter."""
        catalog = None if self.evaluator is None else self.evaluator.catalog
        if catalog is None:
            raise _no_rules()
        return catalog

    @property
    def shadow_denials(self) -> Mapping[str, int]:
        """How many requests each shadow rule would have denied, by rule_id, in this process."""
        if self.evaluator is None or self.evaluator.catalog is None:
            raise _no_rules()
        return dict(self.evaluator.shadow_denials)

    @property
    def has_rules(self) -> bool:
        """Whether requests can be matched against rules."""
        return self.evaluator is not None

    @property
    def uses_routes(self) -> bool:
        """Whether a request's route is part of the key whose policy applies to it."""
        return self.evaluator is not None and self.evaluator.uses_routes

    def policy_key(self, context: ContextFields, route: str) -> str | None:
        """The key whose policy applies to a request for this route template; None where routes are not part of it."""
        return None if self.evaluator is None else self.evaluator.policy_key(context, route)

    def reload(self) -> None:
        """Read all rules again soon, whether or not they seem to have changed. Safe in a signal handler."""
        self.catalog.reload()

    def prepare(self, op: Op, key: str, limits: Limits, cost: SupportsIndex = 1) -> PendingCheck:
        """The check of a key under limits, for `decide`. Bad input is a ValueError."""
        return self.resolve(limits).prepare(op, key, cost)

    def prepare_request(self, op: Op, context: ContextFields, cost: SupportsIndex = 1) -> PendingCheck:
        """The check of a request under all rules that apply to it, for `decide`."""
        if self.evaluator is None:
            raise _no_rules()
        return self.evaluator.prepare(op, context, cost)

    def prepare_request_hold(self, context: ContextFields, cost: SupportsIndex = 1) -> PendingCheck:
        """The same for whoever releases the slots of in-flight limits: see `keep_slots` of the limiters."""
        if self.evaluator is None:
            raise _no_rules()
        return self.evaluator.prepare(Op.TAKE, context, cost, 0, True)

    def prepare_counters(self, op: Op, members: Sequence[Member]) -> PendingCheck:
        """The check of counters that are given one by one, all or nothing, for `decide`."""
        return PendingCheck(self.backend.pressure, op, members)

    def sweep_reservations(self, count: int = 100) -> int:
        """Give back reservations that have ended (`on_expiry="release"`), and forget those that are over, at most so
        many; returns how many there were. Done by itself once a second in every process that reserves."""
        return self.reservations.sweep(count)

    def _prepare_reservation(
        self, key: str, limits: Limits | Costs, cost: SupportsIndex, ttl: float | None, on_expiry: str | None
    ) -> tuple[PreparedReservation, int | None, str] | None:
        """What `reserve` asks for, the time to live in microseconds (None: the default) and the end policy; None for a
        reservation that is known in this process only."""
        costed = has_costs(limits)
        if not costed and ttl is None and on_expiry is None:
            return None
        policy = "keep" if on_expiry is None else on_expiry
        ttl_us = check_terms(ttl, policy)
        if not costed:
            prepared = prepare_one_cost(self, key, cast(Limits, limits), cost)
        elif whole_cost(cost) != 1:
            raise ValueError("cost cannot be combined with a cost for each limit: leave it out")
        else:
            prepared = prepare_costs(self, key, cast(Costs, limits))
        return prepared, ttl_us, policy

    def try_decide(self, checks: Sequence[PendingCheck]) -> list[Decision] | None:
        """What `decide` would return, if a local store answers without waiting; None when it does not, and nothing was
        done."""
        return try_decide(self.backend, checks)

    def try_apply(self, batch: Sequence[Request]) -> BatchOutcomes | None:
        """The same for store requests."""
        return self.backend.try_apply(batch)

    def resolve(self, limits: Limits) -> Bound:
        """The compiled chain that these limits stand for."""
        if type(limits) is str:
            bound = self._by_text.get(limits)
        elif type(limits) is Limit:
            bound = self._by_identity.get(limits.identity)
            return bound if bound is not None else self._resolve_limit(limits)
        else:
            bound = None
        if bound is None:
            bound = self.resolve_chain(self.resolver.chain(limits))
            if self.has_fixed_limits and type(limits) is str:
                add_bounded(self._by_text, limits, bound, MAX_CACHED)
        return bound

    def _resolve_limit(self, limit: Limit) -> Bound:
        """The first check with this object. Callers may create one for each check, so the cache is bounded."""
        return add_bounded(self._by_identity, limit.identity, self.resolve_chain(self.resolver.one(limit)), MAX_CACHED)

    def resolve_chain(self, algorithms: tuple[Algorithm, ...]) -> Bound:
        """The chain of these compiled limits."""
        bound = self.chains.get(algorithms)
        if bound is None:
            bound = add_bounded(self.chains, algorithms, Bound(self.backend, algorithms), MAX_CACHED)
        return bound

    def resolve_hold(self, limits: Limits) -> Bound:
        """The chain of a hold, which has an in-flight limit."""
        bound = self.resolve(limits)
        if not bound.holds and not bound.server_side:  # a service's plans are known when it has answered
            raise ConfigError(
                f"hold needs an in-flight limit, such as '20 concurrent', and these are {', '.join(bound.names)}: "
                "use check, acquire or reserve for rate limits"
            )
        return bound

    def _open_remote_hold(self) -> RemoteHold | None:
        """What holds slots of a service; None for other stores."""
        if not self.has_server_limits:
            return None
        from crestgate.limiter.remote_hold import RemoteHold

        return RemoteHold(self.reservations.open(), self.clock.ticks, self.backend.failure.record)

    def chain_getter(self, limits: Limits) -> Callable[[], Bound]:
        """A function that returns the chain of a decorated function at each call, since plans may change. Limits that
        cannot be parsed are an error now."""
        given = reusable(limits)
        bound = self.resolve(given)
        if bound.holds:
            raise bound.not_checked()
        if self.has_fixed_limits:
            return lambda: bound
        return lambda: self.resolve(given)

    def _prepare_many(self, items: Iterable[ManyItem]) -> list[PendingCheck]:
        checks = []
        for item in items:
            if not isinstance(item, tuple | list) or len(item) not in (2, 3):
                raise ValueError(f"check_many takes (key, limits) or (key, limits, cost), not {item!r}")
            checks.append(self.prepare(Op.TAKE, item[0], item[1], item[2] if len(item) == 3 else 1))
        if self.has_server_limits and len(checks) > 1:
            group = object()
            for check in checks:
                check.group = group
        return checks

    def _apply_in_background(self, batch: Sequence[Request]) -> BatchOutcomes:
        """Send what a sweep of the reservations gives back, in a thread of its own."""
        try:
            return self.backend.apply(batch)
        except StoreError as error:
            return self.backend.answer(error, batch)

    def _close_store(self) -> None:
        if self.owns_reservations:
            self.reservations.close()
            self.backend.end_leases()
        self.backend.drain()
        if self.owns_store:
            self.store.close()


def _observation(observer: Observer, store: Store) -> Observation:
    """Imported here: it is for event loops too, and few limiters have an observer."""
    from crestgate.limiter.observation import Observation

    return Observation(observer, store)


def _check_denial_cache(denial_cache: bool) -> None:
    if not isinstance(denial_cache, bool):
        raise ConfigError(f"denial_cache must be True or False, not {denial_cache!r}")


def _no_rules() -> ConfigError:
    return ConfigError(
        "this limiter has no rules to match a request against: build it with from_config('crestgate.yaml'), or "
        "check a key under limits with check('user:42', '100/minute')"
    )


def decorator_cost(cost: SupportsIndex) -> int:
    """The cost of a decorated call, validated."""
    whole = whole_cost(cost)
    check_input("-", whole)
    return whole


def acquire_input(key: str, cost: SupportsIndex, timeout: float | None) -> int:
    """Validate the arguments of `acquire`; returns the cost."""
    whole = whole_cost(cost)
    check_input(key, whole)
    if timeout is not None and not (isinstance(timeout, int | float) and 0 <= timeout <= MAX_TIMEOUT):
        raise ValueError(f"timeout must be a number of seconds, 0 or more, or None to wait for ever, not {timeout!r}")
    return whole
