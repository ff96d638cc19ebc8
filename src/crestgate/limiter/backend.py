# mypyc: compile
"""The store of a limiter, with the failure policy that answers in its place, and the pressure on its counters."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Sequence
from functools import partial
from typing import TYPE_CHECKING, final

from crestgate.core.algorithms.algorithm import Algorithm
from crestgate.core.decision import Decision
from crestgate.core.pressure import NORMAL, Pressure, PressureEvent, pressure_state
from crestgate.core.store_names import unknown_store
from crestgate.errors import ConfigError, StoreClosedError, StoreError
from crestgate.limiter.background_sender import BackgroundSender
from crestgate.limiter.failure_policy import FailurePolicy, Fallback, is_answerable
from crestgate.limiter.lease_sweeper import LeaseSweeper
from crestgate.limiter.local_decisions import LocalDecisions
from crestgate.limiter.outages import OutageWatch
from crestgate.limiter.thread_coalescer import ThreadCoalescer
from crestgate.runtime.clock import MachineClock, wall_minus_monotonic
from crestgate.runtime.fork_safety import fork_safe_lock
from crestgate.stores.port import BatchOutcomes, LocalStore, Member, Op, PartialStoreError, Request, Store
from crestgate.stores.remote_store import RemoteStore
from crestgate.stores.server_side_limits import rejection_in

if TYPE_CHECKING:
    from crestgate.limiter.observation import Observation

__all__ = ["Backend", "PressureMonitor"]

_log = logging.getLogger("crestgate")


@final
class PressureMonitor:
    """Pressure states of a limiter's counters; calls `on_pressure` on every transition."""

    def __init__(self, on_pressure: Callable[[PressureEvent], object] | None) -> None:
        self.on_pressure = on_pressure
        self.pressure = Pressure()
        self.states = self.pressure.states
        """Empty while every counter is normal."""
        self.lock = fork_safe_lock()

    def record(self, key: str, decision: Decision) -> Decision:
        """Update the state of a counter after a decision; returns the decision with that state."""
        if not self.states and decision.allowed and decision.remaining * 5 >= decision.algorithm.capacity:
            return decision  # at most 80 % used, and no counter is under pressure
        if decision.detail is not None and decision.reason in ("fail_open", "fail_closed"):
            return decision  # says nothing about the counter
        algorithm = decision.algorithm
        before = self.states.get((key, algorithm.name), NORMAL)
        state = pressure_state(before, decision.allowed, algorithm.capacity, decision.remaining)
        if state != before:
            state = self._transition(key, decision)
        return decision if state == NORMAL else decision.with_pressure(state)

    def annotate(self, key: str, decision: Decision) -> Decision:
        """A decision with its pressure state, which is not updated."""
        state = self.pressure.state(key, decision)
        return decision if state == NORMAL else decision.with_pressure(state)

    def forget(self, members: Sequence[Member]) -> None:
        """These counters were reset: they are under no pressure."""
        with self.lock:
            for member in members:
                self.pressure.forget(member.key, member.algorithm.name)

    def _transition(self, key: str, decision: Decision) -> str:
        """Store a new state, and report it unless another thread just has."""
        with self.lock:
            state, event = self.pressure.record(key, decision)
        if event is not None and self.on_pressure is not None:
            try:
                self.on_pressure(event)
            except Exception:  # noqa: BLE001 - a failing callback must not change the decision
                _log.exception("on_pressure callback failed, the decision is unchanged")
        return state


@final
class Backend:
    """What all chains of a limiter share. Limiters that share a backend share their counters."""

    def __init__(
        self,
        store: Store,
        failure: FailurePolicy,
        on_pressure: Callable[[PressureEvent], object] | None,
        observation: Observation | None = None,
        denial_cache: bool = True,
    ) -> None:
        self.store = store
        self.local: LocalStore | None = store if isinstance(store, LocalStore) else None
        """None also where an observer sees every call: then all of them go through `apply`."""
        self.remote: RemoteStore | None = store if isinstance(store, RemoteStore) else None
        """What coalescers send to."""
        if self.remote is not None:
            failure.outages = OutageWatch(self.remote, failure.policy)
        if observation is not None:
            self.local = None
            failure.on_failure = observation.store_failed
            if self.remote is not None:
                self.remote = observation.observe_store(self.remote)
                assert failure.outages is not None
                failure.outages.store = self.remote
        self.coalescer: ThreadCoalescer | None = ThreadCoalescer(self.remote) if self.remote is not None else None
        """Threads that wait for a remote store share its calls."""
        self.send: Callable[[Sequence[Request]], BatchOutcomes] = (
            store.apply if self.coalescer is None else self.coalescer.apply
        )
        """Asks the store."""
        if observation is not None and self.coalescer is None:
            self.send = partial(observation.send_batch, store.apply)
        self.failure = failure
        self.pressure = PressureMonitor(on_pressure)
        self.observation = observation
        remote = isinstance(store, RemoteStore) and store.allows_local_decisions()
        self.may_lease = remote or (isinstance(store, LocalStore) and store.waits)
        """Not in memory, where counters are at hand, and not with services, which decide by themselves."""
        self.local_decisions: LocalDecisions | None = None
        """What is decided without the store; None if that is nothing."""
        self.lease_sweeper: LeaseSweeper | None = None
        self.apply: Callable[[Sequence[Request]], BatchOutcomes] = self.send
        """Decides, here or by the store."""
        if observation is not None:
            self.apply = partial(observation.apply, self, self.send)
        if remote and denial_cache:
            self._decide_locally().caches_denials = True
        self.sender: BackgroundSender | None = None
        """Created when a thread first has something to give back."""

    def _decide_locally(self) -> LocalDecisions:
        """From now on, decide here what can be decided here."""
        decisions = self.local_decisions
        if decisions is None:
            clock = self.store.clock
            is_real = isinstance(clock, MachineClock)
            if is_real:  # a clock of their own: that of a store follows the server's, forth and back
                clock = MachineClock(wall_minus_monotonic())
            decisions = LocalDecisions(clock.ticks, carries_returns=not is_real)
            self.local_decisions = decisions
            self.apply = self.decide
            if self.observation is not None:
                self.apply = partial(self.observation.apply, self, self.decide)
        return decisions

    def answer(self, error: StoreError, batch: Sequence[Request]) -> BatchOutcomes:
        """The failure policy's replies to a batch that the store did not decide. What it takes back is sent in the
        background; the caller waits for that while it has time, so that its denial is usually free of charge."""
        fallback = self.fallback(error, batch)
        if fallback.undo:
            if self.sender is None:
                self.sender = BackgroundSender(self.apply, self.failure.record)
            self.sender.send(fallback.undo)
            if isinstance(error, PartialStoreError):
                self.sender.wait(error.deadline)
        return fallback.replies

    def decide(self, batch: Sequence[Request]) -> BatchOutcomes:
        """Decide a batch here, if that is possible, and else by the store."""
        decisions = self.local_decisions
        assert decisions is not None  # see `_decide_locally`
        call = decisions.prepare(batch)
        if call.replies is not None:
            return call.replies
        try:
            replies = self.send(call.requests)
        except BaseException as error:  # noqa: BLE001 - it is raised again
            return decisions.fail(call, error)
        return decisions.finish(call, replies)

    def leases(self, algorithm: Algorithm) -> bool:
        """Whether this limit is leased. From the first one on, what is not used of slices is given back in time."""
        if not algorithm.lease or not self.may_lease:
            return False
        decisions = self._decide_locally()
        if self.lease_sweeper is None:
            self.lease_sweeper = LeaseSweeper(decisions, self.send, self.store.clock)
            decisions.start_sweeper = self.lease_sweeper.start
            decisions.leases = True
        return True

    def end_leases(self) -> None:
        """Before the store is closed: give back what was not used of slices."""
        if self.lease_sweeper is not None:
            self.lease_sweeper.close()

    def drain(self) -> None:
        """Before the store is closed: wait until what must be given back was sent, one timeout at most."""
        if self.sender is not None and self.remote is not None:
            self.sender.wait(time.monotonic() + self.remote.timeout)

    def fallback(self, error: StoreError, batch: Sequence[Request]) -> Fallback:
        """The failure policy's replies. A reset that failed is an error; a settlement that failed has no replies."""
        if isinstance(error, StoreClosedError):
            raise error
        answerable = True
        for request in batch:
            if request.op is Op.RESET:
                raise rejection_in(error) or error
            answerable = answerable and is_answerable(request.op)
        if answerable:
            return self.failure.answer(error, batch)
        self.failure.record(error)  # a settlement is lost: the request it belongs to was answered already
        return Fallback([[] for _ in batch], [])

    def try_apply(self, batch: Sequence[Request]) -> BatchOutcomes | None:
        """The outcomes that are there without waiting for a store; None when they are not, and nothing was done."""
        local = self.local
        decisions = self.local_decisions
        if decisions is not None and self.observation is None:
            replies = decisions.answer(batch)
            if replies is not None or local is None or decisions.is_leased(batch):
                return replies
        if local is None:
            return None
        try:
            return local.apply_within(batch, 0.0)
        except PartialStoreError as error:  # the others were decided, and must not be decided again
            return self.failure.answer(error, batch).replies
        except StoreError:
            return None

    def check_store(self, name: str | None, rule_id: str) -> None:
        """Raise ConfigError for a rule that names a store which there is not."""
        if name is None:
            return
        store = self.store
        names: Sequence[str] = store.store_names() if isinstance(store, RemoteStore) else ()
        if name not in names:
            raise ConfigError(f"rule {rule_id!r}: {unknown_store(name, names)}")

    def check_support(self, algorithm: Algorithm) -> None:
        """Raise ConfigError now, not at the first request, for a limit that the store cannot decide."""
        store = self.store
        self.leases(algorithm)
        if not isinstance(store, RemoteStore) or store.supports(algorithm):
            return
        if algorithm.holds:
            if store.rules_for({}) is None:  # a service holds slots by its reservations
                raise ConfigError(
                    f"{type(store).__name__} cannot hold slots of {str(algorithm.limit)!r} with services among several "
                    "stores: use a single crestgate:// URL, or Redis, SQL or shared memory"
                )
        else:
            raise ConfigError(
                f"{type(store).__name__} does not support algorithm {algorithm.limit.algorithm!r}: use memory://, "
                "shared:// or SQL"
            )
