"""A gRPC call at one layer: its request, its status, and the context for its handler.

A handler sets the status of its call through its context: `set_code`, `abort`, `set_trailing_metadata`. A layer needs
it before it is sent: `when` depends on it, and the rate limit headers are added to the handler's trailing metadata. So
the handler gets a context that records these calls and passes everything on to the server's context. In threads it is
registered as a `grpc.ServicerContext`.
"""

from __future__ import annotations

from typing import Any, Generic, TypeAlias
from urllib.parse import unquote

import grpc

from crestgate.core.decision import Decision
from crestgate.http.problem import exceeded
from crestgate.integrations.drivers import LayerResult
from crestgate.integrations.layer import L, LimitLayer
from crestgate.integrations.request import Identity, RawHeaders, Request, Response
from crestgate.integrations.request_state import RequestState

__all__ = ["Context", "DenialStatus", "Rpc", "RpcRequest", "RpcResponse", "denial_status", "peer_address"]

Metadata = tuple[tuple[str, str | bytes], ...]
DenialStatus = tuple[grpc.StatusCode, str, Metadata]
"""The status of a denied call: code, details, and additional trailing metadata."""

Settlement: TypeAlias = "tuple[LayerResult[L], RpcResponse]"
_CODES: dict[int, grpc.StatusCode] = {code.value[0]: code for code in grpc.StatusCode}


class RpcRequest(Request):
    """A call. `native` is its ServicerContext; the headers are the invocation metadata, without binary values.

    `path` and `route` are the full name of the method, `/package.Service/Method`, and `method` is POST, as in the
    HTTP/2 request.
    """

    __slots__ = ("_name", "_raw_headers")

    def __init__(self, native: Any, identity: Identity, name: str) -> None:
        super().__init__(native, identity)
        self._name = name
        self._raw_headers: RawHeaders | None = None

    @property
    def method(self) -> str:
        return "POST"

    @property
    def path(self) -> str:
        return self._name

    @property
    def route(self) -> str | None:
        return self._name

    @property
    def raw_headers(self) -> RawHeaders:
        raw = self._raw_headers
        if raw is None:
            raw = self._raw_headers = _text_headers(self.native.invocation_metadata())
        return raw

    @property
    def peer(self) -> str | None:
        return peer_address(self.native.peer())

    @property
    def principal(self) -> str | None:
        """The name in the client's certificate: its common name, else gRPC's peer identity."""
        identities = list(self.native.peer_identities() or ())
        names = list(self.native.auth_context().get("x509_common_name", ())) if identities else []
        names += identities
        return names[0].decode("utf-8", "replace") if names else None


class RpcResponse(Response):
    """The status of a call, for `when`. `status` is the number of its code: 0 is OK, 16 UNAUTHENTICATED."""

    __slots__ = ("code",)

    def __init__(self, code: grpc.StatusCode, headers: RawHeaders = ()) -> None:
        super().__init__(code.value[0], headers)
        self.code = code


class Rpc(Generic[L]):
    """One call at one layer: the part without I/O."""

    __slots__ = (
        "_status",
        "_trailing",
        "admission",
        "finished",
        "layer",
        "native",
        "request",
        "request_state",
        "route",
    )

    def __init__(
        self, layer: LimitLayer[L], request_state: RequestState, native: Any, name: str, route: str | None
    ) -> None:
        self.layer = layer
        self.request_state = request_state
        self.native = native
        self.request = RpcRequest(native, layer.identity, name)
        self.route = route
        """The method, if limits count per method."""
        self.admission: LayerResult[L] | None = None
        self._status: object = None
        self._trailing: Metadata = ()
        self.finished = False
        if request_state.writer is None:
            request_state.writer = self

    def set_code(self, code: object) -> None:
        self._status = code

    def set_trailing(self, metadata: Any) -> None:
        self._trailing = tuple(metadata or ())
        self.native.set_trailing_metadata(self._trailing)

    def settlement(self, code: object = None, *, failed: bool = False) -> Settlement[L] | None:
        """The arguments of `settle` at the end of the call; None if there is nothing to settle. `code` overrides what
        the handler has set, and an exception without a code is UNKNOWN, as in gRPC.

        A call whose client has disconnected keeps its charge.
        """
        admission = self.admission
        if admission is None or admission.holding is None or not self._is_active():
            return None
        status = _code(self._status if code is None else code)
        if failed and status is grpc.StatusCode.OK:
            status = grpc.StatusCode.UNKNOWN
        return admission, RpcResponse(status, _text_headers(self._trailing_metadata()))

    def mark_finished(self) -> bool:
        """Mark the call as finished; False if it already was."""
        finished, self.finished = self.finished, True
        return not finished

    def write_trailing(self) -> None:
        """Add the rate limit headers to the trailing metadata, if this is the layer that writes them."""
        if self.request_state.writer is not self:
            return
        headers = dict(self.layer.limit_headers(self.request_state))
        if headers:
            others = [entry for entry in self._trailing_metadata() if entry[0] not in headers]
            self.native.set_trailing_metadata((*others, *headers.items()))

    def _is_active(self) -> bool:
        """Whether the client is still connected, as far as known. On an event loop, a handler is cancelled when the
        client disconnects, but a plain function is not notified."""
        is_active = getattr(self.native, "is_active", None)
        return is_active is None or is_active()

    def _trailing_metadata(self) -> Metadata:
        """The trailing metadata that the handler, or an interceptor around this one, has set so far."""
        try:
            return tuple(self.native.trailing_metadata() or ())
        except (AttributeError, NotImplementedError):  # contexts of other interceptors, and gRPC's own for plain
            return self._trailing  # functions on an event loop's server


class Context:
    """The context of a handler: the server's own, except for the calls that the layer records."""

    def __init__(self, rpc: Rpc[Any]) -> None:
        self._crestgate_rpc: Any = rpc

    def __getattr__(self, name: str) -> Any:
        return getattr(self._crestgate_rpc.native, name)

    def set_code(self, code: Any) -> None:
        rpc = self._crestgate_rpc
        rpc.set_code(code)
        rpc.native.set_code(code)

    def set_trailing_metadata(self, trailing_metadata: Any) -> None:
        self._crestgate_rpc.set_trailing(trailing_metadata)


def peer_address(peer: str) -> str | None:
    """The address in gRPC's name of a peer; None for a Unix socket.

    >>> peer_address("ipv4:192.0.2.7:4711"), peer_address("ipv6:%5B2001:db8::1%5D:4711"), peer_address("unix:")
    ('192.0.2.7', '2001:db8::1', None)
    """
    scheme, _, rest = peer.partition(":")
    if scheme not in ("ipv4", "ipv6"):
        return None
    host, _, port = unquote(rest).rpartition(":")
    return host.strip("[]") if port.isdigit() else unquote(rest).strip("[]")


def denial_status(custom: Any, decision: Decision) -> DenialStatus:
    """The status of a denied call; `custom` is the result of `on_denied`."""
    if custom is None:
        return grpc.StatusCode.RESOURCE_EXHAUSTED, exceeded(decision)["detail"], ()
    if isinstance(custom, grpc.Status):
        return custom.code, custom.details, tuple(custom.trailing_metadata or ())
    if isinstance(custom, tuple) and len(custom) == 2 and isinstance(custom[0], grpc.StatusCode):
        return custom[0], str(custom[1]), ()
    raise TypeError(
        "on_denied must return None, a grpc.Status, or a code and a string such as "
        f"(grpc.StatusCode.UNAVAILABLE, 'come back later'), not {custom!r}"
    )


def _text_headers(metadata: Any) -> RawHeaders:
    return [
        (name.encode("latin-1"), value.encode("latin-1", "replace"))
        for name, value in metadata or ()
        if isinstance(value, str)
    ]


def _code(status: object) -> grpc.StatusCode:
    """The StatusCode for what a handler may set: a StatusCode, its number, or None for OK."""
    if status is None:
        return grpc.StatusCode.OK
    if isinstance(status, grpc.StatusCode):
        return status
    return _CODES.get(status, grpc.StatusCode.UNKNOWN) if isinstance(status, int) else grpc.StatusCode.UNKNOWN
