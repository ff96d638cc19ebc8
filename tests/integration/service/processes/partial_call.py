"""A gRPC call whose last byte is held back, frame by frame: no client library sends that slowly."""

from __future__ import annotations

import socket
from collections.abc import Iterator
from types import TracebackType

from hpack import Decoder, Encoder

from crestgate.protobuf.messages import CheckRequest, CheckResponse
from crestgate.service.grpc.transport import frames
from crestgate.service.grpc.transport.frames import frame
from integration.service.service_process import TIMEOUT, Service

__all__ = ["PartialCall"]

PATH = "/crestgate.v1.RateLimiter/CheckRateLimit"
STREAM = 1
PING_DATA = b"half way"


class PartialCall:
    """An unfinished check of a key. The reply to a ping sent after it shows that the call is in progress."""

    def __init__(self, service: Service, key: str) -> None:
        message = CheckRequest(key=key).SerializeToString()
        data = b"\0" + len(message).to_bytes(4, "big") + message
        head = {":method": "POST", ":scheme": "http", ":path": PATH, ":authority": "x", "te": "trailers"}
        host, _, port = service.rpc.rpartition(":")
        self._rest = data[-1:]
        self._decoder = Decoder()
        self._connection = socket.create_connection((host, int(port)), timeout=TIMEOUT)
        self._frames = self._read()
        self._connection.sendall(
            frames.PREFACE
            + frames.settings({})
            + frame(
                frames.HEADERS,
                frames.END_HEADERS,
                STREAM,
                Encoder().encode([*head.items(), ("content-type", "application/grpc")]),
            )
            + frame(frames.DATA, 0, STREAM, data[:-1])
            + frame(frames.PING, 0, 0, PING_DATA)
        )
        while self._next(frames.PING) != PING_DATA:
            pass

    def await_goaway(self) -> None:
        """Wait for the GOAWAY frame."""
        assert self._next(frames.GOAWAY)

    def finish(self) -> tuple[dict[str, str], CheckResponse]:
        """Send the last byte; return the trailers and the response."""
        self._connection.sendall(frame(frames.DATA, frames.END_STREAM, STREAM, self._rest))
        self._decoder.decode(self._next(frames.HEADERS))
        response = CheckResponse.FromString(self._next(frames.DATA)[5:])
        trailers = self._decoder.decode(self._next(frames.HEADERS))
        return {str(name): str(value) for name, value in trailers}, response

    def closed_without_response(self) -> bool:
        """Wait until the connection is closed: whether no response came before."""
        try:
            return not [kind for kind, _ in self._frames if kind in (frames.HEADERS, frames.DATA)]
        except ConnectionResetError:
            return True

    def _next(self, frame_type: int) -> bytes:
        for kind, payload in self._frames:
            if kind == frame_type:
                return payload
        raise AssertionError(f"the connection was closed before a frame of type {frame_type}")

    def _read(self) -> Iterator[tuple[int, bytes]]:
        with self._connection.makefile("rb") as stream:
            while head := stream.read(frames.FRAME_HEADER_BYTES):
                yield head[3], stream.read(int.from_bytes(head[:3], "big"))

    def __enter__(self) -> PartialCall:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._frames.close()  # type: ignore[attr-defined]  # a generator
        self._connection.close()
