"""The sockets that all workers accept from: one for HTTP and one for gRPC.

Both are made before anything else is: a first key that was made and then not shown, because an address is taken, would
be lost.
"""

from __future__ import annotations

import os
import socket
from typing import NamedTuple

from headgate.config.settings import Address, Server
from headgate.errors import ConfigError

__all__ = ["Listening", "address_of", "listen"]

BACKLOG = 2048
RECEIVE_BUFFER = 64 * 1024
"""Bytes that the system receives for one HTTP connection before they are read, and so about what one read yields.
Otherwise it is up to some megabytes, and hundreds of connections with large bodies hold up everybody."""


class Listening(NamedTuple):
    """Two sockets, which reach another process as they are."""

    http: socket.socket
    grpc: socket.socket

    def close(self) -> None:
        for one in self:
            one.close()


def listen(server: Server) -> Listening:
    """Both sockets. ConfigError says which address cannot be had, and why."""
    http = _listen(server.http, "http")
    http.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, RECEIVE_BUFFER)  # accepted connections inherit it
    try:
        return Listening(http, _listen(server.grpc, "grpc"))
    except BaseException:
        http.close()
        raise


def address_of(listening: socket.socket) -> Address:
    """Where it really listens: port 0 has become one that was free."""
    host, port = listening.getsockname()[:2]
    return Address(host, port)


def _listen(address: Address, name: str) -> socket.socket:
    try:
        (family, *_), *_ = socket.getaddrinfo(address.host, address.port, type=socket.SOCK_STREAM)
        return socket.create_server((address.host, address.port), family=family, backlog=BACKLOG)
    except OSError as error:
        number = error.errno or 0  # that of a name which nobody knows is below zero
        why = os.strerror(number) if number > 0 else error.strerror
        raise ConfigError(
            f"server.{name}: cannot listen on {address}: {why}; "
            f"--{name} HOST:PORT or HEADGATE_SERVER__{name.upper()} names another"
        ) from error
