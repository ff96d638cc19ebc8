"""JSON structures of checks. They are not compiled, as mypyc cannot.

They also declare the OpenAPI of checks (see admin/check_models.py): `documented` adds a description, and bounds that
`forms` validates with messages of its own.

`gc=False` where a batch may have thousands: none of them refers back to itself, so the collector can skip it."""

from __future__ import annotations

from typing import Annotated, Any

import msgspec
from msgspec import UNSET, UnsetType

from crestgate.core.bounds import MAX_COST
from crestgate.core.dimensions import ATTRIBUTE_PATTERN, MAX_ATTRIBUTES

__all__ = [
    "BatchBody",
    "CheckBody",
    "ContextBody",
    "Counter",
    "CounterBody",
    "Counters",
    "DecisionBody",
    "DescriptorEntries",
    "EntryBody",
    "ExtendBody",
    "ExtensionResponse",
    "Failure",
    "ReservationBody",
    "ReservationResponse",
    "ResetBody",
    "SettleBody",
    "SettlementResponse",
    "VerifyBody",
]


def documented(description: str | None = None, **schema: Any) -> msgspec.Meta:
    """Documentation of a field: a description, and JSON schema that is not validated here."""
    return msgspec.Meta(description=description, extra_json_schema=schema)


Name = Annotated[str, msgspec.Meta(min_length=1)]
Key = Annotated[str, documented("1,024 bytes at most.", minLength=1)]
Count = Annotated[int, documented(minimum=0)]
REASONS = (
    *("ok", "limited", "cost_exceeds_limit", "blocked", "fail_open", "fail_closed", "fallback", "shadow", "no_rule"),
    "replayed",
)
Reason = Annotated[str, documented(enum=[*REASONS])]
COST = documented("How many units it takes; 1 by default.", minimum=0, maximum=MAX_COST, default=1)


class ContextBody(msgspec.Struct, forbid_unknown_fields=True, frozen=True, omit_defaults=True, gc=False):
    """The request to check; leave out what is not known. As the library's RequestContext."""

    ip: Name | None = None
    user: Name | None = None
    api_key: Name | None = None
    client: Name | None = None
    path: str | None = None
    method: Name | None = None
    tier: Annotated[Name | None, documented("Of the user, where the caller knows it better.")] = None
    key: Name | None = None
    attributes: Annotated[
        dict[str, Name] | None,
        documented(
            "Own dimensions by name, such as `org`.",
            maxProperties=MAX_ATTRIBUTES,
            propertyNames={"pattern": f"^{ATTRIBUTE_PATTERN}$"},
        ),
    ] = None


class CounterBody(msgspec.Struct, forbid_unknown_fields=True, frozen=True, omit_defaults=True, gc=False):
    """A key under a limit that is written out, or under all limits of a plan."""

    key: Key
    name: Annotated[str | None, documented("The limit itself by default.", minLength=1, maxLength=1024)] = None
    limit: Annotated[str | None, documented("Such as `100/minute`; this or `plan`.", maxLength=256)] = None
    plan: Annotated[str | None, documented("The name of a plan; only valid with key and cost.")] = None
    cost: Annotated[int, COST] = 1
    binds: Annotated[bool, documented("Whether it may deny; else it is counted beside the others.")] = True
    tick: Annotated[int, documented("Of `give_back`: that of the `take`.", minimum=0, maximum=2**53 - 1)] = 0
    amount: Annotated[
        int, documented("Of `give_back`: how much of the cost is returned.", minimum=0, maximum=MAX_COST)
    ] = 0
    token: Annotated[
        str | None,
        documented("Of `give_back` and `charge`: that of the `take`. Without one, scope `write`.", maxLength=200),
    ] = None


class CheckBody(msgspec.Struct, forbid_unknown_fields=True, omit_defaults=True):
    """One check. `forms` validates which of its fields go together."""

    dimension: Annotated[str | None, documented("USER, IP, API_KEY, CLIENT, KEY, API or GLOBAL, in any case.")] = None
    identifier: str | None = None
    endpoint: Annotated[str | None, documented("The path of the request, or an API's name.")] = None
    method: str | None = None
    context: ContextBody | None = None
    key: Key | None = None
    plans: Annotated[list[str] | None, documented(minItems=1, maxItems=20)] = None
    cost: Annotated[int | UnsetType, COST] = UNSET
    """Whether it was written must be known: see json_body.py."""
    timestamp: Annotated[float | None, documented("Unix seconds; only measured against the server's clock.")] = None
    op: str | None = None
    """In a batch: what is to be done, if it is not to take."""
    counters: Annotated[list[CounterBody] | None, documented(minItems=1, maxItems=100)] = None
    """In a batch."""


class BatchBody(msgspec.Struct, forbid_unknown_fields=True, omit_defaults=True):
    checks: Annotated[list[CheckBody], documented(maxItems=1000)]
    exact: Annotated[
        bool,
        documented(
            "Answer each check with all of its counters in whole numbers, and a check that cannot be decided with an "
            "error of its own."
        ),
    ] = False
    together: Annotated[
        list[tuple[int, int]] | None,
        documented(
            "With `exact`: ranges of checks, each from its first to the one after its last. If one check of a range is "
            "invalid, none of them is decided, and all have that error."
        ),
    ] = None


class ReservationBody(CheckBody):
    """A check, what each of its limits costs, and how long it is reserved."""

    costs: Annotated[
        dict[str, int] | None,
        documented(
            "The cost of each limit, by plan, rule_id or a rule's name; `cost` for all others.", maxProperties=100
        ),
    ] = None
    ttl: Annotated[
        float | None,
        documented(
            "Seconds until it ends; 300 by default. With in-flight limits at most the time to live of their slots, "
            "which is the default then.",
            minimum=1,
            maximum=86_400,
            default=300,
        ),
    ] = None
    on_expiry: Annotated[
        str,
        documented("What happens to it at its end if it is not settled.", enum=["keep", "release"]),
    ] = "keep"
    exact: Annotated[bool, documented("Answer with all counters in whole numbers, too.")] = False


class SettleBody(msgspec.Struct, forbid_unknown_fields=True, omit_defaults=True):
    actual: Annotated[
        int | dict[str, int],
        documented(
            "What was used: one number if all limits cost the same, or by plan or rule; others stay charged. "
            "Slots of in-flight limits are released, and not named."
        ),
    ]


class ExtendBody(msgspec.Struct, forbid_unknown_fields=True, omit_defaults=True):
    ttl: Annotated[float, documented("Seconds from now.", minimum=1, maximum=86_400)]


class EntryBody(msgspec.Struct, forbid_unknown_fields=True, omit_defaults=True):
    """An entry of an Envoy descriptor."""

    key: str | None = None
    value: str | None = None


class DescriptorEntries(msgspec.Struct, forbid_unknown_fields=True, omit_defaults=True):
    entries: list[EntryBody]


class ResetBody(CheckBody):
    """The counters to reset: those of a check, or of Envoy descriptors."""

    domain: str | None = None
    descriptors: list[DescriptorEntries] | None = None


class VerifyBody(msgspec.Struct, forbid_unknown_fields=True, omit_defaults=True):
    """A check in the format of the client API."""

    clientId: Name  # noqa: N815 - as it is spelled
    apiName: str | None = None  # noqa: N815
    methodName: Name | None = None  # noqa: N815


class DecisionBody(msgspec.Struct, gc=False):
    """The numbers of one decision, or of one of its parts."""

    allowed: bool
    limit: Count
    remaining: Count
    current_count: Annotated[int, documented("limit − remaining.", minimum=0)]
    reset_at: Annotated[int, documented("Unix seconds, rounded up.")]
    reset_after: Annotated[float, documented("Seconds until the counter is fully reset.", minimum=0)]
    retry_after: Annotated[float | None, documented("Seconds; null when allowed, and when no waiting helps.")]
    reason: Reason
    rule: Annotated[str | None, documented("Which rule or plan decided; null when there is none.")]
    state: Annotated[str, documented(enum=["normal", "warning", "throttled"])]
    delay: Annotated[float, documented("Seconds an admitted request should wait (leaky bucket).", minimum=0)]
    queue_position: Annotated[int | UnsetType, documented("Of leaky buckets only.", minimum=0, default=0)] = UNSET
    headers: Annotated[bool | UnsetType, documented("false: not for clients, so no header may show it.")] = UNSET
    parts: Annotated[list[DecisionBody] | UnsetType, documented("When several limits applied, in order.")] = UNSET
    shadows: Annotated[list[DecisionBody] | UnsetType, documented("What shadow rules would have said.")] = UNSET


class SettlementResponse(msgspec.Struct):
    settled: Annotated[bool, documented("false: nothing was reserved, because the store could not be reached then.")]
    late: Annotated[bool, documented("Whether it had ended before: then as much was changed as the limits allow.")]


class ExtensionResponse(msgspec.Struct):
    extended: Annotated[bool, documented("false: nothing was reserved, because the store could not be reached then.")]
    expires_at: Annotated[float, documented("Its new end, in Unix seconds.")]


class Counter(msgspec.Struct, omit_defaults=True, gc=False):
    """One counter in whole numbers, times in microseconds. `key` and what follows: unless the check has named it."""

    allowed: bool
    remaining: int
    wait: Annotated[
        int | None,
        documented("Until a denied request would pass, null for never; of an admitted one the units before it."),
    ]
    reset: int
    reason: Reason
    tick: int
    token: Annotated[
        str | UnsetType,
        documented("For `give_back` and `charge`, once, by the same caller; of counters that were charged."),
    ] = UNSET
    at: Annotated[int | UnsetType, documented("Which of the counters that the check has named.", default=0)] = UNSET
    key: str | UnsetType = UNSET
    name: str | UnsetType = UNSET
    label: str | UnsetType = UNSET
    limit: str | UnsetType = UNSET
    binds: bool | UnsetType = UNSET
    headers: Annotated[bool | UnsetType, documented("false: headers of responses must not show it.")] = UNSET


class Counters(msgspec.Struct):
    """With `exact`: all counters of a check; none where no rule applies."""

    counters: list[Counter]


class ReservationResponse(DecisionBody):
    """The decision; with an id and an end if it is allowed."""

    id: Annotated[str | UnsetType, documented("To settle, release or extend it.", maxLength=64)] = UNSET
    expires_at: Annotated[float | UnsetType, documented("Its end, in Unix seconds.")] = UNSET
    counters: Annotated[list[Counter] | UnsetType, documented("With `exact`: all counters in whole numbers.")] = UNSET


class Failure(msgspec.Struct):
    """With `exact`: why this check was not decided."""

    error: dict[str, Any]
