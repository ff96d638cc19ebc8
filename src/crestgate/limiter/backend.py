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
from crestgate.limiter.local_decisions import LeaseSteps, LocalDecisions, run_lease_steps
from crestgate.limiter.outages import OutageWatch
from crestgate.limiter.thread_coalescer import ThreadCoalescer
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
        self.may_lease = (
            store.waits if isinstance(store, LocalStore) else isinstance(store, RemoteStore) and not store.rules_for({})
        )
        """Not in memory, where counters are at hand, and not with a service, which leases by itself."""
        self.local_decisions: LocalDecisions | None = None
        """What is decided without the store; None as long as that is nothing."""
        if self.remote is not None and denial_cache:
            self.local_decisions = LocalDecisions(store.clock.ticks, True)
        self.lease_sweeper: LeaseSweeper | None = None
        self.apply: Callable[[Sequence[Request]], BatchOutcomes] = self.decide
        """Decides, here or by the store."""
        if self.local_decisions is None and not self.may_lease:
            self.apply = self.send
        self.failure = failure
        self.pressure = PressureMonitor(on_pressure)
        self.observation = observation
        if observation is not None:
            self.apply = partial(observation.apply, self, self.apply)
        self.sender: BackgroundSender | None = None
        """Created when a thread first has something to give back."""

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
        """Decide a batch without the store, if that is possible, and else by it."""
        decisions = self.local_decisions
        if decisions is None:
            return self.send(batch)
        replies = decisions.answer(batch)
        if replies is not None:
            return replies
        if decisions.begin(batch):
            return run_lease_steps(self.lease_steps(batch), self.send)
        sent_at = decisions.ticks()
        replies = self.send(batch)
        decisions.learn(batch, replies, sent_at)
        return replies

    def lease_steps(self, batch: Sequence[Request]) -> LeaseSteps:
        """The store calls that decide a batch with leased limits."""
        assert self.local_decisions is not None
        if self.lease_sweeper is not None:
            self.lease_sweeper.start()
        return self.local_decisions.steps(batch)

    def leases(self, algorithm: Algorithm) -> bool:
        """Whether this limit is leased. From the first one on, what was not used of slices is given back in time."""
        if not algorithm.lease or not self.may_lease:
            return False
        if self.local_decisions is None:
            self.local_decisions = LocalDecisions(self.store.clock.ticks, False)
        if self.lease_sweeper is None:
            self.lease_sweeper = LeaseSweeper(self.local_decisions, self.send, self.store.clock)
        return True

    def drain(self) -> None:
        """Before the store is closed: wait until what must be given back was sent, one timeout at most."""
        if self.lease_sweeper is not None:
            self.lease_sweeper.close()
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
        decisions = self.local_decisions
        if decisions is not None:
            replies = decisions.answer(batch)
            if replies is not None or decisions.begin(batch):
                return replies
        local = self.local
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
