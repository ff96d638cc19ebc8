"""Where every gRPC call comes in: who may, under which id it is in the log, and what its caller is told when something
is wrong. The same guard, log and counters as HTTP has (see dispatch.py), in gRPC's words.

What answers a method gets the service's `Call`, as if it had come by HTTP, and the bytes of a message; it answers with
bytes, or raises what it would raise there.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from time import monotonic, perf_counter
from typing import Final, final

from headgate.http.client_address import peer_address
from headgate.service.asgi import BadRequest, Call
from headgate.service.auth.guard import Guard, Refusal
from headgate.service.auth.keys import Scope
from headgate.service.observe.tally import Tally
from headgate.service.parts import Visit
from headgate.service.refusing import told_of
from headgate.service.request_ids import RequestIds
from headgate.service.request_log import RequestLog
from headgate.service.rpc.call import Method, RpcCall, RpcError, Send, Status
from headgate.service.rpc.messages import DecodeError

__all__ = ["AtOnce", "Door", "Entry", "InTime", "Streaming"]

AtOnce = Callable[[Call, bytes], "bytes | None"]
"""Answers a message without waiting, or says None."""
InTime = Callable[[Call, bytes], Awaitable[bytes]]
Streaming = Callable[[Call, AsyncIterator[bytes], Send], Awaitable[None]]

PLANE: Final = "grpc"
"""What metrics call it. The status beside it is gRPC's, as a number."""
OK: Final = 0
UNREADABLE: Final = "the message cannot be read as what this method takes: it was made by another .proto, or is broken"
WARN_EVERY: Final = 60.0
"""Seconds between two lines of the log about callers who are not let in."""
LONGEST_TOLD: Final = 500
"""Characters of what a caller is told. It travels in a header, which many clients take up to 8 KiB of."""
RETRY_AFTER: Final = b"retry-after"
STATUSES: Final = {
    400: Status.INVALID_ARGUMENT,
    401: Status.UNAUTHENTICATED,
    403: Status.PERMISSION_DENIED,
    404: Status.NOT_FOUND,
    409: Status.ABORTED,
    412: Status.FAILED_PRECONDITION,
    413: Status.RESOURCE_EXHAUSTED,
    422: Status.INVALID_ARGUMENT,
    429: Status.RESOURCE_EXHAUSTED,
    503: Status.UNAVAILABLE,
}
"""What HTTP's statuses are here; any other is a mistake of ours."""


@final
class Door:
    """What all methods of one worker share."""

    def __init__(self, guard: Guard, tally: Tally, log: RequestLog) -> None:
        self.guard = guard
        self.tally = tally
        self.log = log
        self.ids = RequestIds()
        self.warned = -WARN_EVERY

    def turned_away(self, call: Call, refusal: Refusal) -> None:
        """Somebody is not let in. It may be a proxy that lets everything through instead, and nobody would notice: so
        the log says so, now and then."""
        now = monotonic()
        if now - self.warned >= WARN_EVERY:
            self.warned = now
            self.log.turned_away(call, refusal.detail)


@final
class Entry:
    """One method: what answers it, and what it takes to be let in (`need`, None where it is open). A `public` one does
    not look at keys at all: a probe with a key that was revoked is to be told how the service is."""

    def __init__(
        self,
        door: Door,
        path: str,
        need: Scope | None = None,
        in_time: InTime | None = None,
        at_once: AtOnce | None = None,
        streaming: Streaming | None = None,
        public: bool = False,
    ) -> None:
        self.public = public
        self.door = door
        self.path = path
        self.need = need
        self.write = need == "write"
        self._in_time = in_time
        self._at_once = at_once
        self._streaming = streaming

    def method(self) -> Method:
        """It, for the listener."""
        if self._streaming is not None:
            return Method(streaming=self.streaming)
        return Method(self.in_time, None if self._at_once is None else self.at_once)

    def at_once(self, rpc: RpcCall, message: bytes) -> bytes | None:
        started = perf_counter()
        call = self.call(rpc)
        assert self._at_once is not None
        try:
            self.enter(call, rpc)
            answer = self._at_once(call, message)
        except Exception as error:  # noqa: BLE001 - whatever it is, the caller gets an answer
            raise self.refusal(call, error, started) from None
        if answer is not None:
            self.answered(call, OK, started)
        return answer

    async def in_time(self, rpc: RpcCall, message: bytes) -> bytes:
        started = perf_counter()
        call = self.call(rpc)
        assert self._in_time is not None
        try:
            self.enter(call, rpc)
            answer = await self._in_time(call, message)
        except asyncio.CancelledError:
            self.answered(call, _gone(rpc), started)
            raise
        except Exception as error:  # noqa: BLE001 - as above
            raise self.refusal(call, error, started) from None
        self.answered(call, OK, started)
        return answer

    async def streaming(self, rpc: RpcCall, messages: AsyncIterator[bytes], send: Send) -> None:
        started = perf_counter()
        call = self.call(rpc)
        assert self._streaming is not None
        try:
            self.enter(call, rpc)
            await self._streaming(call, messages, send)
        except asyncio.CancelledError:
            self.answered(call, _gone(rpc), started)
            raise
        except Exception as error:  # noqa: BLE001 - as above
            raise self.refusal(call, error, started) from None
        self.answered(call, OK, started)

    def call(self, rpc: RpcCall) -> Call:
        """The call as the planes know calls. Its id is said back."""
        fields = rpc.fields
        request_id = self.door.ids.of(fields)
        rpc.said = ((b"x-request-id", request_id.encode()),)
        return Call({"method": "POST", "path": self.path, "headers": rpc.metadata}, fields, request_id)

    def enter(self, call: Call, rpc: RpcCall) -> None:
        """Find out who calls; BadRequest for who may not."""
        fields = call.fields
        if self.need is None and (self.public or (b"authorization" not in fields and b"x-api-key" not in fields)):
            return
        address = peer_address(rpc.peer)
        admitted = self.door.guard.admit(self.need, rpc.metadata, address, self.write)
        if isinstance(admitted, Refusal):
            call.visit = Visit(None, address, call.request_id)
            self.door.turned_away(call, admitted)
            raise BadRequest(admitted.status, admitted.detail, admitted.headers)
        call.visit = Visit(admitted, address, call.request_id)

    def answered(self, call: Call, status: int, started: float) -> None:
        door = self.door
        door.tally.request(PLANE, status)
        if door.log.checks:
            door.log.check(call, status, perf_counter() - started)

    def refusal(self, call: Call, error: Exception, started: float) -> RpcError:
        """What is wrong, as gRPC says it. It is returned, not raised: a frame that has an exception both in a local and
        in its traceback is a reference cycle, and would keep the decoded message until the garbage collector runs."""
        if isinstance(error, RpcError):
            refusal = error
        elif isinstance(error, DecodeError):
            refusal = RpcError(Status.INVALID_ARGUMENT, UNREADABLE)
        else:
            told = told_of(call, error, self.door.log)
            trailers = [header for header in told.headers if header[0] == RETRY_AFTER]
            refusal = RpcError(STATUSES.get(told.status, Status.INTERNAL), one_line(told.detail), trailers)
        self.answered(call, int(refusal.status), started)
        return refusal


def one_line(text: str) -> str:
    """What is told, on one line and not too long of it.

    >>> one_line("plans[0]: there is\\nno plan")
    'plans[0]: there is no plan'
    """
    line = " ".join(text.splitlines())
    return line if len(line) <= LONGEST_TOLD else line[:LONGEST_TOLD] + "…"


def _gone(rpc: RpcCall) -> int:
    """The status of a call that was cancelled: its deadline has passed, or its caller has gone."""
    late = rpc.deadline is not None and asyncio.get_running_loop().time() >= rpc.deadline
    return int(Status.DEADLINE_EXCEEDED if late else Status.CANCELLED)
