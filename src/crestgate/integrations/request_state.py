# mypyc: compile
"""One request on its way through the layers: what it was counted on so far, and what was decided.

It stands with the request (in the ASGI scope, the WSGI environment…), so that two layers that would count it on the
same counter count it once, and that the outermost layer can say in the headers what all of them have decided.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from crestgate.core.decision import Decision, combine
from crestgate.http.header_options import HeaderStyle
from crestgate.http.headers import rate_limit_headers

__all__ = ["NAME", "RequestState"]

NAME = "crestgate.request_state"
"""What it is called where it stands."""


class RequestState:
    """What the layers know of one request."""

    __slots__ = ("around", "counted", "decisions", "open", "writer")

    def __init__(self) -> None:
        self.counted: set[tuple[int, str, str]] = set()
        self.decisions: list[Decision] = []
        self.writer: object = None
        """The layer that writes the headers, on the response as it leaves: the outermost that can."""
        self.around: object = None
        """The innermost middleware: its limiter is that of the routes inside it, unless they have one of their own."""
        self.open: Sequence[Any] = ()
        """The admissions that the writer is to settle, as soon as it knows the response."""

    def count(self, engine: int, key: str, name: str) -> bool:
        """Whether this request is to be counted on a counter: it is once."""
        counter = (engine, key, name)
        if counter in self.counted:
            return False
        self.counted.add(counter)
        return True

    def add_decision(self, decision: Decision) -> None:
        """A decision that no layer has made: the application's own, which it raised. The headers tell of it once."""
        if not any(known is decision for known in self.decisions):
            self.decisions.append(decision)

    def decision(self) -> Decision | None:
        """What all layers together say; None when none had anything to say."""
        decisions = self.decisions
        if len(decisions) <= 1:
            return decisions[0] if decisions else None
        parts = tuple([part for decision in decisions for part in decision.parts])
        return combine(parts, all(decision.allowed for decision in decisions)) if parts else None

    def headers(self, style: HeaderStyle, now_us: int) -> list[tuple[bytes, bytes]]:
        """The headers of the response; names are in small letters."""
        decisions = self.decisions
        decision = decisions[0] if len(decisions) == 1 else self.decision()
        return [] if decision is None else rate_limit_headers(decision, style, now_us)
