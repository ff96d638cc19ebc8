# mypyc: compile
"""Rate limit headers of a response.

    RateLimit-Policy: "per-user";q=100;w=60, "per-day";q=5000;w=86400       the limits
    RateLimit: "per-user";r=42;t=17, "per-day";r=4000;t=3600                remaining requests and reset of each
    X-RateLimit-Limit, X-RateLimit-Remaining, X-RateLimit-Reset             the same for the deciding limit
    X-RateLimit-State                                                       warning or throttled; omitted when normal
    Retry-After                                                             on a denial: seconds, rounded up

The first two are those of draft-ietf-httpapi-ratelimit-headers-11, and structured fields (RFC 9651): `q` requests per
`w` seconds, `r` remaining, and `t` seconds until a denied request would pass, or until the limit is fully reset.
`q` is the limit's count, because `q` per `w` is the sustained rate; a limit with a larger burst may have more than that
remaining. X-RateLimit-Limit is the burst if there is one: the remaining number is never higher.

A limit that is not for clients (`headers: false`) is in none of them. If it decides, Retry-After is still that of the
decision, and the X-RateLimit headers are those of the most restrictive limit that is shown.

Item names are names of limits, chosen by operators; they never identify a caller. The ids that Crestgate generates for
the rule of one policy, client or user contain that subject's key: it is removed.
"""

from __future__ import annotations

from typing import Final, NamedTuple

from crestgate.core.algorithms.algorithm import Algorithm
from crestgate.core.bounded_cache import BoundedCache
from crestgate.core.decision import NORMAL, Decision, combine
from crestgate.http.header_options import HeaderStyle

__all__ = ["HEADERS", "general_name", "header_name", "rate_limit_headers"]

HEADERS: Final = {
    "RateLimit-Policy": "The limits that applied: name, quota, window.",
    "RateLimit": "Remaining requests of each limit, and seconds until its reset.",
    "X-RateLimit-Limit": "Requests that the deciding limit allows.",
    "X-RateLimit-Remaining": "Remaining requests of the deciding limit.",
    "X-RateLimit-Reset": "Seconds until the deciding limit is fully reset, or a Unix time if so configured.",
    "X-RateLimit-State": "`warning` or `throttled`, when it is not normal.",
    "Retry-After": "Seconds until the request would pass; on a denial.",
}
"""Every header that `rate_limit_headers` writes, with its description in OpenAPI."""
MAX_INTEGER: Final = 999_999_999_999_999
"""The largest integer in a structured field."""
MAX_CACHED: Final = 4096
GENERATED_PREFIXES: Final = ("policy:", "client:", "override:")
"""Prefixes of generated rule ids; the subject's key follows. See `derived_id` in rules/compat/rule_ids.py."""


class _LimitText(NamedTuple):
    """The constant parts of one limit's headers."""

    policy: bytes
    item: bytes
    capacity: bytes


_limit_texts: dict[Algorithm, _LimitText] = BoundedCache(MAX_CACHED)


def rate_limit_headers(decision: Decision, style: HeaderStyle, now_us: int) -> list[tuple[bytes, bytes]]:  # noqa: PLR0912 - each response
    """The headers of a response, with lower-case names as in ASGI. Empty when no limit applied.

    `now_us` is Unix time in microseconds; it is only used when resets are Unix times.
    """
    parts = decision.parts
    if not parts:
        return []
    shown: Decision | None = decision
    if len(parts) == 1:
        if not parts[0].algorithm.in_headers:
            shown = None
    else:
        for part in parts:
            if not part.algorithm.in_headers:
                shown = _shown(parts)
                parts = () if shown is None else shown.parts
                break
    headers: list[tuple[bytes, bytes]] = []
    if shown is not None:
        deciding = _text_of(shown.algorithm)
        if style.ratelimit:
            if len(parts) == 1:
                headers.append((b"ratelimit-policy", deciding.policy))
                headers.append((b"ratelimit", _item(parts[0], deciding)))
            else:
                texts = [(part, _text_of(part.algorithm)) for part in parts]
                headers.append((b"ratelimit-policy", b", ".join([words.policy for _, words in texts])))
                headers.append((b"ratelimit", b", ".join([_item(part, words) for part, words in texts])))
        if style.x_ratelimit:
            from_us = now_us if style.reset == "epoch" else 0
            headers.append((b"x-ratelimit-limit", deciding.capacity))
            headers.append((b"x-ratelimit-remaining", b"%d" % shown.remaining))
            headers.append((b"x-ratelimit-reset", b"%d" % _seconds(from_us + shown.reset_us)))
            if shown.state != NORMAL:
                headers.append((b"x-ratelimit-state", shown.state.encode()))
    if style.retry_after and not decision.allowed and decision.wait_us is not None:
        headers.append((b"retry-after", b"%d" % _seconds(decision.wait_us)))
    return headers


def _shown(parts: tuple[Decision, ...]) -> Decision | None:
    """The decision without the limits that are not for clients. None if no other is left."""
    shown = tuple([part for part in parts if part.algorithm.in_headers])
    return combine(shown, all(part.allowed for part in shown)) if shown else None


def general_name(label: str) -> str:
    """The name of a limit without the subject's key, which generated names contain.

    >>> general_name("orders-per-user"), general_name("policy:user-123"), general_name("client:acme:API:/web/test")
    ('orders-per-user', 'policy', 'client:API:/web/test')
    """
    if not label.startswith(GENERATED_PREFIXES):
        return label
    kind, _, names = label.partition(":")
    _, _, rest = names.partition(":")
    return f"{kind}:{rest}" if rest else kind


def header_name(label: str) -> str:
    """The name of a limit in headers and problem documents: ASCII, and without the subject's key.

    >>> header_name("orders-per-user"), header_name("policy:user-123"), header_name("größer")
    ('orders-per-user', 'policy', 'gr%C3%B6%C3%9Fer')
    """
    label = general_name(label)
    if label.isascii() and label.isprintable():
        return label
    encoded = label.encode("utf-8", "surrogatepass")
    return "".join(chr(byte) if 0x20 <= byte < 0x7F else f"%{byte:02X}" for byte in encoded)


def _item(part: Decision, words: _LimitText) -> bytes:
    remaining = min(part.remaining, MAX_INTEGER)
    if part.allowed:
        return b"%b;r=%d;t=%d" % (words.item, remaining, _seconds(part.reset_us))
    if part.wait_us is None:  # it never passes, so there is no time to send
        return b"%b;r=%d" % (words.item, remaining)
    return b"%b;r=%d;t=%d" % (words.item, remaining, _seconds(part.wait_us))


def _text_of(algorithm: Algorithm) -> _LimitText:
    words = _limit_texts.get(algorithm)
    if words is None:
        escaped = header_name(algorithm.label).replace("\\", "\\\\").replace('"', '\\"')
        item = f'"{escaped}"'.encode("ascii")
        limit = algorithm.limit
        policy = b"%b;q=%d" % (item, min(limit.count, MAX_INTEGER))
        if limit.unit is None:  # a calendar window has no fixed length; `w` is optional
            policy += b";w=%d" % _seconds(limit.period_us)
        words = _LimitText(policy, item, b"%d" % algorithm.capacity)
        _limit_texts[algorithm] = words
    return words


def _seconds(microseconds: int) -> int:
    """Rounded up, so a client that waits this long is not early."""
    return -(-microseconds // 1_000_000)
