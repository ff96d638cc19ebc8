"""A client's limits: token buckets for all it does, for one API, or for one method, as rules of dimension `client`.

All that match a request apply, each with its own bucket. A client that nobody has configured gets the default limits;
it is remembered in a bounded table, which forgets who has been idle for longest, and nothing is written for it.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

from headgate.errors import ConfigError
from headgate.reading.fields import Fields, Problems, kind_of
from headgate.rules.pattern import name_pattern, parse_pattern
from headgate.rules.rule import ANY, Rule, is_method
from headgate.rules.views.checks import check_choice, check_name, check_whole
from headgate.rules.views.ids import shown, view_id
from headgate.stores.forking import fork_safe_lock

__all__ = ["DEFAULT_CLIENT_LIMITS", "UNITS", "ClientLimit", "SeenClients", "client_limit_of", "read_client"]

DEFAULT_CLIENT_LIMITS = ("100/minute",)
UNITS = {"SEC": 1, "MIN": 60, "HOUR": 3600, "DAY": 86400}
TYPES = ("DEFAULT", "API", "METHOD")
GLOBAL = "GLOBAL"
MOST_REQUESTS = 2**31 - 1
FOR_ALL = "'*' would be every client: write default_client_limits instead"
MOST_SEEN = 10_000
IDLE_US = 3600 * 1_000_000


@dataclass(frozen=True, slots=True)
class ClientLimit:
    """One limit of one client, as it was written."""

    client: str
    limit_type: str
    limit_name: str
    time_unit: str
    max_requests: int

    def __post_init__(self) -> None:
        check_name("clientId", self.client)
        if self.client == ANY:
            raise ConfigError(f"clientId {FOR_ALL}")
        check_choice("limitType", self.limit_type, TYPES)
        check_name("limitName", self.limit_name)
        if self.limit_type == "DEFAULT":
            check_choice("limitName", self.limit_name, (GLOBAL,))
        elif self.limit_type == "METHOD" and not is_method(self.limit_name.upper()):
            raise ConfigError(f"limitName must be a method such as GET or PUT, not {kind_of(self.limit_name)}")
        check_choice("timeUnit", self.time_unit, UNITS)
        check_whole("maxRequests", self.max_requests, 0, MOST_REQUESTS)

    @property
    def rule_id(self) -> str:
        return view_id("client", self.client, self.limit_type, self.limit_name)

    def rule(self) -> Rule:
        """The rule that it is."""
        rule = Rule(
            rule_id=self.rule_id,
            name=f"{self.limit_type} {shown(self.limit_name)} of client {shown(self.client)}",
            dimension="client",
            identifier=self.client,
            endpoint_pattern=self._pattern(),
            method=self.limit_name.upper() if self.limit_type == "METHOD" else ANY,
            limit=self.max_requests,
            window_seconds=UNITS[self.time_unit],
            algorithm="token_bucket",
            origin={"view": "client", **self.to_data()},
        )
        rule.compiled()  # refuses what cannot be counted exactly
        return rule

    def _pattern(self) -> str:
        """A path pattern begins with a slash; everything else is an API's name, whatever characters it has."""
        if self.limit_type != "API":
            return ANY
        return self.limit_name if self.limit_name.startswith("/") else name_pattern(self.limit_name)

    def to_data(self) -> dict[str, Any]:
        """By the names it is written with."""
        return {
            "limitType": self.limit_type,
            "limitName": self.limit_name,
            "timeIntervalLimit": {"timeUnit": self.time_unit, "maxRequests": self.max_requests},
        }


def read_client(data: object, at: str, problems: Problems) -> list[tuple[str, ClientLimit]]:
    """The limits of `{clientId, limits: […]}`, each with the way to it; mistakes are noted."""
    fields = Fields(data, at, problems, ("clientId", "limits"))
    if not isinstance(data, Mapping):
        return []
    client = fields.text("clientId", required=True)
    if client == ANY:
        fields.wrong("clientId", FOR_ALL)
        client = None
    if not fields.given("limits"):
        fields.wrong("limits", "is missing: write a list of {limitType, limitName, timeIntervalLimit}")
    found = []
    seen: dict[tuple[str, str], str] = {}
    for way, item in fields.items("limits"):
        # What is wrong in the limits of somebody whose name is wrong is told all the same.
        limit = _limit(item, way, problems, client or "nobody")
        if limit is None or client is None:
            continue
        earlier = seen.setdefault((limit.limit_type, limit.limit_name), way)
        if earlier != way:
            problems.add(way, f"says the same limitType and limitName as {earlier}: write each once")
        found.append((way, limit))
    return found


def client_limit_of(rule: Rule) -> ClientLimit | None:
    """The client's limit that a rule is, or None if it was not written as one, or is something else by now."""
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
    """Clients that asked and that nobody has configured: who, and when last. Bounded; forgets the idle."""

    def __init__(self, most: int = MOST_SEEN) -> None:
        self._most = most
        self._last_us: OrderedDict[str, int] = OrderedDict()
        self._lock = fork_safe_lock()

    def see(self, client: str, now_us: int) -> None:
        """A client without limits of its own has asked."""
        with self._lock:
            last = self._last_us
            last[client] = now_us
            last.move_to_end(client)
            while len(last) > self._most or next(iter(last.values())) < now_us - IDLE_US:
                last.popitem(last=False)

    def last_us(self, client: str) -> int | None:
        """When it asked last, in microseconds since the epoch; None for one that is not remembered."""
        return self._last_us.get(client)

    def __len__(self) -> int:
        return len(self._last_us)


def _limit(data: object, at: str, problems: Problems, client: str) -> ClientLimit | None:
    before = len(problems.found)
    fields = Fields(data, at, problems, ("limitType", "limitName", "timeIntervalLimit"))
    if not isinstance(data, Mapping):
        return None
    limit_type = fields.choice("limitType", TYPES, required=True)
    name = fields.text("limitName", GLOBAL if limit_type == "DEFAULT" else None)
    if limit_type == "DEFAULT" and name.upper() != GLOBAL:
        fields.wrong("limitName", f"a DEFAULT limit is called {GLOBAL}, not {kind_of(name)}")
    elif limit_type in ("API", "METHOD") and not fields.given("limitName"):
        what = "the API's name, or a path pattern such as '/web/*'" if limit_type == "API" else "a method such as PUT"
        fields.wrong("limitName", f"is missing: write {what}")
    elif name is None:  # which has been told
        pass
    elif limit_type == "API" and name.startswith("/"):
        try:
            parse_pattern(name)
        except ConfigError as error:
            fields.wrong("limitName", str(error))
    elif limit_type == "METHOD" and not is_method(name.upper()):
        fields.wrong("limitName", f"must be a method such as GET or PUT, not {kind_of(name)}")
    if not fields.given("timeIntervalLimit"):
        fields.wrong("timeIntervalLimit", "is missing: write {timeUnit: MIN, maxRequests: 100}")
        return None
    interval = Fields(
        fields.values["timeIntervalLimit"], fields.way("timeIntervalLimit"), problems, ("timeUnit", "maxRequests")
    )
    unit = interval.choice("timeUnit", UNITS, required=True)
    most = interval.whole("maxRequests", required=True, least=0, most=MOST_REQUESTS)
    if len(problems.found) > before:
        return None
    name = GLOBAL if limit_type == "DEFAULT" else name.upper() if limit_type == "METHOD" else name
    return ClientLimit(client, limit_type, name, unit, most)
