"""Reads what Envoy asks: which limits the descriptors of a request meet, and how many hits each of them takes.

A limit drops out where another one of the same request replaces it by name, also one that is unlimited itself. What
cannot be asked is a BadRequest that names the field, before anything is touched.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Final

from headgate.engine.bound import MAX_COST
from headgate.envoy.limits import Domains, Match
from headgate.service.data.bodies import wrong
from headgate.service.rpc.asked import BINDS, QUOTA, SHADOW, Asked
from headgate.service.rpc.field_counts import Repeated
from headgate.service.rpc.statuses import NO_LIMIT, NOT_LIMITED, current_limit

__all__ = [
    "DESCRIPTORS",
    "ENTRIES",
    "MOST_DESCRIPTORS",
    "MOST_ENTRIES",
    "MOST_RESET",
    "check_size",
    "read_request",
]

MOST_DESCRIPTORS: Final = 250
"""All of them are decided in one step, and everybody else waits for it."""
MOST_ENTRIES: Final = 10_000
"""Of all descriptors of a request. In a message of the usual bound there is room for many more, and everybody else
would wait while they are read."""
MOST_RESET: Final = 100
"""Descriptors whose counters are forgotten in one call. Each has a line in the audit log."""
DESCRIPTORS: Final = Repeated(2, "descriptors", MOST_DESCRIPTORS, "send fewer")
ENTRIES: Final = Repeated(1, "entries", MOST_ENTRIES, "send fewer")


def read_request(domains: Domains, message: Any) -> Asked:
    """What a RateLimitRequest asks. BadRequest for what cannot be, and nothing is touched."""
    domain: str = message.domain
    if not domain:
        raise wrong("domain", "must not be empty: name a domain of the Envoy limits")
    descriptors = message.descriptors
    check_size(descriptors, MOST_DESCRIPTORS)
    usual: int = message.hits_addend
    if usual > MAX_COST:
        raise wrong("hits_addend", f"must be a whole number from 0 to {MAX_COST}, not {usual}")
    usual = usual or 1
    matches: list[Match | None] = []
    hits: list[int] = []
    replaced: set[str] = set()
    for descriptor in descriptors:
        entries: list[tuple[str, str]] = [(entry.key, entry.value) for entry in descriptor.entries]
        if descriptor.HasField("limit"):
            match = _override(domains, domain, entries, descriptor.limit, len(matches))
        else:
            match = domains.match(domain, entries)
        if match is not None and match.limit.replaces:
            replaced |= match.limit.replaces
        told: int = descriptor.hits_addend.value if descriptor.HasField("hits_addend") else usual
        if told > MAX_COST:
            field = f"descriptors[{len(matches)}].hits_addend"
            raise wrong(field, f"must be a whole number from 0 to {MAX_COST}, not {told}")
        hits.append(-told if descriptor.is_negative_hits else told)
        matches.append(match)
    return _asked(message, matches, hits, replaced)


def check_size(descriptors: Sequence[Any], most: int) -> None:
    """Refuse more descriptors than may be, or more entries, before any of them is read."""
    count = len(descriptors)
    if not 0 < count <= most:
        raise wrong("descriptors", f"has {count} descriptors: send 1 to {most:,}")
    entries = 0
    for place in range(count):
        entries += len(descriptors[place].entries or ())
        if entries > MOST_ENTRIES:
            field = f"descriptors[{place}].entries"
            raise wrong(field, f"with these the request has more than {MOST_ENTRIES:,} entries: send fewer")


def _override(
    domains: Domains, domain: str, entries: Sequence[tuple[str, str]], limit: Any, place: int
) -> Match | None:
    try:
        return domains.override(domain, entries, limit.requests_per_unit, limit.unit)
    except ValueError as error:
        field, _, message = str(error).partition(" ")
        raise wrong(f"descriptors[{place}].limit.{field}", message) from None


def _asked(message: Any, matches: Sequence[Match | None], hits: Sequence[int], replaced: set[str]) -> Asked:
    asked = Asked()
    known: dict[tuple[str, str], int] = {}
    for place, match in enumerate(matches):
        limit = None if match is None else match.limit
        if match is None or limit is None:
            asked.free(NO_LIMIT)
            continue
        algorithm = limit.algorithm
        if algorithm is None:  # also where it is replaced
            asked.free(NOT_LIMITED)
            continue
        if limit.name and limit.name in replaced:
            asked.free(NO_LIMIT)
            continue
        if hits[place] < 0 and algorithm.keeps_log:
            raise wrong(
                f"descriptors[{place}].is_negative_hits",
                f"nothing can be given back to {limit.label}, since {algorithm.limit.algorithm} keeps single requests: "
                "use another algorithm for it",
            )
        kind = SHADOW if limit.shadow else QUOTA if limit.quota else BINDS
        counter = (match.key, algorithm.name)
        at = known.setdefault(counter, len(asked.members))
        if at == len(asked.members):
            asked.add(match, algorithm, hits[place], kind)
        else:
            asked.join(at, algorithm, hits[place], kind, f"descriptors[{place}]")
        asked.places.append(at)
        asked.heads.append(current_limit(limit))
        asked.denies.append(hits[place] >= 0 and not limit.shadow)
        asked.limits.append(limit)
        if limit.metadata is not None:
            asked.message = message
    asked.complete()
    return asked
