"""What `reserve` is called with: limits with a cost each, prepared as one check."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Final, Literal, NamedTuple, SupportsIndex, TypeAlias

from crestgate.core.algorithms import Algorithm
from crestgate.core.bounds import MAX_COST, check_input, whole_cost
from crestgate.core.context import ContextFields
from crestgate.core.plans import Limits
from crestgate.errors import ConfigError, input_error
from crestgate.limiter.pending_check import PendingCheck
from crestgate.stores.port import Member, Op
from crestgate.stores.server_side_limits import is_context, is_server_side

if TYPE_CHECKING:
    from crestgate.limiter.limiter_core import LimiterCore

__all__ = [
    "DEFAULT_TTL",
    "MAX_LIMITS",
    "MAX_TTL",
    "Costs",
    "OnExpiry",
    "PreparedReservation",
    "check_number",
    "check_terms",
    "check_ttl",
    "has_costs",
    "prepare_costs",
    "prepare_one_cost",
    "prepare_rule_costs",
    "slots_ttl_us",
    "take_slots",
    "ttl_within_slots",
    "with_rule_costs",
]

DEFAULT_TTL: Final = 300
MAX_TTL: Final = 86_400
MAX_LIMITS: Final = 100
"""Of one reservation: all of them are decided in one step, and everybody else waits for it."""
OnExpiry: TypeAlias = Literal["keep", "release"]

Costs: TypeAlias = "Mapping[str, SupportsIndex] | Sequence[tuple[Limits, SupportsIndex]]"
"""A cost for each limit: by the name of a plan, or as pairs of limits and a cost."""


class PreparedReservation(NamedTuple):
    """A check, and by which names each of its members is settled."""

    check: PendingCheck
    names: list[tuple[str, ...]]
    costs: Mapping[str, int] | None = None
    """By rule, for a service that matches the request itself."""


def check_terms(ttl: float | None, on_expiry: str) -> int | None:
    """Validate a time to live and an end policy; the time in microseconds, or None for the default."""
    if on_expiry not in ("keep", "release"):
        raise input_error(ValueError, "on_expiry", f"must be 'keep' or 'release', not {on_expiry!r}")
    return None if ttl is None else check_ttl(ttl)


def check_ttl(ttl: float) -> int:
    """Validate a time to live; in microseconds."""
    if isinstance(ttl, bool) or not isinstance(ttl, int | float) or not 1 <= ttl <= MAX_TTL:
        raise input_error(ValueError, "ttl", f"must be a number of seconds from 1 to {MAX_TTL:,}, not {ttl!r}")
    return round(ttl * 1_000_000)


def check_number(limits: int) -> None:
    """ValueError for more limits than one reservation may have."""
    if limits > MAX_LIMITS:
        raise input_error(
            ValueError, "limits", f"are more than {MAX_LIMITS}, which a reservation has at most: reserve fewer"
        )


def slots_ttl_us(algorithms: Iterable[Algorithm]) -> int | None:
    """How long slots of these limits live, at least, unless they are renewed; None without an in-flight limit."""
    return min((algorithm.limit.period_us for algorithm in algorithms if algorithm.holds), default=None)


def ttl_within_slots(ttl_us: int | None, algorithms: Iterable[Algorithm]) -> int:
    """The time to live of a reservation of these limits: None is the default. A slot that is not renewed ends by
    itself, and a reservation must not outlive it."""
    slots_us = slots_ttl_us(algorithms)
    if slots_us is None:
        return DEFAULT_TTL * 1_000_000 if ttl_us is None else ttl_us
    if ttl_us is None:
        return min(DEFAULT_TTL * 1_000_000, slots_us)
    # A second is the least that can be asked for, however soon the slots end.
    if ttl_us > max(slots_us, 1_000_000):
        seconds = f"{slots_us / 1_000_000:g}"
        raise input_error(
            ValueError,
            "ttl",
            f"must be at most {seconds} here, not {ttl_us / 1_000_000:g}: the slots of an in-flight limit live "
            f"{seconds} s; reserve for that long, and extend it while the work runs",
        )
    return min(ttl_us, slots_us)


def take_slots(check: PendingCheck) -> PendingCheck:
    """The check, which takes the slots of in-flight limits that it would only look at: a reservation releases them."""
    for member in check.members:
        member.peeks = False
    return check


def has_costs(limits: object) -> bool:
    """Whether limits are written with a cost each."""
    if isinstance(limits, Mapping):
        return True
    return isinstance(limits, list | tuple) and bool(limits) and isinstance(limits[0], list | tuple)


def prepare_one_cost(limiter: LimiterCore, key: str, limits: Limits, cost: SupportsIndex) -> PreparedReservation:
    """One cost for all limits."""
    check = limiter.resolve(limits).prepare_hold(key, cost)
    return PreparedReservation(check, [_names(member) for member in check.members])


def prepare_costs(limiter: LimiterCore, key: str, costs: Costs) -> PreparedReservation:
    """A cost for each limit. Bad input is a ValueError, limits that cannot be used are a ConfigError."""
    pairs: Iterable[tuple[Limits, SupportsIndex]] = costs.items() if isinstance(costs, Mapping) else costs
    members: list[Member] = []
    names: list[tuple[str, ...]] = []
    for pair in pairs:
        if not isinstance(pair, tuple | list) or len(pair) != 2:
            raise ConfigError(f"limits with a cost each are a list of (limits, cost), and this has {pair!r}")
        limits, cost = pair
        whole = _cost(cost, limits if isinstance(limits, str) else "cost")
        check_input(key, whole)
        for algorithm in limiter.resolve(limits).algorithms:
            member = Member(key, algorithm, whole)
            if any(other.algorithm.name == algorithm.name for other in members):
                raise ConfigError(f"the limit {algorithm.name!r} is reserved twice: give it one cost")
            members.append(member)
            check_number(len(members))  # here: each one is compared with all before it
            named = (limits,) if isinstance(limits, str) else ()
            names.append(tuple(dict.fromkeys((*named, *_names(member)))))
    if not members:
        raise ConfigError("a reservation needs at least one limit, and this one has none")
    server_side = any(is_server_side(member.algorithm) for member in members)
    check = PendingCheck(limiter.backend.pressure, Op.TAKE, members, None, key, None, server_side)
    return PreparedReservation(check, names)


def prepare_rule_costs(
    limiter: LimiterCore, context: ContextFields, costs: Mapping[str, SupportsIndex] | None, cost: SupportsIndex = 1
) -> PreparedReservation:
    """All rules that apply to a request: `costs` by rule_id or name, and `cost` for the others."""
    whole = {name: _cost(value, f"costs.{name}") for name, value in (costs or {}).items()}
    return with_rule_costs(limiter, limiter.prepare_request(Op.TAKE, context, cost), whole)


def with_rule_costs(
    limiter: LimiterCore, check: PendingCheck, costs: Mapping[str, int], *, by_rules: bool = True
) -> PreparedReservation:
    """The check with a cost for the limits that are named: by rule_id, or a rule's or counter's name. It takes slots of
    in-flight limits, too. `by_rules`: the limits come from rules, so a rule may be named that does not match."""
    take_slots(check)
    if any(is_context(member.algorithm) for member in check.members):
        return PreparedReservation(check, [("context",)], costs)
    rules = {} if limiter.evaluator is None or limiter.evaluator.catalog is None else limiter.catalog.current.rules
    names: list[tuple[str, ...]] = []
    for member in check.members:
        rule = rules.get(member.algorithm.label)
        names.append(tuple(dict.fromkeys((*_names(member), *(() if rule is None else (rule.name,))))))
        member.cost = next((costs[name] for name in names[-1] if name in costs), member.cost)
    unknown = set(costs).difference(*names)
    if unknown and by_rules:  # a rule that does not apply to this request costs nothing; others are a mistake
        unknown -= {name for rule_id, rule in rules.items() for name in (rule_id, rule.name)}
    for name in sorted(unknown):
        raise input_error(ValueError, f"costs.{name}", "is not the id or name of a limit of this request")
    return PreparedReservation(check, names)


def _names(member: Member) -> tuple[str, ...]:
    """A plan's limits are settled by the plan's name; those after the first have counters called `plan#2`."""
    algorithm = member.algorithm
    plan, mark, number = algorithm.name.rpartition("#")
    names = (plan,) if mark and number.isdigit() else ()
    return tuple(dict.fromkeys((*names, algorithm.label, algorithm.name)))


def _cost(cost: SupportsIndex, field: str) -> int:
    whole = whole_cost(cost, field)
    if not 0 <= whole <= MAX_COST:
        raise input_error(ValueError, field, f"must be a whole number from 0 to {MAX_COST}, not {cost!r}")
    return whole
