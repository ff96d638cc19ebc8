"""Stores across a network, or behind a disk: what the engine asks of them beyond the port.

This file is not compiled, so that stores can be subclasses of `RemoteStore` without being compiled either.
"""

from __future__ import annotations

import time
from collections.abc import Iterator, Mapping, Sequence

from headgate.core.algorithms.algorithm import Algorithm
from headgate.stores.breaker import Breaker
from headgate.stores.clock import Clock
from headgate.stores.port import Done, Member, Replies, Request
from headgate.stores.records import grouped

__all__ = ["DEFAULT_TIMEOUT_MS", "PROBE", "RemoteStore"]

DEFAULT_TIMEOUT_MS = 100
PROBE = "headgate-probe"
"""The counter that is counted to see whether that can be done, and forgotten at once."""


class RemoteStore:
    """A store across a network, or behind a disk: its calls wait, so the engine sends it many requests at a time.

    A batch must be decided, or given up with a StoreError, by its deadline (an instant of `time.monotonic`). What
    may have reached the other side is never sent twice. A ValueError (see the port) is raised by `call` and `begin`
    themselves.
    """

    title: str = "the store"
    """What it is and where, for messages; without any password."""
    clock: Clock
    timeout: float
    """Seconds that a check may take, waiting included."""
    lanes: int = 4
    """How many batches may be under way at once."""
    worth_a_call: int = 500
    """How many requests are better sent together than shared out over free lanes."""
    most_members: int = 500
    """How many members a batch should have at most; a larger one is taken too, and split."""

    def supports(self, algorithm: Algorithm) -> bool:
        """Whether the store can decide by this algorithm (one that users registered may have no twin in it)."""
        return True

    def plan_of(self, name: str) -> Algorithm | None:
        """What stands for a plan that only the store may know, if it knows plans at all: see far.py."""
        return None

    def rules_for(self, context: Mapping[str, str]) -> Member | None:
        """What stands for all rules of the store that apply to a request, if it has any; the cost is still to come."""
        return None

    def breakers(self) -> Mapping[str, Breaker]:
        """The breaker of each server that was asked so far, by its name; for whoever watches."""
        return {}

    def probe_keys(self) -> Sequence[str]:
        """Keys whose counters are on every server together, so that who asks for these has asked all of them."""
        return (PROBE,)

    def connect(self) -> None:
        """Reach the other side, so that no check is the first to; StoreError when that cannot be done."""
        raise NotImplementedError

    def call(self, batch: Sequence[Request], deadline: float) -> Replies:
        """Decide from a thread, by the deadline."""
        raise NotImplementedError

    async def connect_async(self) -> None:
        """`connect` for the running event loop."""
        raise NotImplementedError

    def begin(self, batch: Sequence[Request], deadline: float, done: Done) -> None:
        """Decide on the running event loop without holding it up; `done` is called on it, by the deadline."""
        raise NotImplementedError

    def apply(self, batch: Sequence[Request]) -> Replies:
        return self.call(batch, time.monotonic() + self.timeout)

    def fits(self, batch: Sequence[Request]) -> bool:
        """Whether a batch is small enough to be decided in one go."""
        return sum([len(request.members) for request in batch]) <= self.most_members

    def pieces(self, batch: Sequence[Request]) -> list[Sequence[Request]]:
        """A batch in pieces that are; a request stays whole, and so do requests that are decided once."""
        if self.fits(batch):
            return [batch]
        pieces: list[Sequence[Request]] = []
        piece: list[Request] = []
        members = 0
        for whole in _wholes(batch):
            size = sum([len(request.members) for request in whole])
            if piece and members + size > self.most_members:
                pieces.append(piece)
                piece, members = [], 0
            piece += whole
            members += size
        return [*pieces, piece]

    def close(self) -> None:
        """Let go of the connections. Closing twice is fine; deciding afterwards is a StoreClosed."""
        raise NotImplementedError

    async def aclose(self) -> None:
        """`close`, and wait until the running event loop has let go too."""
        self.close()


def _wholes(batch: Sequence[Request]) -> Iterator[Sequence[Request]]:
    """What of a batch must not be parted."""
    for group in grouped(batch):
        if group[0].once is not None:
            yield group
        else:
            for request in group:
                yield [request]
