"""The port: all that the engine asks of a store, and all that a store promises.

A store decides batches. A batch is a list of requests; a request is one operation on one or several members, each
a key under a compiled limit. The counter of a member is named by (the store's prefix, key, `algorithm.name`).

Atomicity   A request is all or nothing: a TAKE charges every binding member, or none. Nothing another request
            does is seen in between. Requests of one batch are decided in their order.
Clock       A store owns its clock. Every request of a batch may be decided at one reading of it.
Once        Requests of one batch that stand together and carry the same `Once` are decided at most once within its
            five minutes, whoever else sends them at the same time: what was decided is kept in the same step that
            decides. A store of several places cannot do that in one step; it claims the record first. Every store
            takes a record of MOST_KEPT_BYTES (see keeping.py). A batch with a longer one is a ValueError, and nothing
            of it is decided: that is the caller's doing, and no failure that a policy may answer.
Expiry      A counter that is as good as new may be forgotten, and no store grows for ever. A store that is full
            forgets what has expired first, then what was used least recently.
Errors      A store that cannot decide raises StoreError, and then has charged nothing, or may have (it says so
            in its own documentation). A store of several parts, of which some cannot, raises PartlyAnswered.
            A denial is an outcome, never an error.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from enum import Enum
from typing import Final, Protocol, final

from headgate.core.algorithms.algorithm import Algorithm
from headgate.core.decision import Decision
from headgate.core.words import i64
from headgate.errors import StoreError
from headgate.stores.clock import Clock

__all__ = [
    "DEFAULT_PREFIX",
    "MOST_KEPT_BYTES",
    "ONCE_US",
    "Done",
    "Kept",
    "LocalStore",
    "Member",
    "Once",
    "Op",
    "Outcome",
    "PartlyAnswered",
    "Replies",
    "Request",
    "Store",
    "Take",
]

DEFAULT_PREFIX = "hg"
ONCE_US: Final = 300_000_000
"""For how long what was decided once is kept."""
MOST_KEPT_BYTES: Final = 256 * 1024
"""How long the record of what is decided once may be."""


class Op(Enum):
    """What is to be done with the members of a request."""

    TAKE = "take"
    """Decide, and charge the cost when admitted."""
    PEEK = "peek"
    """Decide as TAKE would, and change nothing."""
    RESET = "reset"
    """Forget the counters."""
    CHARGE = "charge"
    """Charge the cost whether or not it fits."""
    GIVE_BACK = "give back"
    """Return `amount` of what a TAKE of `cost` charged at `tick`."""
    CLAIM = "claim"
    """Begin to decide what `once` names, elsewhere: no members. Sets `once.kept` or `once.pending` if it was begun."""
    KEEP = "keep"
    """Keep `once.packed` for what was claimed: no members."""
    RELEASE = "release"
    """Forget a claim, because nothing was decided: no members."""


@final
class Member:
    """One counter of a request.

    A member that does not bind is decided and charged beside the chain: it never makes a request denied. `policy`
    is what to do when the store cannot decide (see engine/failure.py); None leaves it to the limiter. `token` is that
    of the outcome which a GIVE_BACK or CHARGE settles, for stores that ask for one.
    """

    __slots__ = ("algorithm", "amount", "binds", "cost", "key", "policy", "tick", "token")

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
    ) -> None:
        self.key = key
        self.algorithm = algorithm
        self.cost = cost
        self.binds = binds
        self.tick = tick
        self.amount = amount
        self.policy = policy
        self.token = token


@final
class Kept:
    """What was decided earlier under the name of a `Once` (see keeping.py).

    `numbers` has, for each member in the order of the requests: allowed, remaining, wait (None: never), reset. As in
    a Decision, in whole microseconds from `now_us`, when it was decided.
    """

    __slots__ = ("body", "note", "now_us", "numbers")

    def __init__(
        self, body: bytes, note: bytes, now_us: int, numbers: Sequence[tuple[bool, int, int | None, int]]
    ) -> None:
        self.body = body
        self.note = note
        self.now_us = now_us
        self.numbers = numbers


@final
class Once:
    """An idempotency record. All requests that carry this very object, one behind the other, are decided once.

    `name` says what is repeated, `body` (16 bytes, a digest) what was asked under that name, and `note` is kept
    beside the outcomes for whoever has to make the same answer of them again: a store does not look into either.
    A store that finds the name sets `kept`, whatever its body, and decides nothing: the replies are empty then. It
    sets `pending` when somebody else has claimed it and has not decided yet (stores of several places only).

    `since_us`: no record of this name can be older. A store that has dropped records of that time or later for lack of
    room cannot tell whether this one was among them. It then decides nothing, and sets `dropped` and `pending`.
    Without it, a name whose record was dropped is decided anew.
    """

    __slots__ = ("body", "dropped", "kept", "name", "note", "packed", "pending", "since_us")

    def __init__(self, name: str, body: bytes, note: bytes, since_us: int | None = None) -> None:
        self.name = name
        self.body = body
        self.note = note
        self.kept: Kept | None = None
        self.pending = False
        self.since_us = since_us
        self.dropped = False
        self.packed = b""
        """What a KEEP keeps."""


@final
class Request:
    """One operation on one or several counters, all or nothing; `once` if it is not to be repeated."""

    __slots__ = ("members", "once", "op")

    def __init__(self, op: Op, members: Sequence[Member], once: Once | None = None) -> None:
        self.op = op
        self.members = members
        self.once = once


@final
class Outcome:
    """What came of one member: its own decision, and the tick a later GIVE_BACK must name.

    After RESET, CHARGE and GIVE_BACK the decision tells how the counter stands (as a PEEK of cost 0 would). `token` is
    what a service issues for a TAKE, and wants to see when it is settled; stores of one's own need none.
    """

    __slots__ = ("decision", "tick", "token")

    def __init__(self, decision: Decision, tick: i64, token: str | None = None) -> None:
        self.decision = decision
        self.tick = tick
        self.token = token


Take = tuple[Algorithm, str, int]
"""The limit, the key and the cost of the simplest request: one counter that binds."""

Replies = list[list[Outcome]]
"""What came of a batch: for each request, one outcome per member."""

Done = Callable[[Replies | StoreError], None]
"""Whoever waits for a batch: called once, with what came of it."""


class PartlyAnswered(StoreError):  # noqa: N818 - says what it is
    """Some parts of a store did not answer. `replies` has, for every member, its outcome or what went wrong.

    A request that was decided before, under the name of its record, has none. One that is about a record alone, and has
    no members, has what went wrong if anything did.
    """

    def __init__(self, replies: Sequence[Sequence[Outcome | StoreError]]) -> None:
        self.replies = replies
        errors = [item for reply in replies for item in reply if isinstance(item, StoreError)]
        super().__init__(str(errors[0]) if errors else "a part of the store did not answer")


class Store(Protocol):
    """The one method that decides, and the clock it decides by. See the module for what it promises."""

    @property
    def clock(self) -> Clock: ...

    def apply(self, batch: Sequence[Request]) -> list[list[Outcome]]:
        """Decide the requests in order; one outcome per member, in the members' order."""

    def close(self) -> None:
        """Let go of files and connections. Closing twice is fine; deciding afterwards is a StoreClosed."""


class LocalStore:
    """A store in this process or machine: it answers without waiting for a network.

    `take` is the batch of one request with one member, without the ceremony: the hot path. Its cost must not exceed
    the algorithm's ceiling.
    """

    clock: Clock
    waits: bool
    """Whether `apply` may wait for other processes; an event loop then calls `apply_within` instead."""

    def apply(self, batch: Sequence[Request]) -> list[list[Outcome]]:
        raise NotImplementedError

    timeout: float
    """Seconds that `apply` waits for others before it gives up with a StoreError."""

    def apply_within(self, batch: Sequence[Request], patience: float) -> list[list[Outcome]] | None:
        """Decide if that can be done within so many seconds; None when it cannot, and nothing was done."""
        raise NotImplementedError

    def watch(self, batch: Sequence[Request]) -> Callable[[], bool]:
        """For whoever calls `apply_within` again and again: says when to stop. Not before the timeout, and then not
        while those who are waited for go on."""
        raise NotImplementedError

    def take(self, algorithm: Algorithm, key: str, cost: i64) -> Decision:
        raise NotImplementedError

    def take_many(self, takes: Sequence[Take]) -> list[Decision] | None:
        """Several such takes, if all of them can be done at once and without ceremony; None, and nothing is done, if
        one cannot: then `apply_within` is for them."""
        raise NotImplementedError

    def counts(self) -> dict[str, int]:
        """What this process has counted of the store itself, by name; for whoever watches."""
        return {}

    def close(self) -> None:
        raise NotImplementedError
