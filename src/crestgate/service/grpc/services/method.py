# mypyc: compile
"""gRPC methods: authentication, request id, and errors as gRPC statuses, around a handler.

The same guard, log and metrics as for HTTP (see http/router.py). A handler gets the service's CallContext and the bytes
of a message; it returns the bytes of the response, or something to await them of, and raises what it would over HTTP.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable, Generator
from time import monotonic, perf_counter
from typing import Any, Final, final

from crestgate.http.client_address import peer_address
from crestgate.protobuf.messages import DecodeError
from crestgate.service.auth.guard import Guard, Refusal
from crestgate.service.auth.keys import Scope
from crestgate.service.context import CallContext
from crestgate.service.errors import ApiError, error_response
from crestgate.service.grpc.transport.call import AwaitableResponse, Method, RpcCall, RpcError, RpcStatus, Send
from crestgate.service.observability.request_ids import RequestIds
from crestgate.service.observability.request_log import RequestLog
from crestgate.service.observability.worker_metrics import WorkerMetrics

__all__ = ["GrpcMethod", "GrpcMethods", "Handler", "StreamHandler"]

Handler = Callable[[CallContext, bytes], bytes | AwaitableResponse]
StreamHandler = Callable[[CallContext, AsyncIterator[bytes], Send], Awaitable[None]]

PLANE: Final = "grpc"
"""The label in metrics. The status beside it is gRPC's, as a number."""
OK: Final = 0
UNREADABLE: Final = "the message cannot be read as what this method takes: it was made by another .proto, or is broken"
WARN_SECONDS: Final = 60.0
"""Between two log lines about refused callers."""
MAX_MESSAGE: Final = 500
"""Characters of a status message. It travels in a header, which many clients take up to 8 KiB of."""
RETRY_AFTER: Final = b"retry-after"
STATUSES: Final = {
    400: RpcStatus.INVALID_ARGUMENT,
    401: RpcStatus.UNAUTHENTICATED,
    403: RpcStatus.PERMISSION_DENIED,
    404: RpcStatus.NOT_FOUND,
    409: RpcStatus.ABORTED,
    412: RpcStatus.FAILED_PRECONDITION,
    413: RpcStatus.RESOURCE_EXHAUSTED,
    422: RpcStatus.INVALID_ARGUMENT,
    429: RpcStatus.RESOURCE_EXHAUSTED,
    503: RpcStatus.UNAVAILABLE,
}
"""By HTTP status; any other is INTERNAL."""


@final
class GrpcMethods:
    """What all methods of one worker share."""

    def __init__(self, guard: Guard, metrics: WorkerMetrics, log: RequestLog) -> None:
        self.guard = guard
        self.metrics = metrics
        self.log = log
        self.request_ids = RequestIds()
        self.warned = -WARN_SECONDS

    def warn_refused(self, call: CallContext, refusal: Refusal) -> None:
        """Log a refused caller, now and then. It may be a proxy that lets everything through instead, and nobody would
        notice."""
        now = monotonic()
        if now - self.warned >= WARN_SECONDS:
            self.warned = now
            self.log.unauthorized(call, refusal.detail)


@final
class GrpcMethod:
    """One method: its handler, and the scope that its callers need (None: open). A `public` one ignores keys: a probe
    with a revoked key must still get the health."""

    def __init__(
        self,
        shared: GrpcMethods,
        path: str,
        handler: Handler | None = None,
        scope: Scope | None = None,
        stream_handler: StreamHandler | None = None,
        public: bool = False,
    ) -> None:
        self.shared = shared
        self.path = path
        self.scope = scope
        self.write = scope == "write"
        self.public = public
        self.handler = handler
        self.stream_handler = stream_handler

    def method(self) -> Method:
        """It, for the listener."""
        return Method(self.unary) if self.stream_handler is None else Method(streaming=self.streaming)

    def unary(self, rpc: RpcCall, message: bytes) -> bytes | AwaitableResponse:
        call = self._context(rpc)
        assert self.handler is not None
        fields = rpc.fields
        try:
            if self.scope is not None or b"authorization" in fields or b"x-api-key" in fields:
                self._authenticate(call, rpc)
            reply = self.handler(call, message)
        except Exception as error:  # noqa: BLE001 - the caller gets a status in any case
            raise self._error(call, error) from None
        if isinstance(reply, bytes):
            self.finish(call, OK)
            return reply
        return _PendingReply(self, call, rpc, reply)

    async def wait(self, call: CallContext, rpc: RpcCall, reply: AwaitableResponse) -> bytes:
        """The reply of a handler that waits."""
        try:
            message = await reply
        except asyncio.CancelledError:
            self.finish(call, _cancelled(rpc))
            raise
        except Exception as error:  # noqa: BLE001 - as above
            raise self._error(call, error) from None
        self.finish(call, OK)
        return message

    async def streaming(self, rpc: RpcCall, messages: AsyncIterator[bytes], send: Send) -> None:
        call = self._context(rpc)
        assert self.stream_handler is not None
        try:
            self._authenticate(call, rpc)
            await self.stream_handler(call, messages, send)
        except asyncio.CancelledError:
            self.finish(call, _cancelled(rpc))
            raise
        except Exception as error:  # noqa: BLE001 - as above
            raise self._error(call, error) from None
        self.finish(call, OK)

    def _context(self, rpc: RpcCall) -> CallContext:
        """The call for handlers. Its request id is in the response."""
        fields = rpc.fields
        request_id = self.shared.request_ids.of(fields)
        rpc.response_headers = ((b"x-request-id", request_id.encode()),)
        call = CallContext({"method": "POST", "path": self.path, "headers": rpc.metadata}, fields, request_id)
        call.started = perf_counter()
        return call

    def _authenticate(self, call: CallContext, rpc: RpcCall) -> None:
        """Set the caller and its address; ApiError for a caller who may not call this."""
        fields = call.fields
        if self.scope is None and (self.public or (b"authorization" not in fields and b"x-api-key" not in fields)):
            return
        call.address = address = peer_address(rpc.peer)
        admitted = self.shared.guard.admit(self.scope, rpc.metadata, address, self.write)
        if isinstance(admitted, Refusal):
            self.shared.warn_refused(call, admitted)
            raise ApiError(admitted.status, admitted.detail, admitted.headers)
        call.caller = admitted

    def finish(self, call: CallContext, status: int) -> None:
        """Count and log a call that has ended."""
        shared = self.shared
        shared.metrics.count_request(PLANE, status)
        if shared.log.checks:
            shared.log.check(call, status, perf_counter() - call.started)

    def _error(self, call: CallContext, error: Exception) -> RpcError:
        """An error as a gRPC status. It is returned, not raised: a frame that has an exception both in a local and in
        its traceback is a reference cycle, and would keep the decoded message until the garbage collector runs."""
        if isinstance(error, RpcError):
            status = error
        elif isinstance(error, DecodeError):
            status = RpcError(RpcStatus.INVALID_ARGUMENT, UNREADABLE)
        else:
            response = error_response(call, error, self.shared.log)
            trailers = [header for header in response.headers if header[0] == RETRY_AFTER]
            status = RpcError(STATUSES.get(response.status, RpcStatus.INTERNAL), one_line(response.detail), trailers)
        self.finish(call, int(status.status))
        return status


@final
class _PendingReply:
    """The reply of a call that waits. A call that ends before its reply is awaited is counted, too."""

    def __init__(self, method: GrpcMethod, call: CallContext, rpc: RpcCall, reply: AwaitableResponse) -> None:
        self.method = method
        self.call = call
        self.rpc = rpc
        self.reply = reply
        self.started = False

    def __await__(self) -> Generator[Any, Any, bytes]:
        self.started = True
        return self.method.wait(self.call, self.rpc, self.reply).__await__()

    def close(self) -> None:
        if not self.started:
            self.started = True
            self.reply.close()
            self.method.finish(self.call, _cancelled(self.rpc))


def one_line(text: str) -> str:
    """A status message: on one line, and not too long.

    >>> one_line("plans[0]: there is\\nno plan")
    'plans[0]: there is no plan'
    """
    line = " ".join(text.splitlines())
    return line if len(line) <= MAX_MESSAGE else line[:MAX_MESSAGE] + "…"


def _cancelled(rpc: RpcCall) -> int:
    """The status of a cancelled call: its deadline has passed, or its caller is gone."""
    late = rpc.deadline is not None and asyncio.get_running_loop().time() >= rpc.deadline
    return int(RpcStatus.DEADLINE_EXCEEDED if late else RpcStatus.CANCELLED)
