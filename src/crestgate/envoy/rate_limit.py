"""One compiled `rate_limit` of the YAML.

The counter is named by its period alone (`envoy:60`): a changed count keeps what was used, a changed period starts
a new counter, and an override in a request shares the counter of a configured one of the same period.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Final

from crestgate.core.algorithms import Algorithm, build
from crestgate.core.limit import Limit

__all__ = ["DEFAULT_ALGORITHM", "MAX_REQUESTS", "UNITS", "UNIT_NUMBERS", "DescriptorLimit", "compile_limit"]

DEFAULT_ALGORITHM: Final = "fixed_window"
"""The algorithm of envoyproxy/ratelimit. Rules have another default."""
MAX_REQUESTS: Final = 2**32 - 1
"""The maximum of the protocol."""
UNITS: Final[dict[str, int]] = {
    "second": 1,
    "minute": 60,
    "hour": 3_600,
    "day": 86_400,
    "week": 7 * 86_400,
    "month": 30 * 86_400,
    "year": 365 * 86_400,
}
"""Seconds, by the name."""
UNIT_NUMBERS: Final[dict[int, int]] = {
    1: UNITS["second"],
    2: UNITS["minute"],
    3: UNITS["hour"],
    4: UNITS["day"],
    5: UNITS["month"],
    6: UNITS["year"],
    7: UNITS["week"],
}
"""Seconds, by the number that the protocol has for the unit."""
_NUMBERS = {seconds: number for number, seconds in UNIT_NUMBERS.items()}


@dataclass(frozen=True, slots=True)
class DescriptorLimit:
    """The limit of a descriptor."""

    algorithm: Algorithm | None
    """None: unlimited."""
    label: str
    """Its name in metrics and headers: the path to it in the YAML, `messaging.message_type_marketing.to_number`. Never
    with values of a request."""
    name: str = ""
    """The name by which another limit can replace it; may be empty."""
    replaces: frozenset[str] = frozenset()
    shadow: bool = False
    quota: bool = False
    requests_per_unit: int = 0
    unit: int = 0
    """The number of its period in the protocol (UNIT_NUMBERS); 0 for other periods."""
    metadata: Mapping[str, Any] | None = None
    charge_beyond_limit: bool | None = None
    """Whether hits that do not fit are charged as a debt; None: those that a descriptor has of its own."""
    headers: bool = True
    """Whether headers show it, and statuses have its numbers, of which Envoy makes headers."""


def compile_limit(
    requests: int,
    seconds: int,
    algorithm: str,
    label: str,
    burst: int | None = None,
    separate_counter: bool = False,
    headers: bool = True,
    lease: bool = False,
) -> tuple[Algorithm, int]:
    """A limit's algorithm, and the number of its unit. ConfigError if it cannot be counted exactly. With
    `separate_counter` its counter is not shared with limits of another number; without `headers` none shows it; with
    `lease` it is decided from slices that are charged in advance.

    >>> algorithm, unit = compile_limit(5, 86_400, "fixed_window", "messaging.to_number")
    >>> algorithm.name, algorithm.label, unit
    ('envoy:86400', 'messaging.to_number', 4)
    """
    limit = Limit(requests, seconds, burst, algorithm, lease=lease)
    name = f"envoy:{seconds}:{requests}" if separate_counter else f"envoy:{seconds}"
    compiled = build(limit, name, label)
    compiled.in_headers = headers
    return compiled, _NUMBERS.get(seconds, 0)
