"""The answer to "may this request pass?": allowed or not, and the numbers behind it.

Decisions are made by the million, so the common one (a single limit, no pressure, nothing out of the ordinary)
holds five values; what only some have (another reason, a delay, a state of pressure, parts) sits in a `Detail`.
Seconds are computed when asked for.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final, final

from headgate.core.words import i64

if TYPE_CHECKING:
    from headgate.core.algorithms.algorithm import Algorithm
    from headgate.core.limit import Limit

__all__ = ["Decision", "Detail", "combine"]

NORMAL: Final = "normal"


@final
class Detail:
    """What an out-of-the-ordinary decision adds."""

    __slots__ = ("delay", "parts", "reason", "shadows", "state")

    def __init__(
        self,
        reason: str | None,
        delay: float | None,
        state: str,
        parts: tuple[Decision, ...] | None,
        shadows: tuple[Decision, ...] = (),
    ) -> None:
        self.reason = reason
        self.delay = delay
        self.state = state
        self.parts = parts
        self.shadows = shadows


_PRESSED: Final = {state: Detail(None, None, state, None) for state in ("warning", "throttled")}


@final
class Decision:
    """Allowed or denied, by which limit, what remains and when to come back. Immutable; true when allowed."""

    __slots__ = ("_algorithm", "_allowed", "_detail", "_remaining", "_reset", "_wait")

    def __init__(
        self,
        algorithm: Algorithm,
        allowed: bool,
        remaining: i64,
        wait: int | None,
        reset: i64,
        detail: Detail | None,
    ) -> None:
        self._algorithm = algorithm
        self._allowed = allowed
        self._remaining = remaining
        self._wait = wait  # as in a Step; None when this cost can never pass
        self._reset = reset
        self._detail = detail

    @property
    def allowed(self) -> bool:
        """Whether the request may pass."""
        return self._allowed

    @property
    def limit(self) -> int:
        """The capacity of the limit that decided: its burst, or a window's count."""
        return self._algorithm.capacity

    @property
    def remaining(self) -> int:
        """How many more requests of cost 1 would be admitted now."""
        return self._remaining

    @property
    def retry_after(self) -> float | None:
        """Seconds until this request would pass if nothing else came; 0.0 when allowed, None when never."""
        if self._allowed:
            return 0.0
        return None if self._wait is None else self._wait / 1_000_000

    @property
    def reset_after(self) -> float:
        """Seconds until the counter is as good as new."""
        return self._reset / 1_000_000

    @property
    def delay(self) -> float:
        """Seconds an admitted request should wait before it goes on (leaky bucket only)."""
        if self._detail is not None and self._detail.delay is not None:
            return self._detail.delay
        return self._algorithm.delay(self._wait) if self._allowed and self._wait else 0.0

    @property
    def queue_position(self) -> int | None:
        """Places taken in a leaky bucket's queue, this request's included; None for other algorithms."""
        algorithm = self._algorithm
        return algorithm.capacity - self._remaining if algorithm.limit.algorithm == "leaky_bucket" else None

    @property
    def reason(self) -> str:
        """Why: `ok`, `limited`, `cost_exceeds_limit`, `blocked`, what a store's failure decided, or of rules:
        `no_rule` applies, a `shadow` rule would have denied."""
        if self._detail is not None and self._detail.reason is not None:
            return self._detail.reason
        if self._allowed:
            return "ok"
        if self._wait is not None:
            return "limited"
        return "cost_exceeds_limit" if self._algorithm.capacity else "blocked"

    @property
    def name(self) -> str:
        """The name of the limit that decided; for a rule its rule_id."""
        return self._algorithm.label

    @property
    def state(self) -> str:
        """The pressure on the counter: `normal`, `warning` or `throttled`."""
        return NORMAL if self._detail is None else self._detail.state

    @property
    def parts(self) -> tuple[Decision, ...]:
        """One decision per limit of the chain, in order; a single limit is its own only part."""
        if self._detail is None or self._detail.parts is None:
            return (self,)
        return self._detail.parts

    @property
    def shadows(self) -> tuple[Decision, ...]:
        """What shadow rules would have said. They are counted apart and never decide."""
        return () if self._detail is None else self._detail.shadows

    def under(self, state: str) -> Decision:
        """This decision with a state of pressure."""
        detail = self._detail
        if detail is not None:
            changed = Detail(detail.reason, detail.delay, state, detail.parts, detail.shadows)
        else:
            changed = _PRESSED.get(state) or Detail(None, None, state, None)
        return Decision(self._algorithm, self._allowed, self._remaining, self._wait, self._reset, changed)

    def beside(self, shadows: tuple[Decision, ...]) -> Decision:
        """This decision with what shadow rules would have said: whether one of them would have denied is its reason."""
        detail = self._detail
        reason = detail.reason if detail is not None else None
        if self._allowed and not all(shadow._allowed for shadow in shadows):
            reason = "shadow"
        delay, parts = (detail.delay, detail.parts) if detail is not None else (None, None)
        changed = Detail(reason, delay, self.state, (self,) if parts is None else parts, shadows)
        return Decision(self._algorithm, self._allowed, self._remaining, self._wait, self._reset, changed)

    def _values(self) -> tuple[object, ...]:
        parts = self.parts
        return (
            self._allowed,
            self._algorithm.capacity,
            self._remaining,
            self._wait,
            self._reset,
            self.delay,
            self.reason,
            self._algorithm.label,
            self.state,
            parts if len(parts) != 1 else None,
            self.shadows,
        )

    def __reduce__(self) -> tuple[object, ...]:
        """Decisions travel: in exceptions out of worker processes, in caches, in logs."""
        detail = self._detail
        return _rebuild, (
            self._algorithm.limit,
            self._algorithm.name,
            self._allowed,
            self._remaining,
            self._wait,
            self._reset,
            (detail.reason, detail.delay, detail.state, detail.parts, detail.shadows) if detail is not None else None,
            self._algorithm.label,
        )

    def __bool__(self) -> bool:
        return self._allowed

    def __eq__(self, other: object) -> bool:
        return self._values() == other._values() if isinstance(other, Decision) else NotImplemented

    def __hash__(self) -> int:
        return hash(self._values())

    def __repr__(self) -> str:
        parts = self.parts
        text = (
            f"Decision(allowed={self._allowed}, limit={self.limit}, remaining={self._remaining}, "
            f"retry_after={self.retry_after}, reset_after={self.reset_after}, delay={self.delay}, "
            f"reason={self.reason!r}, name={self.name!r}, state={self.state!r}"
        )
        text += f", parts={parts!r}" if len(parts) > 1 else ""
        text += f", shadows={self.shadows!r}" if self.shadows else ""
        return f"{text})"


def _rebuild(
    limit: Limit,
    name: str,
    allowed: bool,
    remaining: int,
    wait: int | None,
    reset: int,
    detail: tuple[str | None, float | None, str, tuple[Decision, ...] | None, tuple[Decision, ...]] | None,
    label: str,
) -> Decision:
    from headgate.core.algorithms import build

    rebuilt = Detail(detail[0], detail[1], detail[2], detail[3], detail[4]) if detail is not None else None
    return Decision(build(limit, name, label), allowed, remaining, wait, reset, rebuilt)


def combine(parts: tuple[Decision, ...], allowed: bool) -> Decision:
    """The decision of a chain: the numbers of the part that binds most, and all the parts.

    Denied: the part that denied with the longest wait (never being the longest). Allowed: the part with the
    fewest remaining. The first one where several are equal; the delay is the longest of all.
    """
    if len(parts) == 1:
        return parts[0]
    chosen = parts[0]
    delay = 0.0
    for part in parts:
        delay = max(delay, part.delay)
        if allowed:
            better = part._remaining < chosen._remaining
        elif part._allowed:
            better = False
        else:
            better = chosen._allowed or _waits_longer(part._wait, chosen._wait)
        if better:
            chosen = part
    detail = Detail(
        chosen._detail.reason if chosen._detail is not None else None,
        delay if allowed else 0.0,
        chosen.state,
        parts,
    )
    return Decision(chosen._algorithm, allowed, chosen._remaining, chosen._wait, chosen._reset, detail)


def _waits_longer(wait: int | None, other: int | None) -> bool:
    if wait is None or other is None:
        return wait is None and other is not None
    return wait > other
