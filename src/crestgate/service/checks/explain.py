"""`POST /api/v1/explain`: what a check would be answered, and why; nothing is consumed.

The check is prepared and decided as `/api/v1/quota` does. All other rules are examined in slices, between which others
are served: there may be 100,000.
"""

from __future__ import annotations

from functools import partial
from typing import Any, Final, final

from crestgate.core.decision import Decision
from crestgate.limiter.pending_check import PendingCheck
from crestgate.rules.explanation import Explanation, RuleScan
from crestgate.rules.explanation_data import explanation_data
from crestgate.service.checks.forms import context_of, prepare_check
from crestgate.service.checks.responses import answer_of
from crestgate.service.checks.schemas import CheckBody
from crestgate.service.checks.service import CheckService
from crestgate.service.checks.slices import next_turn
from crestgate.service.observability.labels import key_label
from crestgate.stores.port import Op

__all__ = ["ExplainService"]

RULE_SLICE: Final = 256
"""Rules that are examined in one turn of the event loop."""


@final
class ExplainService:
    """Explains the checks of one worker."""

    def __init__(self, checks: CheckService) -> None:
        self._checks = checks
        self._limiter = checks.limiter
        self._show_key = partial(key_label, keys=checks.dependencies.settings.logs.keys)

    async def explain(self, check: CheckBody) -> dict[str, Any]:
        """The decision that the check would get, every rule that was considered, and what would change the decision."""
        checks, limiter = self._checks, self._limiter
        checks.admit(1)
        now_us = checks.clock.ticks()
        pending, scan = self._prepare(check, now_us)
        decision: Decision = (await limiter.decide([pending]))[0]
        explanation: Explanation | None = None
        if scan is not None:
            while scan.advance(RULE_SLICE):
                await next_turn()
            explanation = scan.result()
        data = explanation_data(
            pending,
            decision,
            explanation,
            title=limiter.title,
            title_of=limiter.title_of,
            show_key=self._show_key,
        )
        return {"decision": answer_of(decision, now_us), **data}

    def _prepare(self, check: CheckBody, now_us: int) -> tuple[PendingCheck, RuleScan | None]:
        """The check, and the scan of the rule set that it was prepared by; None for a key under plans."""
        while True:
            rules = self._limiter.catalog.current
            pending = prepare_check(self._limiter, Op.PEEK, check, now_us)
            if check.key is not None and check.plans is not None:
                return pending, None
            context = context_of(check)
            chosen = rules.resolve(context, now_us)
            if rules is self._limiter.catalog.current:  # else a thread has put changed rules in force meanwhile
                return pending, RuleScan(rules, context, now_us, chosen)
