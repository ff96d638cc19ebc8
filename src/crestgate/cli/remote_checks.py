"""`crestgate check`, `peek` and `reset` by the HTTP API of a running service."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict
from typing import Any

from crestgate.cli.remote import ServiceClient
from crestgate.core.context import RequestContext
from crestgate.core.limit import Limit
from crestgate.errors import ConfigError
from crestgate.stores.port import Op

__all__ = ["decide_remotely", "request_body", "reset_remotely"]

ENDPOINTS = {Op.TAKE: "/api/v1/check", Op.PEEK: "/api/v1/quota", Op.RESET: "/api/v1/reset"}
NUMBERS = ("limit", "remaining", "reset_after", "delay")


def request_body(key: str | None, plans: Sequence[str], context: RequestContext, cost: int | None) -> dict[str, Any]:
    """The body of a check. The API takes plans by name, and no limits."""
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
    policy_key = request.pop("key", None)
    if policy_key is None:
        return {"context": request, **body}
    if request:
        raise ConfigError("a service accepts a key alone: leave out --key, or the other request options")
    return {"key": policy_key, **body}


def decide_remotely(service: ServiceClient, op: Op, body: Mapping[str, Any]) -> dict[str, Any]:
    """The decision of a service, as its API returns it."""
    data = service.post(ENDPOINTS[op], body)
    if not _is_decision(data) or not all(
        isinstance(data.get(name) or [], list) and all(map(_is_decision, data.get(name) or []))
        for name in ("parts", "shadows")
    ):
        raise service.unexpected("its response is not a decision")
    return data


def reset_remotely(service: ServiceClient, body: Mapping[str, Any]) -> list[tuple[str, str]]:
    """The counters that a service has reset, by key and name."""
    counters = service.post(ENDPOINTS[Op.RESET], body).get("reset")
    if not isinstance(counters, list) or not all(isinstance(counter, dict) for counter in counters):
        raise service.unexpected("its response does not list the reset counters")
    return [(str(counter.get("key")), str(counter.get("rule"))) for counter in counters]


def is_notation(limit: str) -> bool:
    """Whether it is the notation of a limit, and not the name of a plan."""
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
