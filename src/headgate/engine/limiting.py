"""What the two limiters are made of: a store, plans, prepared chains, and what is the same with and without `await`.

What a check is lives in bound.py, how limits are named in plans.py, how one waits in line.py and how reservations
settle in reservation.py. A limiter adds only the lines that do I/O.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import Self, SupportsIndex, TypeAlias, TypeVar, cast

from headgate.core.algorithms import Algorithm
from headgate.core.decision import Decision
from headgate.core.limit import Limit
from headgate.core.pressure import PressureEvent
from headgate.engine.bound import Bound, Engine, check_input, whole_cost
from headgate.engine.failure import FailurePolicy, OnStoreError, answerable, check_policy
from headgate.engine.line import Line
from headgate.engine.plans import MOST_REMEMBERED, Limits, Plans, Resolver, lasting
from headgate.engine.reservation import charged, returning
from headgate.errors import ConfigError, RateLimitExceeded, StoreClosed, StoreError
from headgate.stores.clock import Clock
from headgate.stores.far import mistake_in
from headgate.stores.port import LocalStore, Op, Replies, Request, Store
from headgate.stores.remote import DEFAULT_TIMEOUT_MS, RemoteStore
from headgate.stores.url import open_store

__all__ = ["Limiting", "ManyItem", "acquire_input", "admitted", "decorator_cost", "undoing"]

LONGEST_TIMEOUT = 10**9
B = TypeVar("B")
ManyItem: TypeAlias = "tuple[str, Limits] | tuple[str, Limits, int]"
"""What `check_many` takes: a key, limits, and perhaps a cost."""


class Limiting:
    """What both limiters are made of."""

    def __init__(
        self,
        store: str | Sequence[str] | Store = "memory://",
        *,
        plans: Plans | None = None,
        clock: Clock | None = None,
        on_store_error: OnStoreError = "open",
        on_pressure: Callable[[PressureEvent], object] | None = None,
    ) -> None:
        if on_pressure is not None and not callable(on_pressure):
            raise ConfigError(f"on_pressure must be a callable that takes a PressureEvent, not {on_pressure!r}")
        if clock is not None and (isinstance(clock, type) or not callable(getattr(clock, "ticks", None))):
            raise ConfigError(f"clock must be a clock such as FakeClock(1_700_000_000), not {clock!r}")
        check_policy(on_store_error)  # before a store is opened, and perhaps a file made
        self._resolver = Resolver(plans)
        if isinstance(store, str | list | tuple):
            self._store: Store = open_store(store, clock)
            self._owns_store = True
        elif not callable(getattr(store, "apply", None)):
            raise ConfigError(
                f"a limiter needs a store URL such as 'memory://', or a store, not {type(store).__name__}"
            )
        elif clock is not None:
            raise ConfigError("clock= goes with a store URL; a store object has a clock of its own")
        else:
            self._store = cast(Store, store)  # it was found to be one
            self._owns_store = False
        if isinstance(self._store, RemoteStore):
            self._resolver.plan_of = self._store.plan_of
        self._engine = Engine(self._store, FailurePolicy(on_store_error, self._store.clock), on_pressure)
        for algorithm in self._resolver.compiled():
            self._engine.check_support(algorithm)
        self._bounds: dict[tuple[Algorithm, ...], Bound] = {}
        self._inline: dict[str, Bound] | None = {} if plans is None else None
        self._limit_bounds: dict[object, Bound] = {}
        """By the `identity` of a Limit."""
        self._line = Line()
        self._start()

    def _start(self, connect: bool = True) -> None:
        """What is to be done before the first check; to `connect` is part of it where that can be done here."""

    @property
    def title(self) -> str:
        """Where the counters are, for messages; without any password."""
        store = self._store
        if isinstance(store, RemoteStore):
            return store.title
        path = getattr(store, "path", None)
        return f"shared memory in {path}" if isinstance(path, str) else "the memory of this process"

    def __repr__(self) -> str:
        where = self._store.title if isinstance(self._store, RemoteStore) else type(self._store).__name__
        return f"<{type(self).__name__} on {where}>"

    def __reduce__(self) -> str:
        raise TypeError(
            f"a {type(self).__name__} cannot be sent to another process: build one there, with the same URL"
        )

    def __deepcopy__(self, memo: object) -> Self:
        """Itself: frameworks copy what they are configured with, and a copy must not have counters of its own."""
        return self

    @property
    def clock(self) -> Clock:
        """The clock that decisions go by: the store's."""
        return self._store.clock

    @property
    def patience(self) -> float:
        """Seconds that a check waits for its store, at most."""
        store = self._store
        return store.timeout if isinstance(store, LocalStore | RemoteStore) else DEFAULT_TIMEOUT_MS / 1000

    @property
    def store_failures(self) -> int:
        """How many checks the store could not answer."""
        return self._engine.failure.failures

    @property
    def store_counts(self) -> dict[str, int]:
        """What a store on this machine has counted of itself, by name: damage, and lack of room."""
        return self._store.counts() if isinstance(self._store, LocalStore) else {}

    def _bind(self, limits: Limits) -> Bound:
        inline = self._inline
        if inline is None or type(limits) is not str:
            if type(limits) is Limit:
                known = self._limit_bounds.get(limits.identity)
                return known if known is not None else self._bind_limit(limits)
            return self._bind_chain(self._resolver.chain(limits))
        bound = inline.get(limits)  # without plans a text always means the same
        if bound is None:
            if len(inline) >= MOST_REMEMBERED:
                inline.clear()
            bound = self._bind_chain(self._resolver.chain(limits))
            inline[limits] = bound
        return bound

    def _bind_limit(self, limit: Limit) -> Bound:
        """The first check with this object. Callers may make a fresh one for each check, so the cache is bounded."""
        if len(self._limit_bounds) >= MOST_REMEMBERED:
            self._limit_bounds.clear()
        bound = self._bind_chain(self._resolver.one(limit))
        self._limit_bounds[limit.identity] = bound
        return bound

    def _binding(self, bind: Callable[[Limits], B], limits: Limits) -> Callable[[], B]:
        """The chain of a decorated function, to be asked for at each call: a plan counts as it is then. Limits that
        cannot be read are an error now."""
        kept = lasting(limits)
        bound = bind(kept)
        if self._inline is not None:
            return lambda: bound  # without plans it stays the same
        return lambda: bind(kept)

    def _bind_chain(self, chain: tuple[Algorithm, ...]) -> Bound:
        bound = self._bounds.get(chain)
        if bound is None:
            if len(self._bounds) >= MOST_REMEMBERED:
                self._bounds.clear()
            bound = Bound(self._engine, chain)
            self._bounds[chain] = bound
        return bound

    def _requests(self, items: Iterable[ManyItem]) -> tuple[list[Bound], list[Request]]:
        bounds, requests = [], []
        for item in items:
            if not isinstance(item, tuple | list) or len(item) not in (2, 3):
                raise ValueError(f"check_many takes (key, limits) or (key, limits, cost), not {item!r}")
            key, limits = item[0], item[1]
            cost = whole_cost(item[2]) if len(item) == 3 else 1
            check_input(key, cost)
            bounds.append(self._bind(limits))
            requests.append(bounds[-1].request(Op.TAKE, key, cost))
        return bounds, requests

    def _unanswered(self, error: StoreError, batch: Sequence[Request]) -> bool:
        """The store did not answer: whether the policy may. What only a store can do is an error, or lost."""
        if isinstance(error, StoreClosed) or any(request.op is Op.RESET for request in batch):
            raise mistake_in(error) or error
        if all(answerable(request.op) for request in batch):
            return True
        self._engine.failure.note(error)  # a settlement is lost: the request it belongs to was answered already
        return False

    def _close_store(self) -> None:
        if self._owns_store:
            self._store.close()


def undoing(batch: Sequence[Request], replies: Replies) -> list[Request]:
    """The requests that give back what a batch has taken. What is decided once stays: it is the answer to a repeat."""
    return [
        returning(request, reply)
        for request, reply in zip(batch, replies, strict=True)
        if request.op is Op.TAKE and request.once is None and charged(request, reply)
    ]


def admitted(decision: Decision) -> float:
    """The delay of an admitted call; a denied one raises."""
    if not decision.allowed:
        raise RateLimitExceeded(decision)
    return decision.delay


def decorator_cost(cost: SupportsIndex) -> int:
    whole = whole_cost(cost)
    check_input("-", whole)
    return whole


def acquire_input(key: str, cost: SupportsIndex, timeout: float | None) -> int:
    whole = whole_cost(cost)
    check_input(key, whole)
    if timeout is not None and not (isinstance(timeout, int | float) and 0 <= timeout <= LONGEST_TIMEOUT):
        raise ValueError(f"timeout must be a number of seconds, 0 or more, or None to wait for ever, not {timeout!r}")
    return whole
