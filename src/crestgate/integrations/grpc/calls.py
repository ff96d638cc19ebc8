"""A gRPC call as limits see it: who asks, how it ends, and the context that its handler is given.

A handler says through its context how its call ends: `set_code`, `abort`, `set_trailing_metadata`. A layer must know
it, before the status leaves: whether the call counts depends on it (`when`), and what is told of the limits goes with
the trailing metadata, beside what the handler has set. So the handler gets a context that passes everything on to the
server's own, and notes these. Where handlers run in threads it counts as a `grpc.ServicerContext`.
"""

from __future__ import annotations

from typing import Any, Generic, TypeAlias
from urllib.parse import unquote

import grpc

from crestgate.core.decision import Decision
from crestgate.http.problem import exceeded
from crestgate.integrations.drivers import Admission
from crestgate.integrations.layer import L, LimitLayer
from crestgate.integrations.request import Identity, RawHeaders, Request, Response
from crestgate.integrations.request_state import RequestState

__all__ = ["Context", "DenialResponse", "Rpc", "RpcRequest", "RpcResponse", "peer_address", "shaped_denial"]

Metadata = tuple[tuple[str, str | bytes], ...]
DenialResponse = tuple[grpc.StatusCode, str, Metadata]
"""How a denied call is aborted: the code, the text, and further trailing metadata."""

Ending: TypeAlias = "tuple[Admission[L], RpcResponse]"
_CODES: dict[int, grpc.StatusCode] = {code.value[0]: code for code in grpc.StatusCode}


class RpcRequest(Request):
    """A call. `native` is its ServicerContext; the headers are the invocation metadata, without the binary ones.

    `path` and `route` are the name of what is called, `/package.Service/Method`, and `method` is POST, as it is in the
    HTTP/2 that a call is made of.
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
        """Whom the client's certificate names: its common name, else the identity that gRPC goes by."""
        identities = list(self.native.peer_identities() or ())
        names = list(self.native.auth_context().get("x509_common_name", ())) if identities else []
        named = (*names, *identities)
        return named[0].decode("utf-8", "replace") if named else None


class RpcResponse(Response):
    """How a call ends, for `when`. `status` is the number of its code: 0 is OK, 16 UNAUTHENTICATED."""

    __slots__ = ("code",)

    def __init__(self, code: grpc.StatusCode, headers: RawHeaders = ()) -> None:
        super().__init__(code.value[0], headers)
        self.code = code


class Rpc(Generic[L]):
    """One call at one layer, without the calls that wait."""

    __slots__ = ("_status", "_trailing", "admission", "layer", "native", "over", "request", "request_state", "route")

    def __init__(
        self, layer: LimitLayer[L], request_state: RequestState, native: Any, name: str, route: str | None
    ) -> None:
        self.layer = layer
        self.request_state = request_state
        self.native = native
        self.request = RpcRequest(native, layer.identity, name)
        self.route = route
        """The method, where limits count for each."""
        self.admission: Admission[L] | None = None
        self._status: object = None
        self._trailing: Metadata = ()
        self.over = False
        if request_state.writer is None:
            request_state.writer = self

    def set_code(self, code: object) -> None:
        self._status = code

    def set_trailing(self, metadata: Any) -> None:
        self._trailing = tuple(metadata or ())
        self.native.set_trailing_metadata(self._trailing)

    def ends(self, code: object = None, *, failed: bool = False) -> Ending[L] | None:
        """The call ends: what there is to settle; None when there is nothing. What the handler has set counts unless
        `code` says otherwise, and an exception that sets nothing is UNKNOWN, as gRPC has it.

        Whose client has gone away keeps its charge, whatever the handler makes of it.
        """
        admission = self.admission
        if admission is None or admission.holding is None or not self._is_there():
            return None
        status = _code(self._status if code is None else code)
        if failed and status is grpc.StatusCode.OK:
            status = grpc.StatusCode.UNKNOWN
        return admission, RpcResponse(status, _text_headers(self._set()))

    def is_over(self) -> bool:
        """Whether it was said before that the call ends: from now on it was."""
        over, self.over = self.over, True
        return over

    def call(self) -> None:
        """Add what all layers have decided to the trailing metadata, if this is the layer that does."""
        if self.request_state.writer is not self:
            return
        headers = self.request_state.headers(self.layer.style, self.layer.limiter.clock.ticks())
        if headers:
            ours = {name.decode("ascii"): value.decode("ascii") for name, value in headers}
            others = [entry for entry in self._set() if entry[0] not in ours]
            self.native.set_trailing_metadata((*others, *ours.items()))

    def _is_there(self) -> bool:
        """Whether the client still is, as far as can be known. On an event loop a handler is cancelled when it is not,
        but a plain function there never hears of it."""
        is_active = getattr(self.native, "is_active", None)
        return is_active is None or is_active()

    def _set(self) -> Metadata:
        """The trailing metadata that the handler, or an interceptor around this one, has set so far."""
        try:
            return tuple(self.native.trailing_metadata() or ())
        except (AttributeError, NotImplementedError):  # contexts that do not tell: of other interceptors, and gRPC's
            return self._trailing  # own for plain functions on an event loop's server


class Context:
    """The context of a handler: the server's own, but for what the layer must know of."""

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
    """The address in a peer as gRPC names it; None for one that came by a Unix socket.

    >>> peer_address("ipv4:192.0.2.7:4711"), peer_address("ipv6:%5B2001:db8::1%5D:4711"), peer_address("unix:")
    ('192.0.2.7', '2001:db8::1', None)
    """
    scheme, _, rest = peer.partition(":")
    if scheme not in ("ipv4", "ipv6"):
        return None
    host, _, port = unquote(rest).rpartition(":")
    return host.strip("[]") if port.isdigit() else unquote(rest).strip("[]")


def shaped_denial(shaped: Any, decision: Decision) -> DenialResponse:
    """How a call is denied, by what `on_denied` has returned."""
    if shaped is None:
        return grpc.StatusCode.RESOURCE_EXHAUSTED, exceeded(decision)["detail"], ()
    if isinstance(shaped, grpc.Status):
        return shaped.code, shaped.details, tuple(shaped.trailing_metadata or ())
    if isinstance(shaped, tuple) and len(shaped) == 2 and isinstance(shaped[0], grpc.StatusCode):
        return shaped[0], str(shaped[1]), ()
    raise TypeError(
        "on_denied must return None, a grpc.Status, or a code and a text such as "
        f"(grpc.StatusCode.UNAVAILABLE, 'come back later'), not {shaped!r}"
    )


def _text_headers(metadata: Any) -> RawHeaders:
    return [
        (name.encode("latin-1"), value.encode("latin-1", "replace"))
        for name, value in metadata or ()
        if isinstance(value, str)
    ]


def _code(status: object) -> grpc.StatusCode:
    """A code as gRPC takes it from a handler: one of its own, its number, or none for OK."""
    if status is None:
        return grpc.StatusCode.OK
    if isinstance(status, grpc.StatusCode):
        return status
    return _CODES.get(status, grpc.StatusCode.UNKNOWN) if isinstance(status, int) else grpc.StatusCode.UNKNOWN
