"""Limits before a gRPC handler that runs in a thread."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from typing import Any

import grpc

from crestgate.core.decision import Decision
from crestgate.errors import RateLimitExceeded
from crestgate.integrations.drivers import check_sync, settle
from crestgate.integrations.grpc.calls import Context, Rpc, shaped_denial
from crestgate.limiter.limiter import Limiter

__all__ = ["ThreadRpc", "limited_call", "limited_callback", "limited_stream"]

Begun = Callable[[Any], "ThreadRpc"]
"""Makes the call that a context is of."""


class ThreadRpc(Rpc[Limiter]):
    """One call at one layer, in a thread."""

    __slots__ = ()

    def admit(self) -> bool:
        """Whether the call may go on. One that may not is aborted, which raises on a server of threads."""
        admission = self.admission = check_sync(self.layer, self.request, self.request_state, self.route)
        if admission is None:
            return True
        if admission.refused:
            self.deny(admission.decision)
            return False
        delay = self.layer.delay(admission.decision)
        if delay:
            time.sleep(delay)
        return True

    def deny(self, decision: Decision) -> None:
        on_denied = self.layer.on_denied
        shaped = None if on_denied is None else on_denied(self.request, decision)
        self.abort(*shaped_denial(shaped, decision))

    def abort(self, code: Any, details: str, trailing: Any) -> None:
        if trailing:
            self.set_trailing(trailing)
        self.finish(code)
        self.native.abort(code, details)

    def finish(self, code: object = None, *, failed: bool = False) -> None:
        """The call ends."""
        if self.is_over():
            return
        ending = self.ends(code, failed=failed)
        if ending is not None:
            settle(*ending)
        self.call()

    def failed(self, error: Exception) -> bool:
        """The handler has raised; whether that was answered."""
        if isinstance(error, RateLimitExceeded) and not self.over:
            self.request_state.add_decision(error.decision)
            self.deny(error.decision)
            return True
        self.finish(failed=True)
        return False


class ThreadContext(Context):
    """The context of a handler in a thread."""

    def abort(self, code: Any, details: str = "", trailing_metadata: Any = ()) -> None:
        self._crestgate_rpc.abort(code, details, trailing_metadata)

    def abort_with_status(self, status: Any) -> None:
        self._crestgate_rpc.abort(status.code, status.details, status.trailing_metadata)


grpc.ServicerContext.register(ThreadContext)


def limited_call(behaviour: Callable[..., Any], begun: Begun) -> Callable[..., Any]:
    """A handler that returns its one response."""

    def call(request: Any, context: Any) -> Any:
        rpc = begun(context)
        if not rpc.admit():
            return None
        try:
            response = behaviour(request, ThreadContext(rpc))
        except Exception as error:
            if rpc.failed(error):
                return None
            raise
        rpc.finish()
        return response

    return call


def limited_stream(behaviour: Callable[..., Any], begun: Begun) -> Callable[..., Any]:
    """A handler that iterates its responses."""

    def stream(request: Any, context: Any) -> Iterator[Any]:
        rpc = begun(context)
        if not rpc.admit():
            return
        try:
            yield from behaviour(request, ThreadContext(rpc))
        except Exception as error:
            if rpc.failed(error):
                return
            raise
        rpc.finish()

    return stream


def limited_callback(behaviour: Callable[..., Any], begun: Begun) -> Callable[..., Any]:
    """A handler that sends its responses by a callback, and None when there are no more. gRPC's health service does."""

    def call(request: Any, context: Any, send: Callable[[Any], None]) -> None:
        rpc = begun(context)
        if not rpc.admit():
            return

        def watched(response: Any) -> None:
            if response is None:
                rpc.finish()
            send(response)

        try:
            behaviour(request, ThreadContext(rpc), watched)
        except Exception as error:
            if not rpc.failed(error):
                raise

    return call
