"""A chain of limits prepared once, and what every check of it goes through: the hot path of the library.

A check is: look at the input, ask the store, take note of the pressure, answer. For one limit on a local store that
is a single call without any ceremony (`LocalStore.take`); chains and other stores go through requests and outcomes.
The few lines that do I/O are the caller's (limiter.py), so that there can be two of them, with and without `await`.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence
from operator import index
from typing import Protocol, SupportsIndex, final

from headgate.core.algorithms.algorithm import Algorithm
from headgate.core.decision import Decision, combine
from headgate.core.pressure import NORMAL, Pressure, PressureEvent
from headgate.engine.coalescer import ThreadCoalescer
from headgate.engine.failure import FailurePolicy
from headgate.errors import ConfigError, StoreError
from headgate.stores.far import known_far, mistake_in
from headgate.stores.forking import fork_safe_lock
from headgate.stores.port import LocalStore, Member, Op, Outcome, Replies, Request, Store
from headgate.stores.remote import RemoteStore

__all__ = ["MAX_COST", "MAX_KEY_BYTES", "Bound", "Engine", "whole_cost"]

MAX_COST = 2**31 - 1
MAX_KEY_BYTES = 1024

_log = logging.getLogger("headgate")


class Text(Protocol):
    """What `str` is and numbers and bytes are not, for type checkers. At run time anything may come, and be refused."""

    def isidentifier(self) -> bool: ...


@final
class Engine:
    """What all the chains of one limiter share: the store, its stand-in, and the pressure on the counters."""

    def __init__(
        self, store: Store, failure: FailurePolicy, on_pressure: Callable[[PressureEvent], object] | None
    ) -> None:
        self.store = store
        self.local: LocalStore | None = store if isinstance(store, LocalStore) else None
        # Threads that wait for a store across a network share their calls.
        self.apply: Callable[[Sequence[Request]], Replies] = (
            ThreadCoalescer(store).apply if isinstance(store, RemoteStore) else store.apply
        )
        self.failure = failure
        self.on_pressure = on_pressure
        self.pressure = Pressure()
        self.pressed = self.pressure.states  # empty while every counter is normal
        self.pressure_lock = fork_safe_lock()

    def answer(self, error: StoreError, batch: Sequence[Request]) -> Replies:
        """The failure policy's answer, with what it wants given back given back."""
        answered = self.failure.answer(error, batch)
        if answered.undoing:
            try:
                self.apply(answered.undoing)
            except StoreError as lost:
                self.failure.note(lost)
        return answered.replies

    def check_support(self, algorithm: Algorithm) -> None:
        """A limit that the store cannot decide is an error now, not at the first request."""
        store = self.store
        if isinstance(store, RemoteStore) and not store.supports(algorithm):
            raise ConfigError(
                f"{type(store).__name__} cannot decide by the algorithm {algorithm.limit.algorithm!r}, which has no "
                "twin there: use memory://, shared:// or a SQL store for it"
            )

    def note(self, key: str, decision: Decision) -> Decision:
        """Take note of a decision on one limit, say so if its pressure changed, and return it with its state."""
        if not self.pressed and decision._allowed and decision._remaining * 5 >= decision._algorithm.capacity:
            return decision  # at most 80 % used, and no counter is under pressure: nothing to note
        if decision._detail is not None and decision.reason in ("fail_open", "fail_closed"):
            return decision  # says nothing about the counter
        state = self.pressure.state(key, decision)
        if state != self.pressed.get((key, decision._algorithm.name), NORMAL):
            state = self.changed(key, decision)
        return decision if state == NORMAL else decision.under(state)

    def changed(self, key: str, decision: Decision) -> str:
        """A counter's state is changing: remember it, and say so unless another thread just has."""
        with self.pressure_lock:
            state, event = self.pressure.see(key, decision)
        if event is not None and self.on_pressure is not None:
            try:
                self.on_pressure(event)
            except Exception:  # noqa: BLE001 - whatever a callback does, a decision is a decision
                _log.exception("the on_pressure callback failed; the decision stands")
        return state

    def standing(self, key: str, decision: Decision) -> Decision:
        """A decision with its state of pressure, without taking note of it."""
        state = self.pressure.state(key, decision)
        return decision if state == NORMAL else decision.under(state)


@final
class Bound:
    """One chain of one limiter: `bound.check("user:42")`."""

    def __init__(self, engine: Engine, chain: Sequence[Algorithm]) -> None:
        self.engine = engine
        self.pressed = engine.pressed
        unique: list[Algorithm] = []
        places: list[int] = []
        for algorithm in chain:
            place = next((i for i, other in enumerate(unique) if other.name == algorithm.name), len(unique))
            if place == len(unique):
                unique.append(algorithm)
            elif unique[place].limit != algorithm.limit:
                raise ConfigError(
                    f"two different limits of one chain are called {algorithm.name!r} "
                    f"({unique[place].limit} and {algorithm.limit}), and would share a counter: name them apart"
                )
            places.append(place)
            engine.check_support(algorithm)
        # A limit that is named twice in a chain is one counter, and is charged once.
        self.algorithms = tuple(unique)
        self.places = tuple(places) if len(places) > len(unique) else None
        self.single = unique[0] if len(places) == 1 else None
        self.names = tuple(algorithm.name for algorithm in unique)
        # For the hot path, at hand: the store that answers at once, the highest cost worth asking it about, and the
        # fewest remaining that leave a counter's pressure normal (at most 80 % used).
        self.local = engine.local if self.single is not None else None
        self.ceiling = min(self.single.ceiling, MAX_COST) if self.single is not None else -1
        self.calm = -(-unique[0].capacity // 5)
        self.far = any(known_far(algorithm) for algorithm in unique)

    def check(self, key: Text, cost: SupportsIndex = 1) -> Decision:
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
            whole = whole_cost(cost)
            text = check_input(key, whole)
            return self.finish(Op.TAKE, text, self.ask(Op.TAKE, text, whole))
        try:
            decision = local.take(single, key, cost)
        except StoreError as error:
            request = self.request(Op.TAKE, key, cost)
            return self.finish(Op.TAKE, key, self.engine.answer(error, [request])[0])
        pressed = self.pressed
        if decision._remaining < self.calm or not decision._allowed or (pressed and (key, single.name) in pressed):
            return self.engine.note(key, decision)
        return decision

    def check_at_once(self, key: str, cost: int) -> Decision | None:
        """`check`, where the store answers without waiting for anybody; None where it does not, and nothing is done."""
        local = self.local
        single = self.single
        if local is None or single is None or not 0 <= cost <= self.ceiling or not 0 < len(key) <= 256:
            return None
        if not local.waits:
            return self.check(key, cost)
        try:
            decisions = local.take_many([(single, key, cost)])
        except StoreError:
            return None  # whoever waits for it asks again, and has a policy for it
        return None if decisions is None else self.engine.note(key, decisions[0])

    def peek(self, key: Text, cost: SupportsIndex = 1) -> Decision:
        """The decision `check` would give now; consumes nothing."""
        whole = whole_cost(cost)
        text = check_input(key, whole)
        return self.finish(Op.PEEK, text, self.ask(Op.PEEK, text, whole))

    def reset(self, key: Text) -> None:
        """Forget the counters of this key."""
        text = check_input(key, 0)
        try:
            self.engine.apply([self.request(Op.RESET, text, 0)])
        except StoreError as error:
            raise mistake_in(error) or error from None
        self.forgotten(text)

    def ask(self, op: Op, key: str, cost: int) -> list[Outcome]:
        """One request to the store, or to whoever answers in its place."""
        request = self.request(op, key, cost)
        try:
            return self.engine.apply([request])[0]
        except StoreError as error:
            return self.engine.answer(error, [request])[0]

    def request(self, op: Op, key: str, cost: int) -> Request:
        return Request(op, [Member(key, algorithm, cost) for algorithm in self.algorithms])

    def finish(self, op: Op, key: str, outcomes: Sequence[Outcome]) -> Decision:
        """The decision that the outcomes of this chain add up to."""
        engine = self.engine
        allowed = True
        parts: list[Decision] = []
        for outcome in outcomes:
            decision = outcome.decision
            allowed = allowed and decision._allowed
            parts.append(engine.note(key, decision) if op is Op.TAKE else engine.standing(key, decision))
        places = self.places
        if self.far:  # what the store did not tell of is no limit, and a plan may have several
            parts = [part for part in parts if part.parts] or parts[:1]
            places = None
        return combine(tuple(parts if places is None else [parts[place] for place in places]), allowed)

    def forgotten(self, key: str) -> None:
        """The counters of this key were reset: they are under no pressure."""
        with self.engine.pressure_lock:
            for name in self.names:
                self.engine.pressure.forget(key, name)


def whole_cost(cost: SupportsIndex, what: str = "cost") -> int:
    """A cost as a whole number; a fraction is an error even when it is 1.0."""
    try:
        return index(cost)
    except TypeError:
        raise ValueError(f"{what} must be a whole number from 0 to {MAX_COST}, not {cost!r}") from None


def check_input(key: Text, cost: int) -> str:
    """Refuse what no store should ever see; the key that is left is text."""
    if cost < 0 or cost > MAX_COST:
        raise ValueError(f"cost must be a whole number from 0 to {MAX_COST}, not {cost!r}")
    if not isinstance(key, str):
        raise TypeError(f"key must be text such as 'user:42', not {key!r}")
    if not key:
        raise ValueError("key must not be empty: name what is limited, for example 'user:42'")
    size = len(key.encode("utf-8", "surrogatepass"))
    if size > MAX_KEY_BYTES:
        raise ValueError(
            f"key is {size} bytes long and may have {MAX_KEY_BYTES} at most: use a digest of what it is made from"
        )
    return key
