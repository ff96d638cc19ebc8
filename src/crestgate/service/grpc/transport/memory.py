# mypyc: compile
"""Memory accounting: bytes held per connection, and by all connections of a worker.

Counted are calls in progress (headers and messages, complete or not), responses that the peer does not read, and input
that was received and not handled yet. A connection reserves these bytes from the worker's budget, in steps, so that the
budget is not consulted for each call. A few bytes are free: clients with small calls are served even when others have
used up the budget. When it is used up, the connection that holds the most is closed, unless that is the one that asks.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final, final

from crestgate.service.grpc.transport.call import RpcError, RpcStatus

if TYPE_CHECKING:
    from crestgate.runtime.connection_budget import ConnectionBudget
    from crestgate.service.grpc.transport.connection import Http2Connection

__all__ = ["FREE_BYTES", "MAX_HELD_BYTES", "HeldBytes", "MemoryBudget"]

MAX_HELD_BYTES: Final = 32 * 1024 * 1024
"""Per connection."""
FREE_BYTES: Final = 16 * 1024
"""Per connection, not counted in the worker's budget."""
STEP_BYTES: Final = 16 * 1024
SEARCH_WORK: Final = 16 * 1024
"""Work units (see runtime/scheduler.py) of a search for the largest connection."""


@final
class HeldBytes:
    """Bytes that one connection holds, and how many of them are reserved."""

    def __init__(self, connection: Http2Connection, budget: MemoryBudget) -> None:
        self.size = 0
        self.reserved = FREE_BYTES
        self.connection = connection
        self._budget = budget

    def reserve(self) -> None:
        """Reserve `size` bytes; RpcError if that exceeds the limit of this connection, or of the worker."""
        if self.size > MAX_HELD_BYTES:
            raise RpcError(
                RpcStatus.RESOURCE_EXHAUSTED,
                f"this connection holds more than {MAX_HELD_BYTES:,} bytes of unfinished calls and unread responses: "
                "send fewer calls at once, and read the responses",
            )
        missing_bytes = (self.size - self.reserved + STEP_BYTES - 1) // STEP_BYTES * STEP_BYTES
        if not self._budget.hold(self, missing_bytes):
            raise RpcError(
                RpcStatus.RESOURCE_EXHAUSTED,
                "all connections together hold too many bytes of unfinished calls and unread responses: retry later, "
                "with smaller messages",
            )
        self.reserved += missing_bytes

    def shrink(self) -> None:
        """Release what is reserved and no longer needed."""
        spare = (self.reserved - max(self.size, FREE_BYTES)) // STEP_BYTES * STEP_BYTES
        if spare > 0:
            self.reserved -= spare
            self._budget.free(self, spare)


@final
class MemoryBudget:
    """The memory budget of a worker, for the gRPC listener."""

    def __init__(self, budget: ConnectionBudget) -> None:
        self._budget = budget
        self._holders: dict[HeldBytes, None] = {}
        """Connections that have reserved something."""

    def hold(self, held: HeldBytes, size: int) -> bool:
        """Reserve bytes for a connection. If the budget is used up, larger connections are closed first."""
        while not self._budget.hold("grpc", size):
            held.connection.charge(SEARCH_WORK)
            largest = self._largest()
            if largest is None or largest is held or largest.reserved <= held.reserved + size:
                return False
            before = self._budget.held_bytes
            largest.connection.close_for_memory()
            if self._budget.held_bytes >= before:
                return False
        self._holders[held] = None
        return True

    def free(self, held: HeldBytes, size: int) -> None:
        self._budget.free("grpc", size)
        if held.reserved <= FREE_BYTES:
            self._holders.pop(held, None)

    def _largest(self) -> HeldBytes | None:
        largest: HeldBytes | None = None
        for held in self._holders:
            if largest is None or held.reserved > largest.reserved:
                largest = held
        return largest
