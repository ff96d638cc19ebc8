# mypyc: compile
"""A request as a log has it: what rules match, and when it came."""

from __future__ import annotations

from collections.abc import Mapping
from typing import final

__all__ = ["LoggedRequest"]


@final
class LoggedRequest:
    """One line of a log. It has the fields of a RequestContext, without its checks: there are millions."""

    __slots__ = (
        *("api_key", "attributes", "client", "cost", "ip", "key", "line", "method", "path", "tier", "time_us", "user"),
    )

    def __init__(
        self,
        time_us: int,
        line: int = 0,
        ip: str | None = None,
        user: str | None = None,
        path: str | None = None,
        method: str | None = None,
        api_key: str | None = None,
        client: str | None = None,
        tier: str | None = None,
        key: str | None = None,
        cost: int = 1,
        attributes: Mapping[str, str] | None = None,
    ) -> None:
        self.time_us = time_us
        """Microseconds since the epoch."""
        self.line = line
        """Its number in the log, from 1."""
        self.ip = ip
        self.user = user
        self.path = path
        self.method = method
        self.api_key = api_key
        self.client = client
        self.tier = tier
        self.key = key
        self.cost = cost
        self.attributes = attributes
