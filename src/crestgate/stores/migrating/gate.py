"""Gates: which store a counter lives in, kept beside the counter in each of the two stores.

A gate is itself a counter, so every store has gates without further operations, and one request reads or changes a
counter together with its gate, atomically. It is a sliding log of one hour or more, whose entries add up to

    0           NONE      nothing is known here
    1           ENTERING  the usage of the other store is charged here, and that store must still be seen as AWAY
    2 to 9      HERE      the counter lives here
    100 and up  AWAY      the counter has left; it does not count here

Only "not above" can be a condition of a TAKE, by the capacity of the limit that it is sent with (limits that differ
only in that share one counter). So every change is a TAKE that passes only from the states it is valid for. Entries
expire in the order in which they were added, and nothing is added behind AWAY but more of it: AWAY ends as NONE.
"""

from __future__ import annotations

from enum import Enum
from hashlib import blake2b
from typing import final

from crestgate.core.algorithms import build
from crestgate.core.algorithms.algorithm import Algorithm
from crestgate.core.bounded_cache import add_bounded
from crestgate.core.limit import Limit
from crestgate.stores.port import Member, Outcome

__all__ = ["Gate", "Gates", "Status", "Transition", "is_gate"]

MIN_LIFE_SECONDS = 3600
MAX_LIFE_SECONDS = 10**9
MAX_GATES = 10_000
MAX_NAME_BYTES = 200
ALL = 1000
"""More than a gate ever holds."""


class Status(Enum):
    """What a gate says of its store."""

    NONE = "none"
    ENTERING = "entering"
    HERE = "here"
    AWAY = "away"


class Transition(Enum):
    """A change of a gate: what it adds, and how much there may be afterwards."""

    READ = (0, ALL)
    ENTER = (1, 1)
    """From NONE."""
    CONFIRM = (2, 9)
    """From ENTERING or HERE."""
    STAY = (2, 2)
    """From NONE."""
    LEAVE_UNKNOWN = (100, 100)
    """From NONE."""
    LEAVE = (100, 109)
    """From any but AWAY."""
    BACK_OFF = (100, 101)
    """From NONE or ENTERING: what another has confirmed meanwhile stays."""
    REMAIN_AWAY = (100, 300)
    """From any; few enough that entries do not pile up."""


@final
class Gate:
    """The gate of the counters of one limit."""

    def __init__(self, algorithm: Algorithm) -> None:
        seconds = _life_seconds(algorithm)
        name = _derived("gate", algorithm.name)
        self.life_us = seconds * 1_000_000
        self._limits: dict[Transition, Algorithm] = {}
        for transition in Transition:
            limit = Limit(transition.value[1], seconds, algorithm="sliding_window_log", name=name)
            self._limits[transition] = _like(algorithm, build(limit, name))
        lock = _derived("lock", algorithm.name)
        self._lock = _like(algorithm, build(Limit(1, 5, algorithm="sliding_window_log", name=lock), lock))

    def member(self, key: str, transition: Transition = Transition.READ) -> Member:
        """The member of a request that changes the gate of a key, or reads it."""
        return Member(key, self._limits[transition], transition.value[0])

    def lock(self, key: str) -> Member:
        """Passes once in five seconds."""
        return Member(key, self._lock, 1)

    def status(self, outcome: Outcome) -> Status:
        """The state that a READ found."""
        used = ALL - outcome.decision.remaining
        if used >= 100:
            return Status.AWAY
        return Status.HERE if used > 1 else Status.ENTERING if used else Status.NONE

    def age_us(self, outcome: Outcome) -> int:
        """Microseconds since the gate was last changed."""
        return self.life_us - outcome.decision.reset_us


@final
class Gates:
    """The gates of all limits; built once for each, in a bounded cache."""

    def __init__(self) -> None:
        self._gates: dict[tuple[str, int, bool], Gate] = {}

    def of(self, algorithm: Algorithm) -> Gate:
        key = (algorithm.name, _life_seconds(algorithm), algorithm.inline)
        gate = self._gates.get(key)
        if gate is None:
            gate = add_bounded(self._gates, key, Gate(algorithm), MAX_GATES)
        return gate


def _life_seconds(algorithm: Algorithm) -> int:
    """A gate outlives the counter: even a debt has recovered after twice the time of a full counter.

    Limits of one rate may share a counter with different bursts. Up to a burst of the count, their gates are the same.
    """
    recovery_us = max(int(algorithm.recovery_us), algorithm.limit.period_us)
    return min(max(MIN_LIFE_SECONDS, -(-2 * recovery_us // 1_000_000)), MAX_LIFE_SECONDS)


def is_gate(name: str) -> bool:
    """Whether a counter of this name is a gate, or the lock of one."""
    return name.startswith(("crestgate-gate|", "crestgate-lock|"))


def _derived(kind: str, name: str) -> str:
    """The name of a gate or lock; a long one ends in a digest."""
    derived = f"crestgate-{kind}|{name}"
    encoded = derived.encode("utf-8", "surrogatepass")
    if len(encoded) <= MAX_NAME_BYTES:
        return derived
    return f"crestgate-{kind}|*{blake2b(encoded, digest_size=32).hexdigest()}"


def _like(algorithm: Algorithm, made: Algorithm) -> Algorithm:
    made.inline = algorithm.inline
    return made
