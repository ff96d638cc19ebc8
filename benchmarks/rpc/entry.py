"""The contenders: bare echoes on every available gRPC library, and the service; and how they are called."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from benchmarks.rpc.messages import CHECK, DOMAIN, PLENTY, SHOULD
from benchmarks.service.entry import SETTINGS

__all__ = [
    "BARE",
    "CONTESTS",
    "GRPCLIB",
    "LIMITS_FILE",
    "ONE",
    "OURS",
    "PYVOY",
    "SERVICES",
    "THREADS",
    "Contest",
    "Entry",
    "limits",
]

LIMITS_FILE = "limits.yaml"
LIMIT = {"unit": "hour", "requests_per_unit": PLENTY}
SERVICES: dict[str, dict[str, Any]] = {
    name: {**SETTINGS, **more, "envoy": {"config": LIMITS_FILE}}
    for name, more in {"memory": {"store": "memory://"}, "shared": {}}.items()
}
"""The service, by where it counts: in one process's own memory, or in shared memory, as it does by default."""


@dataclass(frozen=True)
class Entry:
    """A kind of request that is sent to a server repeatedly."""

    label: str
    served: str
    """An echo (see echoes.py), "pyvoy", or one of the services."""
    form: str = "one"
    """Of what is sent: see messages.py."""
    path: str = SHOULD

    @property
    def is_echo(self) -> bool:
        return self.served not in SERVICES


BARE = (
    Entry("grpcio, asyncio", "grpc-asyncio"),
    Entry("grpcio, asyncio on uvloop", "grpc-uvloop"),
)
"""What the service is to be faster than: whichever of them is faster."""
OURS = Entry("Crestgate's listener", "ours")
THREADS = Entry("grpcio, threads", "grpc-threads")
PYVOY = Entry("pyvoy", "pyvoy")
GRPCLIB = Entry("grpclib on uvloop", "grpclib")
ECHOES = (*BARE, THREADS, GRPCLIB, PYVOY, OURS)
ONE = (
    Entry("ShouldRateLimit, memory", "memory"),
    Entry("ShouldRateLimit, shared memory", "shared"),
)
MORE = (
    Entry("two descriptors, memory", "memory", "two"),
    Entry("two descriptors, shared memory", "shared", "two"),
    Entry("CheckRateLimit, memory", "memory", "check", CHECK),
    Entry("CheckRateLimit, shared memory", "shared", "check", CHECK),
)


@dataclass(frozen=True)
class Contest:
    """All contenders, with a number of connections and of concurrent calls on each."""

    connections: int
    calls: int
    entries: tuple[Entry, ...]


CONTESTS = (
    Contest(4, 16, (*ECHOES, *ONE, *MORE)),
    Contest(64, 1, (*BARE, PYVOY, OURS, *ONE)),
)
"""As proxies ask, which have a connection for each of their threads and many calls on it; and the other extreme."""


def limits() -> dict[str, Any]:
    """The limits of the service in the format of envoyproxy/ratelimit: each user, and each caller of a path."""
    nested = [{"key": "caller", "rate_limit": LIMIT}]
    descriptors = [{"key": "user", "rate_limit": LIMIT}, {"key": "path", "value": "/orders", "descriptors": nested}]
    return {"domain": DOMAIN, "descriptors": descriptors}
