"""The contenders: how each service is started, what it is asked, and what a right answer is."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from benchmarks.rpc.messages import PLENTY, SHOULD, framed, request

__all__ = ["ENTRIES", "KEYS", "RATELIMIT_ENVIRONMENT", "Entry", "gubernator_environment", "is_admitted", "requests_of"]

KEYS = (1, 10_000)
"""How many users there are."""
GUBERNATOR_METHOD = "/pb.gubernator.V1/GetRateLimits"
HOUR_MS = 3_600_000
BOUND = ("HOST", "GRPC_HOST", "DEBUG_HOST")

RATELIMIT_ENVIRONMENT = dict.fromkeys(BOUND, "127.0.0.1") | {
    "USE_STATSD": "false",
    "DISABLE_STATS": "true",
    "RUNTIME_SUBDIRECTORY": "ratelimit",
    "RUNTIME_WATCH_ROOT": "false",
    "REDIS_SOCKET_TYPE": "tcp",
    "LOG_LEVEL": "ERROR",
}


def gubernator_environment(grpc: int, http: int, members: int) -> dict[str, str]:
    """A node without others."""
    return {
        "GUBER_GRPC_ADDRESS": f"127.0.0.1:{grpc}",
        "GUBER_HTTP_ADDRESS": f"127.0.0.1:{http}",
        "GUBER_ADVERTISE_ADDRESS": f"127.0.0.1:{grpc}",
        "GUBER_PEER_DISCOVERY_TYPE": "member-list",
        "GUBER_MEMBERLIST_ADDRESS": f"127.0.0.1:{members}",
        "GUBER_MEMBERLIST_BIND_ADDRESS": f"127.0.0.1:{members}",
        "GUBER_MEMBERLIST_ADVERTISE_ADDRESS": f"127.0.0.1:{members}",
        "GUBER_MEMBERLIST_KNOWN_NODES": f"127.0.0.1:{members}",
        "GUBER_LOG_LEVEL": "error",
    }


@dataclass(frozen=True)
class Entry:
    """One service, where it counts, and the form of its calls."""

    label: str
    served: str
    """crestgate, ratelimit or gubernator."""
    store: str
    """memory, shared or redis."""
    method: str = SHOULD
    pipelines: bool = False
    """For ratelimit: whether commands to Redis wait a little for others."""

    @property
    def name(self) -> str:
        """Of its folder."""
        return f"{self.served}-{self.store}" + ("-pipelines" if self.pipelines else "")


ENTRIES = (
    Entry("Crestgate, Redis", "crestgate", "redis"),
    Entry("envoyproxy/ratelimit, Redis", "ratelimit", "redis"),
    Entry("envoyproxy/ratelimit, Redis, pipelines", "ratelimit", "redis", pipelines=True),
    Entry("Crestgate, memory", "crestgate", "memory"),
    Entry("Crestgate, shared memory", "crestgate", "shared"),
    Entry("gubernator, memory", "gubernator", "memory", GUBERNATOR_METHOD),
)


def requests_of(entry: Entry, keys: int) -> list[bytes]:
    make: Callable[[int], bytes] = _gubernator_request if entry.served == "gubernator" else _envoy_request
    return [framed(make(user)) for user in range(keys)]


def is_admitted(entry: Entry, message: bytes) -> bool:
    """Whether a response says that the request was admitted."""
    if entry.served == "gubernator":
        return _gubernator_admits(message)
    from crestgate.protobuf.messages import RateLimitResponse

    return bool(RateLimitResponse.FromString(message).overall_code == 1)


def _envoy_request(user: int) -> bytes:
    return request("one", user)


def _gubernator_request(user: int) -> bytes:
    """GetRateLimitsReq with one RateLimitReq: name, unique_key, hits, limit and duration; its algorithm is a bucket."""
    limit = _text(1, "benchmark") + _text(2, f"{user:04}") + _number(3, 1) + _number(4, PLENTY) + _number(5, HOUR_MS)
    return _bytes(1, limit)


def _gubernator_admits(message: bytes) -> bool:
    """GetRateLimitsResp has a RateLimitResp in field 1, which begins with a status other than 0, or with its limit."""
    return message[:1] == b"\x0a" and message[2:3] == b"\x10"


def _text(field: int, value: str) -> bytes:
    return _bytes(field, value.encode())


def _bytes(field: int, value: bytes) -> bytes:
    return _varint(field << 3 | 2) + _varint(len(value)) + value


def _number(field: int, value: int) -> bytes:
    return _varint(field << 3) + _varint(value)


def _varint(value: int) -> bytes:
    data = bytearray()
    while value > 0x7F:
        data.append(value & 0x7F | 0x80)
        value >>= 7
    data.append(value)
    return bytes(data)
