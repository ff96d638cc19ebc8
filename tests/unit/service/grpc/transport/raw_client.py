"""An HTTP/2 client that sends arbitrary frames, valid or not."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from typing import NamedTuple
from urllib.parse import unquote

from hpack import Decoder, Encoder

from crestgate.service.grpc.transport import frames
from crestgate.service.grpc.transport.frames import frame
from unit.service.grpc.transport.listener_harness import TIMEOUT

__all__ = ["CLIENT_PREFACE", "Frame", "RawClient", "RawResponse", "message"]

CLIENT_PREFACE = frames.PREFACE + frames.settings({})
END = frames.END_HEADERS | frames.END_STREAM


def message(data: bytes) -> bytes:
    """A message with the prefix of gRPC."""
    return len(data).to_bytes(5, "big") + data


class Frame(NamedTuple):
    kind: int
    flags: int
    stream: int
    payload: bytes

    @property
    def code(self) -> int:
        """Of GOAWAY and RST_STREAM."""
        return frames.read_uint32(self.payload, 4 if self.kind == frames.GOAWAY else 0)


class RawResponse(NamedTuple):
    """A response: `status` is that of gRPC, or of HTTP with a minus, or None if the stream was reset with `code`."""

    status: int | None
    data: bytes
    headers: dict[bytes, bytes]
    code: int | None = None

    @property
    def message(self) -> str:
        return unquote(self.headers[b"grpc-message"].decode())


class RawClient:
    """One connection, and the frames received on it."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.encoder = Encoder()
        self.received: list[Frame] = []
        self._reader = reader
        self._writer = writer
        self._next = 1

    @classmethod
    async def open(cls, port: int, first: bytes = CLIENT_PREFACE) -> RawClient:
        raw = cls(*await asyncio.open_connection("127.0.0.1", port))
        raw.send(first)
        return raw

    def send(self, *data: bytes) -> None:
        self._writer.write(b"".join(data))

    @staticmethod
    def fields(path: bytes, more: Sequence[tuple[bytes, bytes]] = ()) -> list[tuple[bytes, bytes]]:
        fields = [(b":method", b"POST"), (b":scheme", b"http"), (b":path", path), (b":authority", b"here")]
        return [*fields, (b"content-type", b"application/grpc"), (b"te", b"trailers"), *more]

    def headers(
        self, path: bytes, more: Sequence[tuple[bytes, bytes]] = (), flags: int = frames.END_HEADERS
    ) -> tuple[int, bytes]:
        """The stream id and the HEADERS frame of a new call."""
        number, self._next = self._next, self._next + 2
        return number, frame(frames.HEADERS, flags, number, self.encoder.encode(self.fields(path, more)))

    def call(self, path: bytes, data: bytes = b"", more: Sequence[tuple[bytes, bytes]] = ()) -> int:
        """Send a complete call."""
        number, head = self.headers(path, more)
        body = message(data)
        pieces = [body[at : at + 16_384] for at in range(0, len(body), 16_384)]
        self.send(head, *[frame(frames.DATA, 0, number, piece) for piece in pieces[:-1]])
        self.send(frame(frames.DATA, frames.END_STREAM, number, pieces[-1]))
        return number

    async def frame(self) -> Frame | None:
        """The next frame; None at the end."""
        async with asyncio.timeout(TIMEOUT):
            try:
                head = await self._reader.readexactly(frames.FRAME_HEADER_BYTES)
                length_and_kind, flags, stream = frames.FRAME_HEADER.unpack(head)
                payload = await self._reader.readexactly(length_and_kind >> 8)
            except (asyncio.IncompleteReadError, ConnectionError):
                return None
        self.received.append(Frame(length_and_kind & 255, flags, stream, payload))
        return self.received[-1]

    async def next(self, *kinds: int) -> Frame:
        """The next frame of a kind."""
        while found := await self.frame():
            if found.kind in kinds:
                return found
        raise AssertionError(f"no frame of kinds {kinds} in {self.received[-5:]}")

    async def sync(self) -> list[Frame]:
        """Wait for the acknowledgement of a ping, so the listener has read what was sent before; the frames of streams
        that were received meanwhile."""
        before = len(self.received)
        self.send(frame(frames.PING, 0, 0, b"are you?"))
        while (await self.next(frames.PING)).payload != b"are you?":
            pass
        return [item for item in self.received[before:] if item.stream]

    async def response(self, number: int) -> RawResponse:
        """Wait for the end of a call."""
        at = 0
        while True:
            for item in self.received[at:]:
                at += 1
                ends = item.kind == frames.RST_STREAM or item.flags & frames.END_STREAM
                if item.stream == number and item.kind in (frames.HEADERS, frames.DATA, frames.RST_STREAM) and ends:
                    return self._read(number, self.received[:at])
            if await self.frame() is None:
                raise AssertionError(f"the connection ended before the response: {self.received[-5:]}")

    async def end(self) -> Frame | None:
        """Wait for the end of the connection; its last GOAWAY, if there is one."""
        while await self.frame():
            pass
        goaways = [item for item in self.received if item.kind == frames.GOAWAY]
        return goaways[-1] if goaways else None

    def close(self) -> None:
        self._writer.close()

    def abort(self) -> None:
        """Close without a shutdown."""
        self._writer.transport.abort()

    def _read(self, number: int, received: Sequence[Frame]) -> RawResponse:
        headers: dict[bytes, bytes] = {}
        data = b""
        for kind, _, stream, payload in received:
            if stream == number and kind == frames.HEADERS:
                headers |= dict(Decoder().decode(payload, raw=True))
            elif stream == number and kind == frames.DATA:
                data += payload
        last = received[-1]
        if last.kind == frames.RST_STREAM:
            return RawResponse(None, data, headers, last.code)
        if b"grpc-status" not in headers:
            return RawResponse(-int(headers[b":status"]), data, headers)
        return RawResponse(int(headers[b"grpc-status"]), data, headers)
