"""Plans of a catalog, which change while decorated functions are in use."""

from __future__ import annotations

from typing import Any

import pytest

from crestgate import ConfigError, Limiter, RateLimitExceeded
from crestgate.rules.port import Edit
from unit.limiter.rule_limiters import Maker, RuleLimiter


def test_decorated_async_function_uses_current_plans(make_limiter: Maker) -> None:
    gate = make_limiter("u user")
    gate.write(Edit("plan", "fast", {"limits": ["2/minute"]}))
    limiter: Any = gate.limiter

    @limiter.limit("fast", key="k")  # type: ignore[untyped-decorator]  # of either kind
    async def handler() -> None:
        pass

    def admits(times: int) -> int:
        passed = 0
        for _ in range(times):
            try:
                gate.runner.run(handler())
                passed += 1
            except RateLimitExceeded:
                pass
        return passed

    assert admits(5) == 2
    gate.write(Edit("plan", "fast", {"limits": ["5/minute"]}))
    assert admits(5) == 3, "a new plan applies to the next call, and keeps the counters"
    assert gate.check_key("k", "fast").remaining == 0
    gate.write(Edit("plan", "fast", None))
    with pytest.raises(ConfigError, match="fast"):
        admits(1)


def test_decorated_function_uses_current_plans() -> None:
    gate = RuleLimiter("sync", "u user")
    gate.write(Edit("plan", "fast", {"limits": ["1/minute"]}))
    assert isinstance(gate.limiter, Limiter)

    @gate.limiter.limit(iter(["fast", "9/hour"]), key="k")
    def handler() -> str:
        return "done"

    assert handler() == "done"
    with pytest.raises(RateLimitExceeded):
        handler()
    gate.write(Edit("plan", "fast", {"limits": ["2/minute"]}))
    assert handler() == "done"
    gate.close()
