# mypyc: compile
"""The store port: what the limiter requires of a store, and what a store guarantees.

A store decides batches. A batch is a list of requests; a request is one operation on one or more members, each a key
under a compiled limit. A member's counter is identified by (the store's prefix, key, `algorithm.name`).

Atomicity    A request is all or nothing: a TAKE charges every binding member, or none. Other requests never see an
             intermediate state. The requests of a batch are decided in order.
Clock        A store owns its clock. All requests of a batch may be decided at one reading of it.
Idempotency  Adjacent requests of a batch that carry the same `IdempotencyRecord` are decided at most once within
             IDEMPOTENCY_TTL_US, however many callers send them concurrently: the result is saved in the same atomic
             step. A store of several nodes cannot do that in one step, and claims the record first. Every store
             accepts records of up to MAX_RECORD_BYTES (see idempotency_codec.py). A batch with a longer one raises
             ValueError and decides nothing: that is a caller's error, which no failure policy may answer.
Expiry       A counter that equals a new one may be dropped, and no store grows without bound. A full store drops
             expired counters first, then the least recently used.
Errors       A store that cannot decide raises StoreError. Whether anything may have been charged then is part of the
             store's own documentation. A store of several nodes, some of which failed, raises PartialStoreError.
             A denial is an outcome, never an error.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from enum import Enum
from typing import Final, Protocol, final

from crestgate.core.algorithms.algorithm import Algorithm
from crestgate.core.decision import Decision
from crestgate.core.mypyc_types import i64
from crestgate.errors import StoreError
from crestgate.runtime.clock import Clock

__all__ = [
    "IDEMPOTENCY_TTL_US",
    "MAX_RECORD_BYTES",
    "BatchCallback",
    "BatchOutcomes",
    "IdempotencyRecord",
    "LocalStore",
    "Member",
    "Op",
    "Outcome",
    "PartialStoreError",
    "Replay",
    "Request",
    "SingleTake",
    "Store",
]

IDEMPOTENCY_TTL_US: Final = 300_000_000
"""How long the result of an idempotent request is kept."""
MAX_RECORD_BYTES: Final = 256 * 1024
"""Maximum encoded size of an idempotency record."""


class Op(Enum):
    """The operation of a request."""

    TAKE = "take"
    """Decide, and charge the cost if allowed."""
    PEEK = "peek"
    """Decide as TAKE would, and change nothing."""
    RESET = "reset"
    """Delete the counters."""
    CHARGE = "charge"
    """Charge the cost whether or not it fits, up to a debt of `amount` beyond the limit: at most, and unless given, one
    full limit. A remote service does not get the amount."""
    GIVE_BACK = "give back"
    """Return `amount` of what a TAKE of `cost` charged at `tick`."""
    RENEW = "renew"
    """Move `cost` of what a TAKE, or the last RENEW, charged at `tick` to now, whether or not the limit is full: the
    slot of an in-flight limit lives on. Denied, and nothing changes, when that entry has expired or is gone."""
    CLAIM = "claim"
    """Reserve the record before other nodes decide: no members. Sets `replay` or `pending` of a record that exists."""
    SAVE = "save"
    """Store `record.encoded` under a claimed record: no members."""
    RELEASE = "release"
    """Delete a claim, because nothing was decided: no members."""


@final
class Member:
    """One counter of a request.

    A non-binding member is decided and charged, but never denies the request. `policy` is the failure policy if the
    store cannot decide (see limiter/failure_policy.py); None means the limiter's. `token` is the one of the outcome
    that a GIVE_BACK or CHARGE settles, for stores that require it. A member that `peeks` is decided like the others of
    its TAKE, and may deny it, but is never charged: its outcome has the tick 0.
    """

    __slots__ = ("algorithm", "amount", "binds", "cost", "key", "peeks", "policy", "tick", "token")

    def __init__(
        self,
        key: str,
        algorithm: Algorithm,
        cost: i64,
        binds: bool = True,
        tick: i64 = 0,
        amount: i64 = 0,
        policy: str | None = None,
        token: str | None = None,
        peeks: bool = False,
    ) -> None:
        self.key = key
        self.algorithm = algorithm
        self.cost = cost
        self.binds = binds
        self.tick = tick
        self.amount = amount
        self.policy = policy
        self.token = token
        self.peeks = peeks


@final
class Replay:
    """The stored result of an idempotent request (see idempotency_codec.py).

    `numbers` has, for each member in the order of the requests: allowed, remaining, wait (None: never), reset. As in
    a Decision, in whole microseconds from `now_us`, the time of the decision.
    """

    __slots__ = ("fingerprint", "note", "now_us", "numbers")

    def __init__(
        self, fingerprint: bytes, note: bytes, now_us: int, numbers: Sequence[tuple[bool, int, int | None, int]]
    ) -> None:
        self.fingerprint = fingerprint
        self.note = note
        self.now_us = now_us
        self.numbers = numbers


@final
class IdempotencyRecord:
    """Idempotency key of adjacent requests: all that carry this very object are decided at most once.

    `name` is the idempotency key, `fingerprint` (16 bytes) a digest of the request's content, and `note` data of the
    caller that is stored beside the outcomes; a store interprets neither. A store that has a result of this name sets
    `replay`, whatever its fingerprint, and decides nothing: the outcomes are empty then. It sets `pending` if another
    caller has claimed the name and has not finished (stores of several nodes only).

    `since_us`: no record of this name can be older. A store that evicted records of that time or later for lack of
    space cannot know whether this one was among them: it decides nothing, and sets `dropped` and `pending`. Without
    `since_us`, a name whose record was evicted is decided again.
    """

    __slots__ = ("dropped", "encoded", "fingerprint", "name", "note", "pending", "replay", "since_us")

    def __init__(self, name: str, fingerprint: bytes, note: bytes, since_us: int | None = None) -> None:
        self.name = name
        self.fingerprint = fingerprint
        self.note = note
        self.replay: Replay | None = None
        self.pending = False
        self.since_us = since_us
        self.dropped = False
        self.encoded = b""
        """What a SAVE stores."""


class Request:
    """One operation on one or more counters, all or nothing; idempotent if it has a `record`."""

    __slots__ = ("group", "members", "op", "record")

    def __init__(
        self,
        op: Op,
        members: Sequence[Member],
        record: IdempotencyRecord | None = None,
        group: object | None = None,
    ) -> None:
        self.op = op
        self.members = members
        self.record = record
        self.group = group
        """Adjacent requests of a batch with the same group are one call of a program: a store that may reject a request
        as invalid decides none of them then."""


@final
class Outcome:
    """The result for one member: its own decision, and the tick that a later GIVE_BACK or RENEW must pass.

    After a RENEW that found the entry, and after RESET, CHARGE and GIVE_BACK, the decision is that of a PEEK of cost 0;
    after a RENEW that did not find it, it is not allowed, and waiting does not help. `token` is issued by a remote
    service for a TAKE and required to settle it; other stores have none.
    """

    __slots__ = ("decision", "tick", "token")

    def __init__(self, decision: Decision, tick: i64, token: str | None = None) -> None:
        self.decision = decision
        self.tick = tick
        self.token = token


SingleTake = tuple[Algorithm, str, int]
"""Limit, key and cost of the simplest request: a TAKE of one binding counter."""

BatchOutcomes = list[list[Outcome]]
"""The result of a batch: for each request, one outcome per member."""

BatchCallback = Callable[[BatchOutcomes | StoreError], None]
"""Receives the result of a batch; called exactly once."""


class PartialStoreError(StoreError):
    """Some nodes of a store failed. `outcomes` has an outcome or an error for every member.

    A request whose record had a stored result has none. A request about a record alone, which has no members, has the
    error if it failed.
    """

    def __init__(self, outcomes: Sequence[Sequence[Outcome | StoreError]]) -> None:
        self.outcomes = outcomes
        self.deadline = 0.0
        """When the caller must be answered, an instant of `time.monotonic`; 0 where that is not known."""
        errors = [item for reply in outcomes for item in reply if isinstance(item, StoreError)]
        super().__init__(str(errors[0]) if errors else "a part of the store did not answer")


class Store(Protocol):
    """The port itself; the module docstring has its guarantees."""

    @property
    def clock(self) -> Clock: ...

    def apply(self, batch: Sequence[Request]) -> list[list[Outcome]]:
        """Decide the requests in order; one outcome per member, in the members' order."""

    def close(self) -> None:
        """Release files and connections. Idempotent; a later `apply` raises StoreClosedError."""


class LocalStore:
    """A store on this machine, which answers without network I/O.

    `take` is a batch of one TAKE of one member without its overhead: the hot path. Its cost must not exceed the
    algorithm's ceiling.
    """

    clock: Clock
    waits: bool
    """Whether `apply` may block on other processes; an event loop then calls `apply_within` instead."""

    def apply(self, batch: Sequence[Request]) -> list[list[Outcome]]:
        raise NotImplementedError

    timeout: float
    """Seconds that `apply` blocks on other processes before it raises StoreError."""

    def apply_within(self, batch: Sequence[Request], timeout: float) -> list[list[Outcome]] | None:
        """Decide if that is possible within `timeout` seconds; None, and nothing is changed, if not."""
        raise NotImplementedError

    def watch(self, batch: Sequence[Request]) -> Callable[[], bool]:
        """For callers that repeat `apply_within`: a function that is true when to give up. Not before the timeout, and
        then not while the processes that hold the locks make progress."""
        raise NotImplementedError

    def take(self, algorithm: Algorithm, key: str, cost: i64) -> Decision:
        """A new decision, which the caller may complete."""
        raise NotImplementedError

    def take_many(self, takes: Sequence[SingleTake]) -> list[Decision] | None:
        """Several takes, if all are possible without waiting; None, and nothing is changed, if one is not: use
        `apply_within` then."""
        raise NotImplementedError

    def counts(self) -> dict[str, int]:
        """Metrics of the store itself in this process, by name."""
        return {}

    def close(self) -> None:
        raise NotImplementedError
