"""A socket to a server within a deadline, however many addresses its name has.

The standard library (and drivers that use it) would give each address the whole time; here each has its share.
"""

from __future__ import annotations

import socket
import time

__all__ = ["reached"]


def reached(host: str, port: int, deadline: float) -> socket.socket:
    """A connected socket to the first address that answers, its timeout still set; OSError when none does."""
    problem: OSError = OSError("the name has no address")
    found = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)
    for number, (family, kind, protocol, _, place) in enumerate(found):
        share = (deadline - time.monotonic()) / (len(found) - number)
        try:
            sock = socket.socket(family, kind, protocol)
        except OSError as error:  # a family that this machine does not speak
            problem = error
            continue
        try:
            sock.settimeout(max(share, 0.001))
            sock.connect(place)
            sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            sock.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
        except OSError as error:
            sock.close()
            problem = error
        else:
            return sock
    raise problem
