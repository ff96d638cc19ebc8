"""Attacks on the gRPC listener: raw connections that send frames as fast as they can, and a bystander over gRPC."""

from __future__ import annotations

import select
import socket
import sys
import time
from collections.abc import Callable

from crestgate.service.grpc.transport import frames
from crestgate.service.grpc.transport.frames import frame
from crestgate.service.grpc.transport.headers import encode_headers
from integration.service.service_process import Service
from security.bystander import Bystander

__all__ = ["CHECK", "HELLO", "FloodKind", "RpcBystander", "call", "connect", "flood", "floods", "goaway_code"]

HELLO = frames.PREFACE + frames.settings({}) + frames.window_update(0, 2**30)
PATIENCE = 20.0
CALLS = 5_000
"""Calls of one connection before another one is opened: their numbers must not repeat."""
END_HEADERS, END_STREAM = frames.END_HEADERS, frames.END_STREAM


def head(path: bytes, *more: tuple[bytes, bytes]) -> bytes:
    return encode_headers(
        [
            (b":method", b"POST"),
            (b":scheme", b"http"),
            (b":path", path),
            (b"content-type", b"application/grpc"),
            *more,
        ]
    )


CHECK = head(b"/crestgate.v1.RateLimiter/CheckRateLimit")
_MESSAGE = b"\x32\x08attacker"  # CheckRequest.key
_BODY = len(_MESSAGE).to_bytes(5, "big") + _MESSAGE


def call(number: int, headers: bytes = CHECK) -> bytes:
    """A complete, valid check."""
    return frame(frames.HEADERS, END_HEADERS, number, headers) + frame(frames.DATA, END_STREAM, number, _BODY)


class FloodKind:
    """`first` is sent once on a connection, then `rest` repeatedly; if `once`, on a new connection each time, when
    the service has read the previous one."""

    def __init__(self, first: bytes, rest: bytes, once: bool = False) -> None:
        self.first = first
        self.rest = rest
        self.once = once


def _calls(make: Callable[[int], bytes]) -> FloodKind:
    return FloodKind(HELLO, b"".join([make(number) for number in range(1, 2 * CALLS, 2)]), once=True)


def _continued(number: int) -> bytes:
    pieces = frame(frames.CONTINUATION, 0, number, b"") * 60
    last = frame(frames.CONTINUATION, END_HEADERS, number, b"")
    first = frame(frames.HEADERS, 0, number, CHECK)
    return first + pieces + last + frame(frames.DATA, END_STREAM, number, _BODY)


def _repeated(data: bytes) -> bytes:
    return data * (262_144 // len(data))


def floods() -> dict[str, FloodKind]:
    """Every kind of flood by its name."""
    open_stream = HELLO + frame(frames.HEADERS, END_HEADERS, 1, CHECK)
    refused = HELLO + frame(frames.HEADERS, END_HEADERS, 1, head(b"/no/Method"))
    return {
        "priority": FloodKind(HELLO, _repeated(frame(frames.PRIORITY, 0, 77, b"12345"))),
        "empty_data": FloodKind(open_stream, _repeated(frame(frames.DATA, 0, 1, b""))),
        "padding": FloodKind(open_stream, _repeated(frame(frames.DATA, frames.PADDED, 1, b"\x05" + bytes(5)))),
        "data_of_a_refused_call": FloodKind(refused, _repeated(frame(frames.DATA, 0, 1, b""))),
        "unknown": FloodKind(HELLO, _repeated(frame(99, 0, 0, b""))),
        "ping": FloodKind(HELLO, _repeated(frame(frames.PING, 0, 0, b"12345678"))),
        "ping_acks": FloodKind(HELLO, _repeated(frame(frames.PING, frames.ACK, 0, b"12345678"))),
        "settings": FloodKind(HELLO, _repeated(frames.settings({frames.INITIAL_WINDOW_SIZE: 5}))),
        "settings_acks": FloodKind(HELLO, _repeated(frame(frames.SETTINGS, frames.ACK, 0, b""))),
        "window_updates": FloodKind(HELLO, _repeated(frames.window_update(0, 1))),
        "goaway": FloodKind(HELLO, _repeated(frame(frames.GOAWAY, 0, 0, bytes(8)))),
        "continuation": _calls(_continued),
        "rapid_resets": _calls(lambda n: call(n) + frames.rst_stream(n, frames.CANCEL)),
        "resets_of_unfinished_calls": _calls(
            lambda n: frame(frames.HEADERS, END_HEADERS, n, CHECK) + frames.rst_stream(n, frames.CANCEL)
        ),
        "malformed_calls": _calls(lambda n: frame(frames.HEADERS, END_HEADERS | END_STREAM, n, b"\x00\x01A\x01b")),
        "wrong_method": _calls(
            lambda n: frame(frames.HEADERS, END_HEADERS | END_STREAM, n, CHECK.replace(b"\x04POST", b"\x03GET"))
        ),
        "hpack_resizes": _calls(lambda n: call(n, b"\x20\x3f\xe1\x1f" + CHECK)),
        "many_headers": _calls(lambda n: call(n, CHECK + encode_headers([(b"a%d" % n, b"b")] * 50))),
        "watches": _calls(lambda n: call(n, head(b"/grpc.health.v1.Health/Watch"))),
        "valid_calls": _calls(call),
    }


def connect(service: Service, data: bytes = HELLO) -> socket.socket:
    host, _, port = service.rpc.rpartition(":")
    connection = socket.create_connection((host, int(port)), PATIENCE)
    connection.sendall(data)
    return connection


def flood(service: Service, kind: FloodKind, seconds: float, connections: int = 1) -> tuple[int, int]:
    """Send as fast as the service reads, read its responses, and reconnect when it disconnects. Returns the bytes
    sent, and the number of disconnects."""
    attackers = [_Attacker(service, kind) for _ in range(connections)]
    end = time.monotonic() + seconds
    while time.monotonic() < end:
        sockets = [attacker.socket for attacker in attackers]
        readable, writable, _ = select.select(sockets, sockets, [], 0.05)
        for attacker in attackers:
            attacker.go_on(attacker.socket in readable, attacker.socket in writable and not attacker.done)
    for attacker in attackers:
        attacker.socket.close()
    return sum(attacker.sent for attacker in attackers), sum(attacker.hung_up for attacker in attackers)


class _Attacker:
    def __init__(self, service: Service, kind: FloodKind) -> None:
        self.sent = 0
        self.hung_up = 0
        self._service = service
        self._kind = kind
        self._open()

    def _open(self) -> None:
        self.socket = connect(self._service, self._kind.first)
        self.socket.setblocking(False)
        self.done = False
        self._at = 0

    def go_on(self, readable: bool, writable: bool) -> None:
        try:
            if readable and not self.socket.recv(1_000_000):
                raise ConnectionResetError
            if writable:
                sent = self.socket.send(memoryview(self._kind.rest)[self._at : self._at + 262_144])
                self.sent += sent
                self._at += sent
                if self._at >= len(self._kind.rest):
                    self._at = 0
                    if self._kind.once:
                        self.done = True
                        self.socket.shutdown(socket.SHUT_WR)
        except BlockingIOError:
            pass
        except OSError:
            self.hung_up += not self.done
            self.socket.close()
            self._open()


def goaway_code(connection: socket.socket) -> int | None:
    """The error code of the GOAWAY that ends a connection; None if it ends without."""
    received = b""
    try:
        while piece := connection.recv(65_536):
            received += piece
    except ConnectionResetError:
        pass
    code = None
    while len(received) >= 9:
        length, kind = int.from_bytes(received[:3], "big"), received[3]
        if kind == frames.GOAWAY:
            code = frames.read_uint32(received, 9 + 4)
        received = received[9 + length :]
    return code


class RpcBystander(Bystander):
    """Makes one check after another over gRPC; the key has `size` bytes."""

    def __init__(self, service: Service, size: int = 9, fresh: bool = False) -> None:
        super().__init__(service)
        program = [sys.executable, "-m", "security.rpc_bystander_process"]
        self._command = [*program, service.rpc, str(size), str(int(fresh)), *self._command[6:]]
