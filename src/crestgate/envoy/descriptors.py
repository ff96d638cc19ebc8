# mypyc: compile
"""Reads RateLimitRequests: the limits that their descriptors match, and the hits of each.

A limit is omitted if another one of the same request replaces it by name, even an unlimited one.

Hits that a proxy reports after the response (`apply_on_stream_done`) arrive as an ordinary request, without any mark.
What tells them apart is that they have a number of their own: the descriptor's `hits_addend`, which plain requests do
not have. So these are charged beyond the limit, unless the limit, its domain or the settings say otherwise.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Final

from crestgate.core.bounds import MAX_COST
from crestgate.envoy.matcher import Domains, Match
from crestgate.envoy.request import BINDS, QUOTA, SHADOW, RateLimitCheck
from crestgate.envoy.response import NO_LIMIT, NOT_LIMITED, current_limit
from crestgate.errors import InvalidRequestError, field_of
from crestgate.protobuf.field_counts import Repeated

__all__ = [
    "DESCRIPTORS",
    "ENTRIES",
    "MAX_DESCRIPTORS",
    "MAX_ENTRIES",
    "MAX_RESET",
    "check_size",
    "read_request",
]

MAX_DESCRIPTORS: Final = 250
"""They are decided in one step, which delays all other requests."""
MAX_ENTRIES: Final = 10_000
"""Of all descriptors of a request. A message of the maximum size could have many more, and reading them would delay all
other requests."""
MAX_RESET: Final = 100
"""Descriptors whose counters are reset in one call. Each has an audit entry."""
DESCRIPTORS: Final = Repeated(2, "descriptors", MAX_DESCRIPTORS, "send fewer")
ENTRIES: Final = Repeated(1, "entries", MAX_ENTRIES, "send fewer")


def read_request(domains: Domains, message: Any, charge_beyond: bool | None = None) -> RateLimitCheck:
    """A RateLimitRequest, prepared; InvalidRequestError for one that is invalid. `charge_beyond` is for limits that do
    not say whether hits beyond them are charged; None: if the descriptor has hits of its own."""
    domain: str = message.domain
    if not domain:
        raise InvalidRequestError("domain", "must not be empty: name a domain of the Envoy limits")
    descriptors = message.descriptors
    check_size(descriptors, MAX_DESCRIPTORS)
    default_hits: int = message.hits_addend
    if default_hits > MAX_COST:
        raise InvalidRequestError("hits_addend", f"must be a whole number from 0 to {MAX_COST}, not {default_hits}")
    default_hits = default_hits or 1
    matches: list[Match | None] = []
    hits: list[int] = []
    beyond: list[bool] = []
    replaced: set[str] = set()
    for descriptor in descriptors:
        entries: list[tuple[str, str]] = [(entry.key, entry.value) for entry in descriptor.entries]
        if descriptor.HasField("limit"):
            match = _override(domains, domain, entries, descriptor.limit, len(matches))
        else:
            match = domains.match(domain, entries)
        if match is not None and match.limit.replaces:
            replaced |= match.limit.replaces
        own_hits: bool = descriptor.HasField("hits_addend")
        count: int = descriptor.hits_addend.value if own_hits else default_hits
        if count > MAX_COST:
            field = f"descriptors[{len(matches)}].hits_addend"
            raise InvalidRequestError(field, f"must be a whole number from 0 to {MAX_COST}, not {count}")
        hits.append(-count if descriptor.is_negative_hits else count)
        charged = charge_beyond if match is None else match.limit.charge_beyond_limit
        charged = charge_beyond if charged is None else charged
        beyond.append(hits[-1] > 0 and (own_hits if charged is None else charged))
        matches.append(match)
    return _check(message, matches, hits, beyond, replaced)


def check_size(descriptors: Sequence[Any], max_count: int) -> None:
    """InvalidRequestError for too many descriptors or entries, before any of them is read."""
    count = len(descriptors)
    if not 0 < count <= max_count:
        raise InvalidRequestError("descriptors", f"has {count} descriptors: send 1 to {max_count:,}")
    entries = 0
    for index in range(count):
        entries += len(descriptors[index].entries or ())
        if entries > MAX_ENTRIES:
            field = f"descriptors[{index}].entries"
            raise InvalidRequestError(field, f"the request has more than {MAX_ENTRIES:,} entries: send fewer")


def _override(
    domains: Domains, domain: str, entries: Sequence[tuple[str, str]], limit: Any, index: int
) -> Match | None:
    try:
        return domains.override(domain, entries, limit.requests_per_unit, limit.unit)
    except ValueError as error:
        field, message = field_of(error)
        raise InvalidRequestError(f"descriptors[{index}].limit.{field}", message) from None


def _check(
    message: Any, matches: Sequence[Match | None], hits: Sequence[int], beyond: Sequence[bool], replaced: set[str]
) -> RateLimitCheck:
    check = RateLimitCheck()
    indexes: dict[tuple[str, str], int] = {}
    for position, match in enumerate(matches):
        limit = None if match is None else match.limit
        if match is None or limit is None:
            check.add_unlimited(NO_LIMIT)
            continue
        algorithm = limit.algorithm
        if algorithm is None:  # also if it is replaced
            check.add_unlimited(NOT_LIMITED)
            continue
        if limit.name and limit.name in replaced:
            check.add_unlimited(NO_LIMIT)
            continue
        if hits[position] < 0 and algorithm.keeps_log:
            raise InvalidRequestError(
                f"descriptors[{position}].is_negative_hits",
                f"hits cannot be given back to {limit.label}: {algorithm.limit.algorithm} logs single requests; "
                "use another algorithm for it",
            )
        kind = SHADOW if limit.shadow else QUOTA if limit.quota else BINDS
        index = indexes.setdefault((match.key, algorithm.name), len(check.members))
        if index == len(check.members):
            check.add(match, algorithm, hits[position], kind)
        else:
            check.merge(index, algorithm, hits[position], kind, f"descriptors[{position}]")
        if beyond[position] and algorithm.capacity:
            check.beyond[index] = True
        check.indexes.append(index)
        check.encoded_limits.append(current_limit(limit))
        check.denies.append(hits[position] >= 0 and not limit.shadow)
        check.limits.append(limit)
        if limit.metadata is not None:
            check.message = message
    check.complete()
    return check
