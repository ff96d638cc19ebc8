"""A rule: a limit, and the subjects and requests it is for. Policies, strategies and client limits are rules, too.

`Rule.read` validates a rule, and reports all errors in it. Rules compete within a *slot*: dimension, pattern, method
and window. Counters are named by the slot, never by the rule, so a new tier or an override keeps the usage.

`RULE_SPECS` declares the fields: reading, storage, responses and documentation are derived from it.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from functools import lru_cache
from hashlib import sha256
from typing import Any, overload

from crestgate.core.algorithms import ALGORITHMS
from crestgate.core.calendar_units import CALENDAR_UNITS, DEFAULT_ZONE
from crestgate.core.dimensions import DIMENSION_NAMES, MAX_PARTS, dimension_order, join_parts, split_parts
from crestgate.core.failure_policies import FAILURE_POLICIES
from crestgate.core.limit import CALENDAR_ALGORITHM, Limit, leasable_algorithms
from crestgate.core.store_names import STORE_NAME
from crestgate.errors import ConfigError
from crestgate.loader.fields import Fields, Problems, join_names
from crestgate.rules.dimension_fields import ANY, check_identifier, read_dimension, read_identifier
from crestgate.rules.matching.patterns import ANY_PATH, parse_pattern
from crestgate.rules.schema import (
    DATA,
    SECONDS,
    TIMESTAMP,
    FieldSpec,
    boolean,
    choice,
    request_schema,
    response_schema,
    text,
    text_or_list,
    whole,
)
from crestgate.rules.timestamps import format_timestamp

__all__ = [
    "ANY",
    "DEFAULT_RULE_ALGORITHM",
    "MODES",
    "RULE_FIELDS",
    "Rule",
    "is_method",
    "is_tier",
    "rule_body_schema",
    "rule_schema",
]

MODES = ("enforce", "shadow", "disabled")
DEFAULT_RULE_ALGORITHM = "sliding_window_counter"
ALIASES = {"sliding_window": "sliding_window_counter"}
MAX_ID_BYTES = 255
MAX_TIER_BYTES = 255
MAX_NAME_BYTES = 200
"""Of a counter's name: a longer one ends in a digest."""
ORIGIN_DEPTH = 2
_METHOD = re.compile(r"[A-Z][A-Z0-9_-]{0,31}")


@dataclass(frozen=True, slots=True)
class Rule:
    """One rule. Create it with `Rule.read`, which validates it."""

    rule_id: str
    name: str
    dimension: str
    """Its name; of a composite one the names of its parts, joined by commas: `org,model`."""
    limit: int
    window_seconds: float
    """The length of its window; that of the longest for a calendar window, whose data does not show it."""
    identifier: str = ANY
    """Of a composite dimension `*` for all, or an identifier or `*` for each part, as `join_parts` joins them."""
    endpoint_pattern: str = ANY_PATH
    method: str = ANY
    tier: str = ANY
    algorithm: str = DEFAULT_RULE_ALGORITHM
    burst: int | None = None
    mode: str = "enforce"
    on_store_error: str | None = None
    expires_us: int | None = None
    """When it expires, in microseconds since the epoch: `expires_at` in JSON and YAML."""
    store: str | None = None
    """The name of the store that its counters are in (`stores` of the settings); None for the default one."""
    calendar: str | None = None
    """The unit of a calendar window, such as `month`, in place of seconds."""
    timezone: str | None = None
    """The time zone of a calendar window."""
    headers: bool = True
    """Whether the headers of responses show it; without, it is not told to clients."""
    lease: bool = False
    """Whether processes decide from slices of it that they charge in advance: see limiter/leases.py."""
    origin: Mapping[str, Any] | None = field(default=None, hash=False)
    """The policy or client limit that it was written as, so that it can be returned as one."""
    created_us: int | None = field(default=None, compare=False)
    updated_us: int | None = field(default=None, compare=False)
    version: int = field(default=0, compare=False)
    """Incremented by each write; 0 where there is none."""
    validated: bool = field(default=False, init=False, compare=False, repr=False)
    """Set by `Rule.read`; a changed copy (`dataclasses.replace`) is validated again when it is written."""

    @overload
    @classmethod
    def read(cls, data: object, at: str = "") -> Rule: ...

    @overload
    @classmethod
    def read(cls, data: object, at: str, problems: Problems) -> Rule | None: ...

    @classmethod
    def read(cls, data: object, at: str = "", problems: Problems | None = None) -> Rule | None:
        """Read a rule from plain data. None if it is invalid, with the errors added to `problems`; without `problems`
        they are raised as ValidationError.

        >>> Rule.read({"name": "Orders per user", "dimension": "USER", "limit": 100, "window_seconds": 60}).rule_id
        'orders-per-user'
        """
        collected = Problems() if problems is None else problems
        before = len(collected.entries)
        rule = _read(data, at, collected)
        if problems is None:
            collected.raise_any()
        if rule is None or len(collected.entries) > before:
            return None
        object.__setattr__(rule, "validated", True)  # not shared yet
        return rule

    def to_data(self) -> dict[str, Any]:
        """As plain data, for JSON and YAML; `Rule.read` reads the same rule from it."""
        data = {spec.name: getattr(self, ATTRIBUTES.get(spec.name, spec.name)) for spec in RULE_SPECS}
        for name in ATTRIBUTES:
            data[name] = format_timestamp(data[name])
        if self.is_composite:
            data["dimension"] = list(self.dimensions)
            data["identifier"] = ANY if self.identifier == ANY else list(self.identifiers)
        for name, absent in OPTIONAL.items():
            if data[name] is absent:
                del data[name]
        if self.calendar is not None:
            del data["window_seconds"]
        if self.origin is not None:
            data["origin"] = dict(self.origin)
        return data

    def body(self) -> dict[str, Any]:
        """What a repository stores: all fields but the computed ones."""
        data = self.to_data()
        return {name: value for name, value in data.items() if name not in COMPUTED}

    @classmethod
    def stored(cls, body: object, version: int, created_us: int | None, updated_us: int | None) -> Rule:
        """The rule of a stored body."""
        rule = cls.read(body)
        for name, value in (("version", version), ("created_us", created_us), ("updated_us", updated_us)):
            object.__setattr__(rule, name, value)  # not shared yet
        return rule

    @property
    def is_composite(self) -> bool:
        """Whether it counts by several dimensions together."""
        return "," in self.dimension

    @property
    def dimensions(self) -> tuple[str, ...]:
        """Its dimensions, as they are written: one, or the parts of a composite one."""
        return split_parts(self.dimension) if self.is_composite else (self.dimension,)

    @property
    def identifiers(self) -> tuple[str, ...]:
        """The identifier of each dimension, or `*`."""
        if not self.is_composite:
            return (self.identifier,)
        return (ANY,) * len(self.dimensions) if self.identifier == ANY else split_parts(self.identifier)

    @property
    def parts(self) -> list[tuple[str, str]]:
        """Each dimension with its identifier, in the one order of a slot, however they are written."""
        pairs = zip(self.dimensions, self.identifiers, strict=True)
        return sorted(pairs, key=lambda pair: dimension_order(pair[0]))

    @property
    def slot_dimension(self) -> str:
        """The dimension of its slot: `[org, model]` and `[model, org]` are the same."""
        return ",".join([name for name, _ in self.parts]) if self.is_composite else self.dimension

    @property
    def counter(self) -> str:
        """The name of its counters: the slot's, so that all rules of a slot count in one. Shadow rules count apart."""
        kind = "shadow" if self.mode == "shadow" else "rule"
        window = self.window
        dimension = self.slot_dimension
        name = f"{kind}|{dimension}|{self.method}|{window}|{parse_pattern(self.endpoint_pattern).key}"
        if len(name.encode("utf-8", "surrogatepass")) <= MAX_NAME_BYTES:
            return name
        digest = sha256(name.encode("utf-8", "surrogatepass")).hexdigest()
        shortened = f"{kind}|{dimension}|{self.method}|{window}|*sha256:{digest}"  # no pattern looks like this
        return shortened if len(shortened) <= MAX_NAME_BYTES else f"{kind}|*sha256:{digest}"

    @property
    def window(self) -> str:
        """Its window, as part of the slot: seconds, or a calendar unit and a zone."""
        if self.calendar is not None:
            return f"calendar {self.calendar} in {self.timezone}"
        return _seconds_text(self.window_seconds)

    @property
    def unique_key(self) -> str | None:
        """Only one rule can have it: the slot, and how specific the rule is in it. None for a disabled rule.

        A rule that expires has a different key from one that does not, and wins until it expires.
        """
        if self.mode == "disabled":
            return None
        lasting = "lasts" if self.expires_us is None else "ends"
        identifier = join_parts([part for _, part in self.parts]) if self.is_composite else self.identifier
        return f"{self.counter}|{identifier!r}|{self.tier!r}|{lasting}"

    def compiled(self) -> Limit:
        """Its limit."""
        return _limit(
            self.limit, self.window_seconds, self.burst, self.algorithm, self.calendar, self.timezone, self.lease
        )


@lru_cache(maxsize=1024)
def _limit(
    count: int, seconds: float, burst: int | None, algorithm: str, unit: str | None, zone: str | None, lease: bool
) -> Limit:
    """Cached: many rules share a few limits."""
    return Limit(count, seconds, burst, algorithm, unit=unit, zone=zone, lease=lease)


def _seconds_text(seconds: float) -> str:
    """Seconds down to the microsecond, in one spelling: counters are named by it."""
    return f"{seconds:.6f}".rstrip("0").rstrip(".")


def is_method(text: str) -> bool:
    """Whether it can be the method of a request, in capitals."""
    return _METHOD.fullmatch(text) is not None


def is_tier(tier: object) -> bool:
    """Whether it can be the tier of a user."""
    return (
        isinstance(tier, str) and tier not in ("", ANY) and len(tier.encode("utf-8", "surrogatepass")) <= MAX_TIER_BYTES
    )


def _read(data: object, at: str, problems: Problems) -> Rule | None:
    fields = Fields(data, at, problems, RULE_FIELDS)
    if not isinstance(data, Mapping):
        return None
    before = len(problems.entries)
    values = {ATTRIBUTES.get(spec.name, spec.name): spec.read(fields) for spec in RULE_SPECS if not spec.computed}
    values["name"] = values["name"] or fields.values.get("rule_id") or ""
    values["identifier"] = check_identifier(fields, values["identifier"], values["dimension"])
    if values["calendar"] is not None:
        values.update(_calendar(fields, values["calendar"], values["algorithm"]))
    elif fields.has("timezone"):
        fields.report("timezone", "is for calendar windows: write calendar: day, or leave it out")
    if values["lease"]:
        _check_lease(fields, values["algorithm"])
    if len(problems.entries) > before:
        return None
    rule = Rule(**values)
    try:
        rule.compiled()
    except ConfigError as error:
        wrong = "window_seconds" if error.field == "period" else "burst" if rule.burst is not None else "limit"
        fields.report(wrong, error.reason)
    return rule


def _read_window(fields: Fields, spec: FieldSpec) -> float | None:
    is_calendar = fields.values.get("calendar") is not None
    if is_calendar and fields.values.get(spec.name) is not None:
        fields.report(spec.name, "is not allowed with calendar: leave one of them out")
    seconds: float | None = None if is_calendar else fields.seconds(spec.name, None, required=True)
    return seconds


def _read_timezone(fields: Fields, spec: FieldSpec) -> str | None:
    name: str | None = fields.text(spec.name, None, maximum=64)
    if name is None:
        return None
    from crestgate.core.calendar import parse_zone

    try:
        return parse_zone(name)
    except ConfigError as error:
        fields.report(spec.name, error.reason)
        return None


def _calendar(fields: Fields, unit: str, algorithm: str) -> dict[str, Any]:
    """The values that follow from a calendar window."""
    if fields.has("algorithm") and algorithm != CALENDAR_ALGORITHM:
        fields.report("algorithm", f"of a calendar window is {CALENDAR_ALGORITHM}, not {algorithm}: leave it out")
    values: dict[str, Any] = {"algorithm": CALENDAR_ALGORITHM, "window_seconds": float(CALENDAR_UNITS[unit])}
    return values if fields.has("timezone") else {**values, "timezone": DEFAULT_ZONE}


def _check_lease(fields: Fields, algorithm: str) -> None:
    if algorithm not in ALGORITHMS or ALGORITHMS[algorithm].can_lease:
        return
    default = "" if fields.has("algorithm") else ", the default of rules"
    others = join_names(leasable_algorithms())
    fields.report(
        "lease", f"is not possible with {algorithm}{default}: leave it out, or write algorithm: with one of {others}"
    )


def _read_rule_id(fields: Fields, spec: FieldSpec) -> str:
    given: str | None = fields.text(spec.name, None, maximum=MAX_ID_BYTES)
    if given is not None:
        if given != given.strip() or not given.isprintable():
            fields.report(spec.name, "must not begin or end with a space, nor have line breaks or control characters")
        return given
    name = fields.values.get("name")
    if fields.has(spec.name) or not isinstance(name, str) or not name:
        if not fields.has(spec.name) and name is None:
            fields.report(spec.name, "is missing: write a rule_id such as 'orders-per-user', or a name to make it from")
        return ""
    derived = re.sub(r"[^\w.]+", "-", name.lower()).strip("-")[: MAX_ID_BYTES // 4]
    if not derived:
        fields.report("name", f"{name!r} has no letter or digit to make a rule_id from: write a rule_id")
    return derived


def _read_limit(fields: Fields, spec: FieldSpec) -> int:
    value = fields.values.get(spec.name)
    if isinstance(value, str):
        try:
            parsed = Limit.parse(value)
        except ConfigError:
            pass
        else:
            instead = f"write limit: {parsed.count}, window_seconds: {_seconds_text(float(parsed.period))}"
            if parsed.unit is not None:
                instead = f"write limit: {parsed.count}, calendar: {parsed.unit}, timezone: {parsed.zone}"
            fields.report(spec.name, f"must be a number, not {value!r}: {instead}")
            return 0
    count: int = fields.integer(spec.name, required=True)
    return count


def _read_pattern(fields: Fields, spec: FieldSpec) -> str:
    pattern: str = fields.text(spec.name, spec.default)
    try:
        parse_pattern(pattern)
    except ConfigError as error:
        fields.report(spec.name, str(error))
    return pattern


def _read_method(fields: Fields, spec: FieldSpec) -> str:
    method: str = fields.text(spec.name, spec.default)
    if method == ANY or is_method(method.upper()):
        return method.upper()
    fields.report(spec.name, f"must be a method such as GET or POST, or '*' for every one, not {method!r}")
    return ANY


def _read_store(fields: Fields, spec: FieldSpec) -> str | None:
    name: str | None = fields.text(spec.name, None, maximum=64)
    if name is not None and not re.fullmatch(STORE_NAME, name):
        hint = "write the URL under stores in the settings, and its name here" if "://" in name else "write such as hot"
        fields.report(spec.name, f"must be the name of a store, of letters, digits, '_' and '-': {hint}")
        return None
    return name


def _read_origin(fields: Fields, spec: FieldSpec) -> Mapping[str, Any] | None:
    value: Mapping[str, Any] | None = DATA.read(fields, spec)
    # No policy or client limit nests deeper.
    return value if _nests(value) <= ORIGIN_DEPTH else None


def _nests(value: object, level: int = 0) -> int:
    """Nesting depth of a value, counted up to just above ORIGIN_DEPTH."""
    if level > ORIGIN_DEPTH or not isinstance(value, Mapping | list | tuple):
        return level
    inner = value.values() if isinstance(value, Mapping) else value
    return max((_nests(item, level + 1) for item in inner), default=level + 1)


TEXT = text()
COMPUTED_TEXT = "Set by Crestgate, ignored in requests."
RULE_SPECS = (
    FieldSpec("rule_id", replace(TEXT, read=_read_rule_id), "Derived from the name when absent."),
    FieldSpec("name", TEXT, "Display name; the rule_id when absent."),
    FieldSpec(
        "dimension",
        text_or_list(read_dimension, MAX_PARTS),
        f"What it limits: {', '.join(DIMENSION_NAMES)}, or the name of an attribute; a list of them counts by all "
        "together. Case does not matter; `API_KEY` is `apikey`.",
        required=True,
    ),
    FieldSpec(
        "identifier",
        text_or_list(read_identifier, MAX_PARTS),
        "One of that dimension, or `*` for all. For a list of dimensions `*`, or a list with one of these for each.",
        default=ANY,
    ),
    FieldSpec(
        "endpoint_pattern",
        replace(TEXT, read=_read_pattern),
        "`/users/*/orders`, `/api/**`, `/users/{id}`; `*` is every path.",
        default=ANY_PATH,
    ),
    FieldSpec("method", replace(TEXT, read=_read_method), "GET, POST, …, or `*`.", default=ANY),
    FieldSpec("tier", text(MAX_TIER_BYTES), "The user's tier, or `*`.", default=ANY),
    FieldSpec(
        "algorithm",
        choice(ALGORITHMS, ALIASES, closed=False),
        "`sliding_window_counter` by default, also spelled `sliding_window`.",
        default=DEFAULT_RULE_ALGORITHM,
    ),
    FieldSpec("limit", replace(whole(), read=_read_limit), "Maximum in the window; 0 blocks.", required=True),
    FieldSpec(
        "window_seconds",
        replace(SECONDS, read=_read_window),
        "Length of the window. Required, unless there is `calendar`.",
    ),
    FieldSpec(
        "calendar",
        choice(CALENDAR_UNITS),
        "In place of `window_seconds`: the unit of a calendar window. Its algorithm is `fixed_window`.",
    ),
    FieldSpec(
        "timezone",
        replace(text(64), read=_read_timezone),
        "Time zone of a calendar window, such as `Europe/Berlin`; `UTC` by default.",
    ),
    FieldSpec("burst", whole(minimum=1), "For buckets and gcra; the limit by default.", nullable=True),
    FieldSpec("mode", choice(MODES), "`enforce` by default; `shadow` only counts.", default="enforce"),
    FieldSpec("on_store_error", choice(FAILURE_POLICIES), "The service's setting by default.", nullable=True),
    FieldSpec(
        "store",
        replace(text(64), read=_read_store),
        "Where it counts: one of the settings' `stores`; the default store when absent.",
        nullable=True,
    ),
    FieldSpec(
        "headers",
        boolean(),
        "Whether rate limit headers show it: `true` by default; `false` keeps it from clients.",
        default=True,
    ),
    FieldSpec(
        "lease",
        boolean(),
        "Whether processes decide from slices of the limit that they charge in advance; `false` by default. For "
        "`token_bucket`, `fixed_window`, `gcra` and calendar windows.",
        default=False,
    ),
    FieldSpec("expires_at", TIMESTAMP, "When it expires: RFC 3339, or unix seconds.", nullable=True),
    FieldSpec("created_at", TIMESTAMP, f"{COMPUTED_TEXT} null for a rule of a file.", nullable=True, computed=True),
    FieldSpec("updated_at", TIMESTAMP, f"{COMPUTED_TEXT} null for a rule of a file.", nullable=True, computed=True),
    FieldSpec("version", whole(), f"{COMPUTED_TEXT} Send it in If-Match.", computed=True),
    FieldSpec(
        "origin",
        replace(DATA, read=_read_origin),
        "Set by Crestgate: the policy or client limit that the rule was written as.",
        nullable=True,
    ),
)
"""The declaration of a rule: the fields that are read, stored and returned, in the order of output."""
RULE_FIELDS = tuple(spec.name for spec in RULE_SPECS)
OPTIONAL = {"calendar": None, "timezone": None, "store": None, "headers": True, "lease": False, "origin": None}
"""Left out where they have this value."""
COMPUTED = frozenset(spec.name for spec in RULE_SPECS if spec.computed)
ATTRIBUTES = {"expires_at": "expires_us", "created_at": "created_us", "updated_at": "updated_us"}
"""Timestamp fields, and the attributes of a Rule that have them in microseconds."""
EXAMPLE = {
    "name": "Orders per user",
    "dimension": "user",
    "endpoint_pattern": "/api/v1/orders/*",
    "limit": 100,
    "window_seconds": 60,
}


def rule_body_schema() -> dict[str, Any]:
    """The JSON schema of a rule in a request."""
    return request_schema(RULE_SPECS, "A rule in a request. Omitted fields have their defaults.", EXAMPLE)


def rule_schema() -> dict[str, Any]:
    """The JSON schema of a rule in a response."""
    return response_schema(RULE_SPECS, "A rule in a response.", optional=["window_seconds", *OPTIONAL])
