"""A rule: a limit and whom it is for. Policies, strategies and a client's limits are rules under other names.

A rule checks itself when it is read (`Rule.read`), and every mistake in it is told. What makes two rules rivals is
their *slot*: dimension, pattern, method and window. Counters are named by the slot, never by the rule, so a new tier
or an override goes on with what was used.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import lru_cache
from hashlib import sha256
from typing import Any, overload

from headgate.core.algorithms import ALGORITHMS
from headgate.core.limit import Limit
from headgate.engine.failure import POLICIES
from headgate.errors import ConfigError
from headgate.reading.fields import Fields, Problems
from headgate.rules.address import subject_address
from headgate.rules.moments import moment_text, read_moment
from headgate.rules.pattern import EVERY, parse_pattern

__all__ = [
    "ANY",
    "DEFAULT_RULE_ALGORITHM",
    "DIMENSIONS",
    "MODES",
    "RULE_FIELDS",
    "Rule",
    "dimension_of",
    "is_method",
    "is_tier",
]

ANY = "*"
DIMENSIONS = ("user", "apikey", "client", "ip", "key", "api", "global")
"""In the order in which a request's chain has them."""
MODES = ("enforce", "shadow", "disabled")
DEFAULT_RULE_ALGORITHM = "sliding_window_counter"
ALIASES = {"sliding_window": "sliding_window_counter"}
MOST_ID_BYTES = 255
MOST_TIER_BYTES = 255
MOST_NAME_BYTES = 200
"""Of a counter's name: a longer one ends in a digest."""
ORIGIN_DEPTH = 2
_METHOD = re.compile(r"[A-Z][A-Z0-9_-]{0,31}")


@dataclass(frozen=True, slots=True)
class Rule:
    """One rule, as it is stored and shown. Make one with `Rule.read`, which checks it."""

    rule_id: str
    name: str
    dimension: str
    limit: int
    window_seconds: float
    identifier: str = ANY
    endpoint_pattern: str = EVERY
    method: str = ANY
    tier: str = ANY
    algorithm: str = DEFAULT_RULE_ALGORITHM
    burst: int | None = None
    mode: str = "enforce"
    on_store_error: str | None = None
    expires_us: int | None = None
    """When it ends, in microseconds since the epoch: `expires_at` where it is written."""
    origin: Mapping[str, Any] | None = field(default=None, hash=False)
    """What a view (a policy, a client's limit) was given, so that it is shown as it was written."""
    created_us: int | None = field(default=None, compare=False)
    updated_us: int | None = field(default=None, compare=False)
    version: int = field(default=0, compare=False)
    """How often it was written; 0 where that is not counted."""

    @overload
    @classmethod
    def read(cls, data: object, at: str = "") -> Rule: ...

    @overload
    @classmethod
    def read(cls, data: object, at: str, problems: Problems) -> Rule | None: ...

    @classmethod
    def read(cls, data: object, at: str = "", problems: Problems | None = None) -> Rule | None:
        """The rule that plain data says. Mistakes are added to `problems`, and then there is none; without
        `problems` they are raised, as Invalid.

        >>> Rule.read({"name": "Orders per user", "dimension": "USER", "limit": 100, "window_seconds": 60}).rule_id
        'orders-per-user'
        """
        noted = Problems() if problems is None else problems
        before = len(noted.found)
        rule = _read(data, at, noted)
        if problems is None:
            noted.raise_any()
        return rule if len(noted.found) == before else None

    def to_data(self) -> dict[str, Any]:
        """As plain data, for JSON and YAML; `Rule.read` gives the same rule again."""
        data: dict[str, Any] = {
            "rule_id": self.rule_id,
            "name": self.name,
            "dimension": self.dimension,
            "identifier": self.identifier,
            "endpoint_pattern": self.endpoint_pattern,
            "method": self.method,
            "tier": self.tier,
            "algorithm": self.algorithm,
            "limit": self.limit,
            "window_seconds": self.window_seconds,
            "burst": self.burst,
            "mode": self.mode,
            "on_store_error": self.on_store_error,
            "expires_at": moment_text(self.expires_us),
            "created_at": moment_text(self.created_us),
            "updated_at": moment_text(self.updated_us),
            "version": self.version,
        }
        if self.origin is not None:
            data["origin"] = dict(self.origin)
        return data

    def body(self) -> dict[str, Any]:
        """What a repository keeps: all that somebody wrote, and nothing that the repository itself knows."""
        data = self.to_data()
        for known in ("created_at", "updated_at", "version"):
            del data[known]
        return data

    @classmethod
    def stored(cls, body: object, version: int, created_us: int | None, updated_us: int | None) -> Rule:
        """The rule of a body that a repository keeps."""
        rule = cls.read(body)
        for name, value in (("version", version), ("created_us", created_us), ("updated_us", updated_us)):
            object.__setattr__(rule, name, value)  # nobody else has it yet
        return rule

    @property
    def counter(self) -> str:
        """The name of its counters: the slot's, so that all rules of a slot count in one. Shadow rules count apart."""
        kind = "shadow" if self.mode == "shadow" else "rule"
        window = _seconds_text(self.window_seconds)
        name = f"{kind}|{self.dimension}|{self.method}|{window}|{parse_pattern(self.endpoint_pattern).key}"
        if len(name.encode("utf-8", "surrogatepass")) <= MOST_NAME_BYTES:
            return name
        digest = sha256(name.encode("utf-8", "surrogatepass")).hexdigest()
        return f"{kind}|{self.dimension}|{self.method}|{window}|*sha256:{digest}"  # which no pattern is

    @property
    def claim(self) -> str | None:
        """What only one rule can have: the slot, and how specific it is in it. None for a rule that is disabled.

        A rule that ends claims another place than one that does not, and wins while it lasts.
        """
        if self.mode == "disabled":
            return None
        lasting = "lasts" if self.expires_us is None else "ends"
        return f"{self.counter}|{self.identifier!r}|{self.tier!r}|{lasting}"

    def compiled(self) -> Limit:
        """Its limit."""
        return _limit(self.limit, self.window_seconds, self.burst, self.algorithm)


RULE_FIELDS = (
    *("rule_id", "name", "dimension", "identifier", "endpoint_pattern", "method", "tier", "algorithm", "limit"),
    *("window_seconds", "burst", "mode", "on_store_error", "expires_at", "created_at", "updated_at", "version"),
    "origin",
)


@lru_cache(maxsize=1024)
def _limit(count: int, seconds: float, burst: int | None, algorithm: str) -> Limit:
    """Remembered, because most of many rules have one of a few limits."""
    return Limit(count, seconds, burst, algorithm)


def _seconds_text(seconds: float) -> str:
    """Seconds down to the microsecond, in one spelling: counters are named by it."""
    return f"{seconds:.6f}".rstrip("0").rstrip(".")


def dimension_of(text: str) -> str:
    """A dimension's one spelling: `API_KEY` is `apikey`."""
    return text.lower().replace("_", "").replace("-", "")


def is_method(text: str) -> bool:
    """Whether it can be the method of a request, in capitals."""
    return _METHOD.fullmatch(text) is not None


def is_tier(tier: object) -> bool:
    """Whether it can be the tier of a user."""
    return (
        isinstance(tier, str)
        and tier not in ("", ANY)
        and len(tier.encode("utf-8", "surrogatepass")) <= MOST_TIER_BYTES
    )


def _read(data: object, at: str, problems: Problems) -> Rule | None:
    fields = Fields(data, at, problems, RULE_FIELDS)
    if not isinstance(data, Mapping):
        return None
    before = len(problems.found)
    dimension = _dimension(fields)
    name = fields.text("name", None)
    rule = Rule(
        rule_id=_rule_id(fields, name),
        name=name or fields.values.get("rule_id") or "",
        dimension=dimension,
        limit=_count(fields),
        window_seconds=fields.seconds("window_seconds", required=True),
        identifier=_identifier(fields, dimension),
        endpoint_pattern=_pattern(fields),
        method=_method(fields),
        tier=fields.text("tier", ANY, most=MOST_TIER_BYTES),
        algorithm=_algorithm(fields),
        burst=fields.whole("burst", None, least=1),
        mode=fields.choice("mode", MODES, "enforce"),
        on_store_error=fields.choice("on_store_error", POLICIES, None),
        expires_us=read_moment(fields, "expires_at"),
        origin=_origin(fields),
    )
    if len(problems.found) > before:
        return None
    try:
        rule.compiled()
    except ConfigError as error:
        words = str(error)
        wrong = "window_seconds" if words.startswith("period") else "burst" if rule.burst is not None else "limit"
        fields.wrong(wrong, words.removeprefix("period "))
    return rule


def _dimension(fields: Fields) -> str:
    value = fields.values.get("dimension")
    if isinstance(value, str) and dimension_of(value) in DIMENSIONS:
        return dimension_of(value)
    fields.choice("dimension", DIMENSIONS, required=True)
    return ""


def _rule_id(fields: Fields, name: str | None) -> str:
    given = fields.text("rule_id", None, most=MOST_ID_BYTES)
    if given is not None:
        if given != given.strip() or not given.isprintable():
            fields.wrong("rule_id", "must not begin or end with a blank, nor hold a line break or the like")
        return str(given)
    if name is None:
        if not fields.given("rule_id") and not fields.given("name"):
            fields.wrong("rule_id", "is missing: write a rule_id such as 'orders-per-user', or a name to make it from")
        return ""
    made = re.sub(r"[^\w.]+", "-", name.lower()).strip("-")[: MOST_ID_BYTES // 4]
    if not made:
        fields.wrong("name", f"{name!r} has no letter or digit to make a rule_id from: write a rule_id")
    return made


def _count(fields: Fields) -> int:
    value = fields.values.get("limit")
    if isinstance(value, str):
        try:
            meant = Limit.parse(value)
        except ConfigError:
            pass
        else:
            instead = f"write limit: {meant.count}, window_seconds: {_seconds_text(float(meant.period))}"
            fields.wrong("limit", f"must be a number, not {value!r}: {instead}")
            return 0
    count: int = fields.whole("limit", required=True)
    return count


def _identifier(fields: Fields, dimension: str) -> str:
    identifier: str = fields.text("identifier", ANY)
    if identifier != ANY and dimension in ("api", "global"):
        instead = "write the path as endpoint_pattern" if dimension == "api" else "it counts all callers together"
        fields.wrong("identifier", f"a rule of dimension {dimension} has none: leave it out, {instead}")
    if dimension != "ip":
        return identifier
    address = subject_address(identifier)
    if "/" in address and not (":" in address and address.endswith("/64")):
        fields.wrong("identifier", f"must be one address, not the network {identifier!r}: write '*' for every address")
    return address


def _pattern(fields: Fields) -> str:
    text: str = fields.text("endpoint_pattern", EVERY)
    try:
        parse_pattern(text)
    except ConfigError as error:
        fields.wrong("endpoint_pattern", str(error))
    return text


def _method(fields: Fields) -> str:
    text: str = fields.text("method", ANY)
    if text == ANY or is_method(text.upper()):
        return text.upper()
    fields.wrong("method", f"must be a method such as GET or POST, or '*' for every one, not {text!r}")
    return ANY


def _algorithm(fields: Fields) -> str:
    value = fields.values.get("algorithm")
    if isinstance(value, str) and value.lower() in ALIASES:
        return ALIASES[value.lower()]
    found: str = fields.choice("algorithm", ALGORITHMS, DEFAULT_RULE_ALGORITHM)
    return found


def _origin(fields: Fields) -> Mapping[str, Any] | None:
    value = fields.values.get("origin")
    if value is not None and not isinstance(value, Mapping):
        fields.wrong("origin", "is written by Headgate: leave it out")
        return None
    # What nests deeper than any view writes is nobody's, and could not even be compared.
    return value if _nests(value) <= ORIGIN_DEPTH else None


def _nests(value: object, level: int = 0) -> int:
    """How deep a value nests, as far as that matters."""
    if level > ORIGIN_DEPTH or not isinstance(value, Mapping | list | tuple):
        return level
    inner = value.values() if isinstance(value, Mapping) else value
    return max((_nests(item, level + 1) for item in inner), default=level + 1)
