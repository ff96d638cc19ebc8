"""`headgate check`, `peek` and `reset` of a running service: the same questions, as its API takes them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict
from typing import Any

from headgate.cli.remote import Service
from headgate.core.limit import Limit
from headgate.errors import ConfigError
from headgate.rules.context import RequestContext
from headgate.stores.port import Op

__all__ = ["answer_of", "question_of", "reset_by"]

CALLS = {Op.TAKE: "/api/v1/check", Op.PEEK: "/api/v1/quota", Op.RESET: "/api/v1/reset"}
NUMBERS = ("limit", "remaining", "reset_after", "delay")


def question_of(key: str | None, plans: Sequence[str], context: RequestContext, cost: int | None) -> dict[str, Any]:
    """The body of a check. A service knows its plans by name, and takes no limits from those who ask."""
    for plan in plans:
        if is_notation(plan):
            raise ConfigError(
                f"a service decides by its own plans and rules, not by a limit such as {plan!r}: write --plan NAME, "
                "or leave it out for the policy of the key"
            )
    body: dict[str, Any] = {} if cost is None else {"cost": cost}
    if key is not None:
        return {"key": key, **({"plans": list(plans)} if plans else {}), **body}
    request = {name: value for name, value in asdict(context).items() if value is not None}
    of_policy = request.pop("key", None)
    if of_policy is None:
        return {"context": request, **body}
    if request:
        raise ConfigError("a service takes a key by itself: leave --key out, or the rest of the request")
    return {"key": of_policy, **body}


def answer_of(service: Service, op: Op, question: Mapping[str, Any]) -> dict[str, Any]:
    """The decision of a service, by the names that it has for it."""
    data = service.post(CALLS[op], question)
    if not _is_decision(data) or not all(
        isinstance(data.get(name) or [], list) and all(map(_is_decision, data.get(name) or []))
        for name in ("parts", "shadows")
    ):
        raise service.odd("its answer is no decision")
    return data


def reset_by(service: Service, question: Mapping[str, Any]) -> list[tuple[str, str]]:
    """The counters that a service has forgotten, by key and name."""
    counters = service.post(CALLS[Op.RESET], question).get("reset")
    if not isinstance(counters, list) or not all(isinstance(counter, dict) for counter in counters):
        raise service.odd("its answer does not say what was reset")
    return [(str(counter.get("key")), str(counter.get("rule"))) for counter in counters]


def is_notation(limit: str) -> bool:
    """Whether a limit can be understood without knowing any plans."""
    try:
        Limit.parse_chain(limit)
    except ConfigError:
        return False
    return True


def _is_decision(data: Any) -> bool:
    return (
        isinstance(data, dict)
        and isinstance(data.get("allowed"), bool)
        and {"reason", "rule", "state", "retry_after"} <= data.keys()
        and all(isinstance(data.get(name), int | float) for name in NUMBERS)
        and isinstance(data["retry_after"], int | float | None)
    )
