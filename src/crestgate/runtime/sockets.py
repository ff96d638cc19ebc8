"""TCP connect with one deadline for the lookup of a name and all its addresses.

The standard library (and drivers that use it) would give each address the whole time; here each has its share.
"""

from __future__ import annotations

import socket
import time

from crestgate.runtime.name_lookup import resolve

__all__ = ["connect"]


def connect(host: str, port: int, deadline: float) -> socket.socket:
    """A socket to the first address that accepts, its timeout still set; OSError if none does."""
    problem: OSError = OSError("the name has no address")
    addresses = resolve(host, port, deadline)
    for number, (family, kind, protocol, _, address) in enumerate(addresses):
        share = (deadline - time.monotonic()) / (len(addresses) - number)
        try:
            sock = socket.socket(family, kind, protocol)
        except OSError as error:  # an address family that this machine does not support
            problem = error
            continue
        try:
            sock.settimeout(max(share, 0.001))
            sock.connect(address)
            sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            sock.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
        except OSError as error:
            sock.close()
            problem = error
        else:
            return sock
    raise problem
