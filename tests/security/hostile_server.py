"""A server that sends any bytes a test defines, possibly byte by byte and without end."""

from __future__ import annotations

import socket
import threading
from collections.abc import Callable, Iterable
from types import TracebackType

__all__ = ["HostileServer"]

PATIENCE = 5.0

Answer = Callable[[bytes], Iterable[bytes]]
"""What to send back for what was received. The connection is closed after the last piece, unless that is b''."""


class HostileServer:
    """Accepts connections on loopback until the end of its `with` block; counts what it could send."""

    def __init__(self, answer: Answer) -> None:
        self.answer = answer
        self.sent_bytes = 0
        self.connections = 0
        self._open: list[socket.socket] = []
        self._listener = socket.create_server(("127.0.0.1", 0))
        self.port = int(self._listener.getsockname()[1])

    def __enter__(self) -> HostileServer:
        threading.Thread(target=self._accept, daemon=True).start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._listener.shutdown(socket.SHUT_RDWR)
        self._listener.close()
        for client in list(self._open):
            client.close()

    def _accept(self) -> None:
        while True:
            try:
                client, _ = self._listener.accept()
            except OSError:
                return
            self.connections += 1
            self._open.append(client)
            threading.Thread(target=self._serve, args=(client,), daemon=True).start()

    def _hang_up(self, client: socket.socket) -> None:
        """Read what the client still sends, then close. Otherwise a reset could hide the answer from it."""
        client.shutdown(socket.SHUT_WR)
        client.settimeout(PATIENCE)
        while client.recv(1024 * 1024):
            pass

    def _serve(self, client: socket.socket) -> None:
        try:
            with client:
                while received := client.recv(1024 * 1024):
                    piece = b""
                    for piece in self.answer(received):
                        client.sendall(piece)
                        self.sent_bytes += len(piece)
                    if piece:
                        self._hang_up(client)
                        return
        except OSError:
            pass  # the client has disconnected, or the test is over
        finally:
            self._open.remove(client)
