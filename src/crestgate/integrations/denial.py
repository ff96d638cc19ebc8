"""The response to a denied request: 429 with a JSON problem document, unless `on_denied` returns another."""

from __future__ import annotations

from dataclasses import dataclass

from crestgate.core.decision import Decision
from crestgate.http.problem import CONTENT_TYPE, encode_problem, exceeded

__all__ = ["Denial", "default_denial"]


@dataclass(frozen=True, slots=True)
class Denial:
    """A framework-independent response, which `on_denied` may return."""

    status: int = 429
    body: bytes = b""
    content_type: str = CONTENT_TYPE
    headers: tuple[tuple[str, str], ...] = ()
    """Additional headers. The rate limit headers are added separately."""

    def all_headers(self) -> list[tuple[str, str]]:
        """The content headers and the additional ones, with names in lower case."""
        content = [("content-type", self.content_type), ("content-length", str(len(self.body)))]
        return content + [(name.lower(), value) for name, value in self.headers]


def default_denial(decision: Decision) -> Denial:
    return Denial(429, encode_problem(exceeded(decision)))
