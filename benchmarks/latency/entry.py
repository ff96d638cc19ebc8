"""The servers, how they are asked, and at which rates."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from benchmarks.rpc.entry import LIMITS_FILE
from benchmarks.rpc.messages import SHOULD, VALUES, framed, request
from benchmarks.service.entry import CHECK, SETTINGS, bodies

__all__ = ["ENTRIES", "PROTOCOLS", "SHARES", "STORES", "Entry", "requests_of", "settings"]

SHARES = (0.1, 0.5, 0.8)
"""Of the rate that a server answers without a pause."""
STORES = {"memory": "memory", "shared": "shared memory", "redis": "Redis", "mariadb": "MariaDB"}
PROTOCOLS = {"http": "HTTP", "grpc": "gRPC"}
PATHS = {"http": CHECK, "grpc": SHOULD}


@dataclass(frozen=True)
class Entry:
    """A protocol, and where the service counts."""

    protocol: str
    store: str

    @property
    def label(self) -> str:
        return f"{PROTOCOLS[self.protocol]}, {STORES[self.store]}"

    @property
    def path(self) -> str:
        return PATHS[self.protocol]

    @property
    def connections(self) -> int:
        """Clients of HTTP have a request on each; proxies have a connection for each thread, and many calls on it."""
        if self.protocol == "grpc":
            return 4
        return 128 if self.store == "mariadb" else 32

    @property
    def in_flight(self) -> int:
        """Requests under way on all of them."""
        return 64 if self.protocol == "grpc" else self.connections


ENTRIES = (
    *(Entry(protocol, store) for protocol in PROTOCOLS for store in ("memory", "shared", "redis")),
    Entry("http", "mariadb"),
)


def settings(store_url: str) -> dict[str, Any]:
    """Of the service that counts there; without a URL in shared memory, as it does by default."""
    return {**SETTINGS, **({"store": store_url} if store_url else {}), "envoy": {"config": LIMITS_FILE}}


def requests_of(protocol: str) -> list[bytes]:
    """What is sent in rotation: a check of each user."""
    if protocol == "http":
        return [body.encode() for body in bodies("rule")]
    return [framed(request("one", user)) for user in range(VALUES)]
