# mypyc: compile
"""State of one request that all layers share: its counters and its decisions.

It is stored with the request (in the ASGI scope, the WSGI environment…). So two layers with the same counter count a
request once, and the outermost layer can write headers for the decisions of all layers.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from crestgate.core.decision import Decision, combine
from crestgate.http.header_options import HeaderStyle
from crestgate.http.headers import rate_limit_headers

__all__ = ["NAME", "RequestState", "request_state_in"]

NAME = "crestgate.request_state"
"""Its key in the ASGI scope or WSGI environment."""


class RequestState:
    """What the layers share about one request."""

    __slots__ = ("counted", "decisions", "held", "middleware_layer", "unsettled", "writer")

    def __init__(self) -> None:
        self.counted: set[tuple[int, str, str]] = set()
        """The counters on which this request was counted."""
        self.decisions: list[Decision] = []
        self.writer: object = None
        """The layer that writes the headers to the response: the outermost that can."""
        self.middleware_layer: Any = None
        """The layer of the innermost ASGI middleware. Routes inside it use its limiter by default."""
        self.unsettled: Sequence[Any] = ()
        """The admissions that the writer settles when the response is known."""
        self.held: Sequence[Any] = ()
        """The admissions whose slots of in-flight limits the writer releases when the response has ended."""

    def mark_counted(self, engine: int, key: str, name: str) -> bool:
        """Mark the request as counted on a counter; False if it already was."""
        counter = (engine, key, name)
        if counter in self.counted:
            return False
        self.counted.add(counter)
        return True

    def add_decision(self, decision: Decision) -> None:
        """Add the decision of a RateLimitExceeded that the application raised, once."""
        if not any(known is decision for known in self.decisions):
            self.decisions.append(decision)

    def decision(self) -> Decision | None:
        """The combined decision of all layers; None when there is none."""
        decisions = self.decisions
        if len(decisions) <= 1:
            return decisions[0] if decisions else None
        parts = tuple([part for decision in decisions for part in decision.parts])
        return combine(parts, all(decision.allowed for decision in decisions)) if parts else None

    def headers(self, style: HeaderStyle, now_us: int) -> list[tuple[bytes, bytes]]:
        """The rate limit headers of the response, with names in lower case."""
        decisions = self.decisions
        decision = decisions[0] if len(decisions) == 1 else self.decision()
        return [] if decision is None else rate_limit_headers(decision, style, now_us)


def request_state_in(container: Any) -> RequestState:
    """The state stored in an ASGI scope or WSGI environment, created if it is missing."""
    request_state = container.get(NAME)
    if not isinstance(request_state, RequestState):
        request_state = container[NAME] = RequestState()
    return request_state
