"""Limits for gRPC handlers that run in threads."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import suppress
from threading import Thread
from typing import Any

import grpc

from crestgate.core.decision import Decision
from crestgate.errors import RateLimitExceeded
from crestgate.integrations.drivers import check_sync, release_slots, settle
from crestgate.integrations.grpc.calls import Context, Rpc, denial_status
from crestgate.limiter.limiter import Limiter

__all__ = ["SyncRpc", "limited_call", "limited_callback", "limited_stream"]

RpcFactory = Callable[[Any], "SyncRpc"]
"""Creates the Rpc for a context."""


class SyncRpc(Rpc[Limiter]):
    """One call at one layer, in a thread."""

    __slots__ = ()

    def admit(self) -> bool:
        """Check the call; False if it is denied. It is aborted then, which raises on a server of threads."""
        admission = self.admission = check_sync(self.layer, self.request, self.request_state, self.route)
        if admission is None or not admission.refused:
            return True
        self.deny(admission.decision)
        return False

    def deny(self, decision: Decision) -> None:
        self.abort(*denial_status(self.layer.custom_denial(self.request, decision), decision))

    def abort(self, code: Any, details: str, trailing: Any) -> None:
        if trailing:
            self.set_trailing(trailing)
        self.finish(code)
        self.native.abort(code, details)

    def finish(self, code: object = None, *, failed: bool = False) -> None:
        """Settle the check and write the trailing metadata, once."""
        if not self.mark_finished():
            return
        settlement = self.settlement(code, failed=failed)
        if settlement is not None:
            settle(*settlement)
        self.write_trailing()

    def release(self) -> None:
        """Release the slots of in-flight limits: the call has ended."""
        if self.admission is not None and self.admission.held is not None:
            release_slots(self.admission)

    def release_on_termination(self) -> None:
        """The same when the client cancels a stream, whose handler is not told. In a thread of its own: the server
        waits for callbacks."""
        admission = self.admission
        if admission is None or admission.held is None:
            return

        def terminated() -> None:
            if admission.held is not None:
                Thread(target=self.release, name="crestgate-release", daemon=True).start()

        with suppress(NotImplementedError):  # contexts of other interceptors
            self.native.add_callback(terminated)

    def fail(self, error: Exception) -> bool:
        """Called with an error of the handler. True if it is a RateLimitExceeded, and the call was denied."""
        if isinstance(error, RateLimitExceeded) and not self.finished:
            self.request_state.add_decision(error.decision)
            self.deny(error.decision)
            return True
        self.finish(failed=True)
        return False


class SyncContext(Context):
    """The context of a handler in a thread."""

    def abort(self, code: Any, details: str = "", trailing_metadata: Any = ()) -> None:
        self._crestgate_rpc.abort(code, details, trailing_metadata)

    def abort_with_status(self, status: Any) -> None:
        self._crestgate_rpc.abort(status.code, status.details, status.trailing_metadata)


grpc.ServicerContext.register(SyncContext)


def limited_call(behaviour: Callable[..., Any], create_rpc: RpcFactory) -> Callable[..., Any]:
    """Wrap a handler that returns one response."""

    def call(request: Any, context: Any) -> Any:
        rpc = create_rpc(context)
        if not rpc.admit():
            return None
        try:
            response = behaviour(request, SyncContext(rpc))
        except Exception as error:
            if rpc.fail(error):
                return None
            raise
        else:
            rpc.finish()
            return response
        finally:
            rpc.release()

    return call


def limited_stream(behaviour: Callable[..., Any], create_rpc: RpcFactory) -> Callable[..., Any]:
    """Wrap a handler that returns an iterator of its responses."""

    def stream(request: Any, context: Any) -> Iterator[Any]:
        rpc = create_rpc(context)
        if not rpc.admit():
            return
        rpc.release_on_termination()
        try:
            yield from behaviour(request, SyncContext(rpc))
        except Exception as error:
            if rpc.fail(error):
                return
            raise
        else:
            rpc.finish()
        finally:
            rpc.release()

    return stream


def limited_callback(behaviour: Callable[..., Any], create_rpc: RpcFactory) -> Callable[..., Any]:
    """Wrap a handler that sends its responses by a callback, and None at the end, as gRPC's health service does."""

    def call(request: Any, context: Any, send: Callable[[Any], None]) -> None:
        rpc = create_rpc(context)
        if not rpc.admit():
            return
        rpc.release_on_termination()

        def send_response(response: Any) -> None:
            if response is None:
                rpc.finish()
            send(response)
            if response is None:
                rpc.release()

        try:
            behaviour(request, SyncContext(rpc), send_response)
        except Exception as error:
            try:
                failed = not rpc.fail(error)  # on a server of threads, a denial raises
            finally:
                rpc.release()
            if failed:
                raise

    return call
