"""The request and response messages. All echoes use them with the same protobuf."""

from __future__ import annotations

from typing import Any

from crestgate.protobuf import messages

__all__ = ["CHECK", "DOMAIN", "PLENTY", "PREFIX_BYTES", "READY", "SHOULD", "VALUES", "framed", "read", "request"]

SHOULD = "/envoy.service.ratelimit.v3.RateLimitService/ShouldRateLimit"
CHECK = "/crestgate.v1.RateLimiter/CheckRateLimit"
DOMAIN = "benchmark"
PLENTY = 1_000_000
"""Requests an hour for each value: more than anybody can send it, so that nothing is denied."""
VALUES = 3_000
"""How many users there are, who send in turn."""
PREFIX_BYTES = 5
"""Of gRPC, before each message: whether it is compressed, and its length."""

READY: Any = messages.RateLimitResponse(
    overall_code=1,
    statuses=[
        {
            "code": 1,
            "current_limit": {"requests_per_unit": PLENTY, "unit": 3},
            "limit_remaining": PLENTY - VALUES,
            "duration_until_reset": {"seconds": 1234},
        }
    ],
    response_headers_to_add=[
        {"key": "ratelimit-policy", "value": f'"{DOMAIN}.user";q={PLENTY};w=3600'},
        {"key": "ratelimit", "value": f'"{DOMAIN}.user";r={PLENTY - VALUES};t=1234'},
        {"key": "x-ratelimit-limit", "value": f"{PLENTY}"},
        {"key": "x-ratelimit-remaining", "value": f"{PLENTY - VALUES}"},
        {"key": "x-ratelimit-reset", "value": "1234"},
    ],
)
"""What every echo answers, serialized anew for every call: such as the service answers."""

read: Any = messages.RateLimitRequest.FromString


def request(form: str, user: int) -> bytes:
    """The request of one user; those of all users have the same length."""
    if form == "check":
        message_sent = messages.CheckRequest(
            identifier=f"{user:04}", dimension=1, endpoint="/api/v1/orders", method="GET"
        )
    else:
        descriptors = [{"entries": [{"key": "user", "value": f"{user:04}"}]}]
        if form == "two":
            descriptors.append(
                {"entries": [{"key": "path", "value": "/orders"}, {"key": "caller", "value": f"{user:04}"}]}
            )
        message_sent = messages.RateLimitRequest(domain=DOMAIN, descriptors=descriptors)
    data: bytes = message_sent.SerializeToString()
    return data


def framed(message: bytes) -> bytes:
    """The gRPC frame of a message: uncompressed flag, length, and message."""
    return len(message).to_bytes(PREFIX_BYTES, "big") + message
