# mypyc: compile
"""A chain of limits, compiled once: the hot path of the library.

A check validates its input, calls the store, records the pressure and returns. One limit on a local store takes a
single store call (`LocalStore.take`); chains and other stores go through a `PendingCheck`.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import SupportsIndex, final

from crestgate.core.algorithms.algorithm import Algorithm
from crestgate.core.bounds import MAX_COST, KeyText, check_input, whole_cost
from crestgate.core.decision import NORMAL, Decision
from crestgate.core.pressure import pressure_state
from crestgate.errors import ConfigError, StoreError
from crestgate.limiter.backend import Backend
from crestgate.limiter.pending_check import PendingCheck
from crestgate.stores.port import Member, Op
from crestgate.stores.server_side_limits import is_server_side

__all__ = ["Bound"]


@final
class Bound:
    """One chain of one limiter: `bound.check("user:42")`."""

    def __init__(self, backend: Backend, chain: Sequence[Algorithm]) -> None:
        self.backend = backend
        self.pressure = backend.pressure
        self.states = backend.pressure.states
        unique: list[Algorithm] = []
        order: list[int] = []
        for algorithm in chain:
            position = next((i for i, other in enumerate(unique) if other.name == algorithm.name), len(unique))
            if position == len(unique):
                unique.append(algorithm)
            elif unique[position].limit != algorithm.limit:
                raise ConfigError(
                    f"two different limits of one chain are called {algorithm.name!r} "
                    f"({unique[position].limit} and {algorithm.limit}), and would share a counter: name them apart"
                )
            order.append(position)
            backend.check_support(algorithm)
        # A limit that is named twice in a chain is one counter, and is charged once.
        self.algorithms = tuple(unique)
        self.order = tuple(order) if len(order) > len(unique) else None
        self.single = unique[0] if len(order) == 1 else None
        self.names = tuple(algorithm.name for algorithm in unique)
        # For the hot path: the local store, the highest cost that can pass, and the fewest remaining that leave the
        # pressure of a counter normal (at most 80 % used).
        self.local = backend.local if self.single is not None else None
        self.ceiling = min(self.single.ceiling, MAX_COST) if self.single is not None else -1
        self.warning_threshold = -(-unique[0].capacity // 5)
        self.holds = any(algorithm.holds for algorithm in unique)
        """Whether one of them is an in-flight limit: then it is held, and not checked."""
        if self.holds or any(backend.leases(algorithm) for algorithm in unique):
            self.local = None
        self.server_side = any(is_server_side(algorithm) for algorithm in unique)

    def check(self, key: KeyText, cost: SupportsIndex = 1) -> Decision:
        """Decide a request and consume its cost when it is admitted."""
        local = self.local
        single = self.single
        if (
            not isinstance(cost, int)
            or not 0 <= cost <= self.ceiling
            or not isinstance(key, str)
            or not 0 < len(key) <= 256
            or local is None
            or single is None
        ):
            return self._decide(self.prepare(Op.TAKE, key, cost))
        try:
            decision = local.take(single, key, cost)
        except StoreError as error:
            check = self.prepare(Op.TAKE, key, cost)
            return check.finish(self.backend.answer(error, [check])[0])
        states = self.states
        remaining = decision.remaining
        if remaining >= self.warning_threshold and decision.allowed and not states:
            return decision
        before = states.get((key, single.name), NORMAL)
        state = pressure_state(before, decision.allowed, single.capacity, remaining)
        if state != before:
            return self.pressure.record(key, decision)
        if state != NORMAL:
            decision.set_pressure(state)
        return decision

    def try_check(self, key: str, cost: int) -> Decision | None:
        """`check`, if a local store answers without waiting; None when it does not, and nothing was done."""
        local = self.local
        single = self.single
        if local is None or single is None or not 0 <= cost <= self.ceiling or not 0 < len(key) <= 256:
            return None
        if not local.waits:
            return self.check(key, cost)
        try:
            decisions = local.take_many([(single, key, cost)])
        except StoreError:
            return None  # the caller waits for the store then, and its failure policy answers
        return None if decisions is None else self.pressure.record(key, decisions[0])

    def peek(self, key: KeyText, cost: SupportsIndex = 1) -> Decision:
        """The decision `check` would give now; consumes nothing."""
        return self._decide(self.prepare(Op.PEEK, key, cost))

    def reset(self, key: KeyText) -> None:
        """Forget the counters of this key."""
        self._decide(self.prepare(Op.RESET, key, 0))

    def prepare(self, op: Op, key: KeyText, cost: SupportsIndex) -> PendingCheck:
        """The check of a key, for `Limiter.decide`. Bad input is a ValueError."""
        if self.holds and op is Op.TAKE:
            raise self.not_checked()
        return self.prepare_hold(key, cost, op)

    def prepare_hold(self, key: KeyText, cost: SupportsIndex, op: Op = Op.TAKE) -> PendingCheck:
        """The same, for whoever releases the slots of in-flight limits."""
        whole = cost if isinstance(cost, int) else whole_cost(cost)
        if not isinstance(key, str) or not 0 < len(key) <= 256 or not 0 <= whole <= MAX_COST:
            key = check_input(key, whole)
        members = [Member(key, algorithm, whole) for algorithm in self.algorithms]
        holds = self.holds and op is Op.TAKE
        return PendingCheck(self.pressure, op, members, None, key, self.order, self.server_side, None, holds)

    def not_checked(self) -> ConfigError:
        """The error of a check under an in-flight limit."""
        limits = [str(algorithm.limit) for algorithm in self.algorithms if algorithm.holds]
        return ConfigError(
            f"{limits[0]!r} limits what is in flight, and a check releases nothing: use "
            "`with limiter.hold(key, limits):`, or reserve it with ttl= (POST /api/v1/reservations over HTTP)"
        )

    def _decide(self, check: PendingCheck) -> Decision:
        try:
            outcomes = self.backend.apply([check])[0]
        except StoreError as error:
            outcomes = self.backend.answer(error, [check])[0]
        return check.finish(outcomes)
