"""`Limiter`: the library's front door for threads and plain functions. Its async twin is in async_limiter.py."""

from __future__ import annotations

from typing import SupportsIndex

from headgate.core.decision import Decision
from headgate.embedded.asking import Holding, Prepared, PreparedChain
from headgate.embedded.ruled import Ruled
from headgate.engine import limiter
from headgate.rules.context import RequestContext
from headgate.stores.port import Op

__all__ = ["Limiter"]


class Limiter(Ruled, limiter.Limiter):
    """Rate limits for threads and plain functions.

    >>> limiter = Limiter("memory://", plans={"gold": "10/second burst 20"})
    >>> limiter.check("user:42", "gold").remaining
    19
    >>> limiter.check("user:42", ["gold", "5000/day"], cost=3).allowed
    True

    With the rules of a configuration (`from_config`), `check_request` finds the limits of a request by itself.
    """

    def check_request(self, context: RequestContext, cost: SupportsIndex = 1) -> Decision:
        """Decide a request under all rules that apply to it, and consume its cost when it is admitted."""
        return self._decide_request(Op.TAKE, context, cost)

    def peek_request(self, context: RequestContext, cost: SupportsIndex = 1) -> Decision:
        """The decision `check_request` would give now; consumes nothing."""
        return self._decide_request(Op.PEEK, context, cost)

    def reset_request(self, context: RequestContext) -> None:
        """Forget the counters of all rules that apply to a request."""
        prepared = self.prepare(Op.RESET, context, 0)
        if prepared.request is not None:
            self._apply([prepared.request])
            prepared.forgotten()

    def hold(self, prepared: Prepared | PreparedChain) -> Holding:
        """Decide what was prepared for a TAKE, and keep what is needed to give it back."""
        return Holding(prepared, [] if prepared.request is None else self._apply([prepared.request])[0])

    def give_back(self, holding: Holding) -> Decision:
        """Undo what was held; how its counters stand then."""
        request = holding.returning()
        return holding.returned(self._engine, [] if request is None else self._apply([request])[0])

    def close(self) -> None:
        """Let go of the store, if this limiter opened it, and of the rules, if `from_config` did."""
        if self._owns_catalog:
            self.catalog.close()
        super().close()

    def _decide_request(self, op: Op, context: RequestContext, cost: SupportsIndex) -> Decision:
        prepared = self.prepare(op, context, cost)
        return prepared.decision([] if prepared.request is None else self._apply([prepared.request])[0])
