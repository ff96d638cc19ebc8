"""Limits of a client: token buckets for all its requests, for one API, or for one method, as `client` rules.

All that match a request apply, each with its own bucket. A client that is not configured gets the default limits; it
is kept in a bounded LRU table, and nothing is written for it.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

from crestgate.errors import ConfigError
from crestgate.loader.fields import Fields, Problems, describe
from crestgate.rules.compat.rule_ids import derived_id, shorten
from crestgate.rules.compat.validation import check_choice, check_name, check_whole
from crestgate.rules.matching.patterns import name_pattern, parse_pattern
from crestgate.rules.rule import ANY, Rule, is_method
from crestgate.runtime.fork_safety import fork_safe_lock

__all__ = ["DEFAULT_CLIENT_LIMITS", "UNITS", "ClientLimit", "SeenClients", "client_limit_of", "read_client"]

DEFAULT_CLIENT_LIMITS = ("100/minute",)
UNITS = {"SEC": 1, "MIN": 60, "HOUR": 3600, "DAY": 86400}
TYPES = ("DEFAULT", "API", "METHOD")
GLOBAL = "GLOBAL"
MAX_REQUESTS = 2**31 - 1
WILDCARD_NOT_ALLOWED = "'*' would be every client: use default_client_limits instead"
MAX_SEEN = 10_000
IDLE_US = 3600 * 1_000_000


@dataclass(frozen=True, slots=True)
class ClientLimit:
    """One limit of one client."""

    client: str
    limit_type: str
    limit_name: str
    time_unit: str
    max_requests: int

    def __post_init__(self) -> None:
        check_name("clientId", self.client)
        if self.client == ANY:
            raise ConfigError(f"clientId {WILDCARD_NOT_ALLOWED}")
        check_choice("limitType", self.limit_type, TYPES)
        check_name("limitName", self.limit_name)
        if self.limit_type == "DEFAULT":
            check_choice("limitName", self.limit_name, (GLOBAL,))
        elif self.limit_type == "METHOD" and not is_method(self.limit_name.upper()):
            raise ConfigError(f"limitName must be a method such as GET or PUT, not {describe(self.limit_name)}")
        check_choice("timeUnit", self.time_unit, UNITS)
        check_whole("maxRequests", self.max_requests, 0, MAX_REQUESTS)

    @property
    def rule_id(self) -> str:
        return derived_id("client", self.client, self.limit_type, self.limit_name)

    def rule(self) -> Rule:
        """The rule of this limit."""
        rule = Rule(
            rule_id=self.rule_id,
            name=f"{self.limit_type} {shorten(self.limit_name)} of client {shorten(self.client)}",
            dimension="client",
            identifier=self.client,
            endpoint_pattern=self._pattern(),
            method=self.limit_name.upper() if self.limit_type == "METHOD" else ANY,
            limit=self.max_requests,
            window_seconds=UNITS[self.time_unit],
            algorithm="token_bucket",
            origin={"view": "client", **self.to_data()},
        )
        rule.compiled()  # raises if it cannot be counted exactly
        return rule

    def _pattern(self) -> str:
        """A path pattern begins with a slash; anything else is the name of an API, with any characters."""
        if self.limit_type != "API":
            return ANY
        return self.limit_name if self.limit_name.startswith("/") else name_pattern(self.limit_name)

    def to_data(self) -> dict[str, Any]:
        """As plain data, with the field names of the API."""
        return {
            "limitType": self.limit_type,
            "limitName": self.limit_name,
            "timeIntervalLimit": {"timeUnit": self.time_unit, "maxRequests": self.max_requests},
        }


def read_client(data: object, at: str, problems: Problems) -> list[tuple[str, ClientLimit]]:
    """The limits of `{clientId, limits: […]}`, each with its field path; errors are added to `problems`."""
    fields = Fields(data, at, problems, ("clientId", "limits"))
    if not isinstance(data, Mapping):
        return []
    client = fields.text("clientId", required=True)
    if client == ANY:
        fields.report("clientId", WILDCARD_NOT_ALLOWED)
        client = None
    if not fields.has("limits"):
        fields.report("limits", "is missing: write a list of {limitType, limitName, timeIntervalLimit}")
    found = []
    seen: dict[tuple[str, str], str] = {}
    for field_path, item in fields.items("limits"):
        # The limits are validated also when the name is invalid.
        limit = _limit(item, field_path, problems, client or "invalid")
        if limit is None or client is None:
            continue
        earlier = seen.setdefault((limit.limit_type, limit.limit_name), field_path)
        if earlier != field_path:
            problems.add(field_path, f"has the same limitType and limitName as {earlier}: write each once")
        found.append((field_path, limit))
    return found


def client_limit_of(rule: Rule) -> ClientLimit | None:
    """The client limit that a rule was written as; None if it was not, or has been changed since."""
    origin = rule.origin
    if origin is None or origin.get("view") != "client":
        return None
    interval = origin.get("timeIntervalLimit")
    if not isinstance(interval, Mapping):
        return None
    names = (origin.get("limitType"), origin.get("limitName"), interval.get("timeUnit"), interval.get("maxRequests"))
    try:
        limit = ClientLimit(rule.identifier, *names)  # type: ignore[arg-type]  # it checks them
        same = replace(limit.rule(), name=rule.name) == rule
    except ConfigError:
        return None
    return limit if same else None


class SeenClients:
    """Clients that are not configured, and their last request. Bounded; idle ones are dropped."""

    def __init__(self, capacity: int = MAX_SEEN) -> None:
        self._capacity = capacity
        self._last_us: OrderedDict[str, int] = OrderedDict()
        self._lock = fork_safe_lock()

    def record(self, client: str, now_us: int) -> None:
        """Record a request of a client that is not configured."""
        with self._lock:
            last = self._last_us
            last[client] = now_us
            last.move_to_end(client)
            while len(last) > self._capacity or next(iter(last.values())) < now_us - IDLE_US:
                last.popitem(last=False)

    def last_us(self, client: str) -> int | None:
        """Its last request, in microseconds since the epoch; None if unknown."""
        return self._last_us.get(client)

    def __len__(self) -> int:
        return len(self._last_us)


def _limit(data: object, at: str, problems: Problems, client: str) -> ClientLimit | None:
    before = len(problems.entries)
    fields = Fields(data, at, problems, ("limitType", "limitName", "timeIntervalLimit"))
    if not isinstance(data, Mapping):
        return None
    limit_type = fields.choice("limitType", TYPES, required=True)
    name = fields.text("limitName", GLOBAL if limit_type == "DEFAULT" else None)
    if limit_type == "DEFAULT" and name.upper() != GLOBAL:
        fields.report("limitName", f"the name of a DEFAULT limit must be {GLOBAL}, not {describe(name)}")
    elif limit_type in ("API", "METHOD") and not fields.has("limitName"):
        what = "the API's name, or a path pattern such as '/web/*'" if limit_type == "API" else "a method such as PUT"
        fields.report("limitName", f"is missing: write {what}")
    elif name is None:  # already reported
        pass
    elif limit_type == "API" and name.startswith("/"):
        try:
            parse_pattern(name)
        except ConfigError as error:
            fields.report("limitName", str(error))
    elif limit_type == "METHOD" and not is_method(name.upper()):
        fields.report("limitName", f"must be a method such as GET or PUT, not {describe(name)}")
    if not fields.has("timeIntervalLimit"):
        fields.report("timeIntervalLimit", "is missing: write {timeUnit: MIN, maxRequests: 100}")
        return None
    interval = Fields(
        fields.values["timeIntervalLimit"], fields.path("timeIntervalLimit"), problems, ("timeUnit", "maxRequests")
    )
    unit = interval.choice("timeUnit", UNITS, required=True)
    most = interval.integer("maxRequests", required=True, minimum=0, maximum=MAX_REQUESTS)
    if len(problems.entries) > before:
        return None
    name = GLOBAL if limit_type == "DEFAULT" else name.upper() if limit_type == "METHOD" else name
    return ClientLimit(client, limit_type, name, unit, most)
