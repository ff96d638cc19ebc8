"""What a connection holds in memory, and what all connections of a worker may hold together.

Held are calls that are under way (their headers and messages, complete or not), responses that the peer does not take,
and bytes that were received and not handled yet. A connection reserves what it holds from the budget of the worker, in
steps, so that the budget is not asked for each call. A little is free: whoever sends small calls is served even when
others have used up the budget. When it is used up, the connection that holds most is closed, if that is not the one
that asks.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final, final

from headgate.service.rpc.call import RpcError, Status

if TYPE_CHECKING:
    from headgate.service.connections import ConnectionBudget
    from headgate.service.rpc.connection import Connection

__all__ = ["FREE_BYTES", "MAX_HELD_BYTES", "Held", "Memory"]

MAX_HELD_BYTES: Final = 32 * 1024 * 1024
"""Per connection."""
FREE_BYTES: Final = 16 * 1024
"""Per connection, and not counted in the budget of the worker."""
STEP_BYTES: Final = 16 * 1024
SEARCH_WORK: Final = 16 * 1024
"""Units of work (see scheduler.py) of a search for the connection that holds most."""


@final
class Held:
    """The bytes that one connection holds, and how many of them are reserved."""

    def __init__(self, connection: Connection, memory: Memory) -> None:
        self.size = 0
        self.reserved = FREE_BYTES
        self.connection = connection
        self._memory = memory

    def reserve(self) -> None:
        """Reserve what `size` says. RpcError when that is more than this connection, or all of them, may hold."""
        if self.size > MAX_HELD_BYTES:
            raise RpcError(
                Status.RESOURCE_EXHAUSTED,
                f"this connection holds more than {MAX_HELD_BYTES:,} bytes of unfinished calls and unread responses: "
                "send fewer calls at once, and read the responses",
            )
        wanted = (self.size - self.reserved + STEP_BYTES - 1) // STEP_BYTES * STEP_BYTES
        if not self._memory.hold(self, wanted):
            raise RpcError(
                Status.RESOURCE_EXHAUSTED,
                "all connections together hold too many bytes of unfinished calls and unread responses: retry later, "
                "with smaller messages",
            )
        self.reserved += wanted

    def shrink(self) -> None:
        """Return what is reserved and no longer needed."""
        spare = (self.reserved - max(self.size, FREE_BYTES)) // STEP_BYTES * STEP_BYTES
        if spare > 0:
            self.reserved -= spare
            self._memory.free(self, spare)


@final
class Memory:
    """The budget of a worker, as the gRPC listener uses it."""

    def __init__(self, budget: ConnectionBudget) -> None:
        self._budget = budget
        self._holders: dict[Held, None] = {}
        """Those that have reserved something."""

    def hold(self, held: Held, size: int) -> bool:
        """Whether so much more may be held; if need be, somebody greedier is closed for it."""
        while not self._budget.hold("grpc", size):
            held.connection.charge(SEARCH_WORK)
            greediest = self._greediest()
            if greediest is None or greediest is held or greediest.reserved <= held.reserved + size:
                return False
            before = self._budget.held_bytes
            greediest.connection.close_greedy()
            if self._budget.held_bytes >= before:
                return False
        self._holders[held] = None
        return True

    def free(self, held: Held, size: int) -> None:
        self._budget.free("grpc", size)
        if held.reserved <= FREE_BYTES:
            self._holders.pop(held, None)

    def _greediest(self) -> Held | None:
        greediest: Held | None = None
        for held in self._holders:
            if greediest is None or held.reserved > greediest.reserved:
                greediest = held
        return greediest
