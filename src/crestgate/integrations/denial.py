"""The response to a denial, as every framework gives it: 429, the headers, and the problem as JSON."""

from __future__ import annotations

from dataclasses import dataclass

from crestgate.core.decision import Decision
from crestgate.http.problem import CONTENT_TYPE, encode_problem, exceeded

__all__ = ["Denial", "default_denial"]

RawHeaders = list[tuple[bytes, bytes]]


@dataclass(frozen=True, slots=True)
class Denial:
    """A response, in no framework's words: what `on_denied` may return to shape a denial."""

    status: int = 429
    body: bytes = b""
    content_type: str = CONTENT_TYPE
    headers: tuple[tuple[str, str], ...] = ()
    """Further headers: those that tell of the limits are added."""

    def raw_headers(self, limits: RawHeaders) -> RawHeaders:
        """All headers, with names in small letters, as ASGI has them."""
        own = [(name.lower().encode("latin-1"), value.encode("latin-1")) for name, value in self.headers]
        content = [(b"content-type", self.content_type.encode("latin-1")), (b"content-length", b"%d" % len(self.body))]
        return [*content, *limits, *own]


def default_denial(decision: Decision) -> Denial:
    """The usual one."""
    return Denial(429, encode_problem(exceeded(decision)))
