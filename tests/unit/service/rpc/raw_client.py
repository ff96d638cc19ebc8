"""A client that sends whatever it is told to, also what no proper client sends."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from typing import NamedTuple
from urllib.parse import unquote

from hpack import Decoder, Encoder

from headgate.service.rpc import frames
from headgate.service.rpc.frames import frame
from unit.service.rpc.house import PATIENCE

__all__ = ["HELLO", "Answer", "Frame", "Raw", "message"]

HELLO = frames.PREFACE + frames.settings({})
END = frames.END_HEADERS | frames.END_STREAM


def message(data: bytes) -> bytes:
    """As gRPC writes it."""
    return len(data).to_bytes(5, "big") + data


class Frame(NamedTuple):
    kind: int
    flags: int
    stream: int
    payload: bytes

    @property
    def code(self) -> int:
        """Of GOAWAY and RST_STREAM."""
        return frames.number(self.payload, 4 if self.kind == frames.GOAWAY else 0)


class Answer(NamedTuple):
    """A call's: `status` is gRPC's, or HTTP's with a minus, or None when the stream was reset with `code`."""

    status: int | None
    data: bytes
    said: dict[bytes, bytes]
    code: int | None = None

    @property
    def told(self) -> str:
        return unquote(self.said[b"grpc-message"].decode())


class Raw:
    """One connection, and what has come on it."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.encoder = Encoder()
        self.came: list[Frame] = []
        self._reader = reader
        self._writer = writer
        self._next = 1

    @classmethod
    async def open(cls, port: int, hello: bytes = HELLO) -> Raw:
        raw = cls(*await asyncio.open_connection("127.0.0.1", port))
        raw.send(hello)
        return raw

    def send(self, *data: bytes) -> None:
        self._writer.write(b"".join(data))

    def fields(self, path: bytes, more: Sequence[tuple[bytes, bytes]] = ()) -> list[tuple[bytes, bytes]]:
        fields = [(b":method", b"POST"), (b":scheme", b"http"), (b":path", path), (b":authority", b"here")]
        return [*fields, (b"content-type", b"application/grpc"), (b"te", b"trailers"), *more]

    def head(
        self, path: bytes, more: Sequence[tuple[bytes, bytes]] = (), flags: int = frames.END_HEADERS
    ) -> tuple[int, bytes]:
        """The headers of a new call, and its number."""
        number, self._next = self._next, self._next + 2
        return number, frame(frames.HEADERS, flags, number, self.encoder.encode(self.fields(path, more)))

    def call(self, path: bytes, data: bytes = b"", more: Sequence[tuple[bytes, bytes]] = ()) -> int:
        """Ask for something, whole."""
        number, head = self.head(path, more)
        body = message(data)
        pieces = [body[at : at + 16_384] for at in range(0, len(body), 16_384)]
        self.send(head, *[frame(frames.DATA, 0, number, piece) for piece in pieces[:-1]])
        self.send(frame(frames.DATA, frames.END_STREAM, number, pieces[-1]))
        return number

    async def frame(self) -> Frame | None:
        """The next that comes; None at the end."""
        async with asyncio.timeout(PATIENCE):
            try:
                head = await self._reader.readexactly(frames.HEAD_BYTES)
                told, flags, stream = frames.HEAD.unpack(head)
                payload = await self._reader.readexactly(told >> 8)
            except (asyncio.IncompleteReadError, ConnectionError):
                return None
        self.came.append(Frame(told & 255, flags, stream, payload))
        return self.came[-1]

    async def next(self, *kinds: int) -> Frame:
        """The next frame of a kind."""
        while found := await self.frame():
            if found.kind in kinds:
                return found
        raise AssertionError(f"no frame of kinds {kinds} in {self.came[-5:]}")

    async def pong(self) -> list[Frame]:
        """All that has come of calls up to an answer to a ping: what was sent before has been read."""
        before = len(self.came)
        self.send(frame(frames.PING, 0, 0, b"are you?"))
        while (await self.next(frames.PING)).payload != b"are you?":
            pass
        return [came for came in self.came[before:] if came.stream]

    async def answer(self, number: int) -> Answer:
        """How a call ends; frames of other calls are left where they are."""
        at = 0
        while True:
            for came in self.came[at:]:
                at += 1
                ends = came.kind == frames.RST_STREAM or came.flags & frames.END_STREAM
                if came.stream == number and came.kind in (frames.HEADERS, frames.DATA, frames.RST_STREAM) and ends:
                    return self._read(number, self.came[:at])
            if await self.frame() is None:
                raise AssertionError(f"the connection ended before the answer: {self.came[-5:]}")

    async def end(self) -> Frame | None:
        """How the connection ends: its GOAWAY, if there is one."""
        while await self.frame():
            pass
        farewells = [came for came in self.came if came.kind == frames.GOAWAY]
        return farewells[-1] if farewells else None

    def close(self) -> None:
        self._writer.close()

    def cut(self) -> None:
        """Go without a word."""
        self._writer.transport.abort()

    def _read(self, number: int, came: Sequence[Frame]) -> Answer:
        said: dict[bytes, bytes] = {}
        data = b""
        for kind, _, stream, payload in came:
            if stream == number and kind == frames.HEADERS:
                said |= dict(Decoder().decode(payload, raw=True))
            elif stream == number and kind == frames.DATA:
                data += payload
        last = came[-1]
        if last.kind == frames.RST_STREAM:
            return Answer(None, data, said, last.code)
        if b"grpc-status" not in said:
            return Answer(-int(said[b":status"]), data, said)
        return Answer(int(said[b"grpc-status"]), data, said)
