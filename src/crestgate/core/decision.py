# mypyc: compile
"""The result of a check: allowed or denied, and the numbers behind it.

Decisions are created by the million, so the common one (one limit, normal pressure) holds five values. Optional fields
(another reason, a delay, a pressure state, parts) are in a `Detail`. Seconds are computed on access.
"""

from __future__ import annotations

from operator import attrgetter
from typing import TYPE_CHECKING, Final, final

from crestgate.core.mypyc_types import i64

if TYPE_CHECKING:
    from crestgate.core.algorithms.algorithm import Algorithm
    from crestgate.core.limit import Limit

__all__ = ["Decision", "Detail", "combine"]

NORMAL: Final = "normal"


@final
class Detail:
    """Optional fields of a decision."""

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
    """Allowed or denied, by which limit, what remains and when to retry. Immutable; true when allowed.

    `wait_us` is the wait in microseconds, as in a Step; None when this cost can never pass. `reset_us` is when the
    counter is full again.
    """

    __slots__ = ("_allowed", "_remaining", "algorithm", "detail", "reset_us", "wait_us")

    def __init__(
        self,
        algorithm: Algorithm,
        allowed: bool,
        remaining: i64,
        wait: int | None,
        reset: i64,
        detail: Detail | None,
    ) -> None:
        self.algorithm: Final = algorithm
        self._allowed: Final = allowed
        self._remaining: Final = remaining
        self.wait_us: Final = wait
        self.reset_us: Final = reset
        self.detail = detail

    @property
    def allowed(self) -> bool:
        """Whether the request may pass."""
        return self._allowed

    @property
    def limit(self) -> int:
        """The capacity of the limit that decided: its burst, or a window's count."""
        return self.algorithm.capacity

    @property
    def remaining(self) -> int:
        """How many more requests of cost 1 would be admitted now."""
        return self._remaining

    @property
    def retry_after(self) -> float | None:
        """Seconds until this request would pass if nothing else came; 0.0 when allowed, None when never."""
        if self._allowed:
            return 0.0
        return None if self.wait_us is None else self.wait_us / 1_000_000

    @property
    def reset_after(self) -> float:
        """Seconds until the counter is full again."""
        return self.reset_us / 1_000_000

    @property
    def delay(self) -> float:
        """Seconds an admitted request should wait before it goes on (leaky bucket only)."""
        if self.detail is not None and self.detail.delay is not None:
            return self.detail.delay
        return self.algorithm.delay(self.wait_us) if self._allowed and self.wait_us else 0.0

    @property
    def queue_position(self) -> int | None:
        """Occupied positions in a leaky bucket's queue, with this request; None for other algorithms."""
        algorithm = self.algorithm
        return algorithm.capacity - self._remaining if algorithm.limit.algorithm == "leaky_bucket" else None

    @property
    def reason(self) -> str:
        """Why: `ok`, `limited`, `cost_exceeds_limit` or `blocked`; `fail_open`, `fail_closed` or `fallback` when the
        store failed; of rules `no_rule`, or `shadow` if a shadow rule would have denied."""
        if self.detail is not None and self.detail.reason is not None:
            return self.detail.reason
        if self._allowed:
            return "ok"
        if self.wait_us is not None:
            return "limited"
        return "cost_exceeds_limit" if self.algorithm.capacity else "blocked"

    @property
    def name(self) -> str:
        """The name of the limit that decided; for a rule its rule_id."""
        return self.algorithm.label

    @property
    def state(self) -> str:
        """The pressure on the counter: `normal`, `warning` or `throttled`."""
        return NORMAL if self.detail is None else self.detail.state

    @property
    def parts(self) -> tuple[Decision, ...]:
        """One decision per limit of the chain, in order; a single limit is its own only part."""
        if self.detail is None or self.detail.parts is None:
            return (self,)
        return self.detail.parts

    @property
    def shadows(self) -> tuple[Decision, ...]:
        """The decisions of shadow rules, which have counters of their own and never deny."""
        return () if self.detail is None else self.detail.shadows

    def set_pressure(self, state: str) -> None:
        """Set the state of pressure of a decision that nobody else has seen yet, and that has no details."""
        self.detail = _PRESSED.get(state)

    def with_pressure(self, state: str) -> Decision:
        """This decision with a state of pressure."""
        detail = self.detail
        if detail is not None:
            changed = Detail(detail.reason, detail.delay, state, detail.parts, detail.shadows)
        else:
            changed = _PRESSED.get(state) or Detail(None, None, state, None)
        return Decision(self.algorithm, self._allowed, self._remaining, self.wait_us, self.reset_us, changed)

    def with_shadows(self, shadows: tuple[Decision, ...]) -> Decision:
        """This decision with those of shadow rules; its reason is `shadow` if one of them would have denied."""
        detail = self.detail
        reason = detail.reason if detail is not None else None
        if self._allowed and not all(shadow.allowed for shadow in shadows):
            reason = "shadow"
        delay, parts = (detail.delay, detail.parts) if detail is not None else (None, None)
        changed = Detail(reason, delay, self.state, (self,) if parts is None else parts, shadows)
        return Decision(self.algorithm, self._allowed, self._remaining, self.wait_us, self.reset_us, changed)

    def _values(self) -> tuple[object, ...]:
        parts = self.parts
        return (
            self._allowed,
            self.algorithm.capacity,
            self._remaining,
            self.wait_us,
            self.reset_us,
            self.delay,
            self.reason,
            self.algorithm.label,
            self.state,
            parts if len(parts) != 1 else None,
            self.shadows,
        )

    def __reduce__(self) -> tuple[object, ...]:
        """Decisions are pickled: in exceptions of worker processes, and in caches."""
        detail = self.detail
        return _rebuild, (
            self.algorithm.limit,
            self.algorithm.name,
            self._allowed,
            self._remaining,
            self.wait_us,
            self.reset_us,
            (detail.reason, detail.delay, detail.state, detail.parts, detail.shadows) if detail is not None else None,
            self.algorithm.label,
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


if isinstance(vars(Decision)["allowed"], property):  # not compiled: every check reads these two, so avoid a Python call
    Decision.allowed = property(attrgetter("_allowed"))  # type: ignore[method-assign, assignment]
    Decision.remaining = property(attrgetter("_remaining"))  # type: ignore[method-assign, assignment]


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
    from crestgate.core.algorithms import build

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
            better = part.remaining < chosen.remaining
        elif part.allowed:
            better = False
        else:
            better = chosen.allowed or _waits_longer(part.wait_us, chosen.wait_us)
        if better:
            chosen = part
    detail = Detail(
        chosen.detail.reason if chosen.detail is not None else None,
        delay if allowed else 0.0,
        chosen.state,
        parts,
    )
    return Decision(chosen.algorithm, allowed, chosen.remaining, chosen.wait_us, chosen.reset_us, detail)


def _waits_longer(wait: int | None, other: int | None) -> bool:
    if wait is None or other is None:
        return wait is None and other is not None
    return wait > other
