"""Limit: a number of requests per period, and an algorithm."""

from __future__ import annotations

from dataclasses import dataclass, field
from difflib import get_close_matches
from fractions import Fraction
from math import isfinite

from crestgate.core.algorithms import ALGORITHMS, build
from crestgate.core.algorithms.algorithm import MAX_SAFE_INTEGER
from crestgate.core.calendar_units import CALENDAR_UNITS, DEFAULT_ZONE
from crestgate.core.notation import Notation, canonical, parse_chain
from crestgate.errors import ConfigError

__all__ = ["CALENDAR_ALGORITHM", "DEFAULT_ALGORITHM", "Limit", "leasable_algorithms", "unknown_algorithm"]

DEFAULT_ALGORITHM = "token_bucket"
CALENDAR_ALGORITHM = "fixed_window"


@dataclass(frozen=True, slots=True, repr=False)
class Limit:
    """`count` requests per `period` seconds, `burst` at once where the algorithm has bursts.

    Equal limits are equal and hash equal, whatever they are called: `name` only names the counter.

    >>> Limit(100, 60) == Limit.parse("100/minute")
    True
    >>> str(Limit(10, 30, burst=5, algorithm="gcra"))
    '10/30 seconds burst 5 using gcra'
    >>> Limit(10, 1, burst=10).burst is None      # as large as the count: the same limit as without
    True
    """

    count: int
    period: float | Fraction = field(compare=False)
    burst: int | None = None
    algorithm: str = DEFAULT_ALGORITHM
    name: str | None = field(default=None, compare=False)
    unit: str | None = field(default=None, kw_only=True)
    """The unit of a calendar window, such as `month`; None for a period in seconds. See `Limit.calendar`."""
    zone: str | None = field(default=None, kw_only=True)
    """The time zone of a calendar window."""
    lease: bool = field(default=False, kw_only=True, compare=False)
    """Whether processes decide from slices that they charge in advance. It changes where this limit is decided, and not
    what is counted: the same limit without leases has the same counter."""
    period_us: int = field(init=False)
    """The period in whole microseconds, which all arithmetic and equality use."""
    identity: object = field(default_factory=object, init=False, repr=False, compare=False)
    """Key of this object in caches: hashing or comparing a limit costs more than a check, and ignores its name. A copy,
    which has the same name, shares it."""

    def __post_init__(self) -> None:
        if self.unit is not None or self.zone is not None:
            self._check_calendar()
        kind = ALGORITHMS.get(self.algorithm)
        if kind is None:
            raise ConfigError(unknown_algorithm(self.algorithm))
        _check_integer("count", self.count, 0)
        object.__setattr__(self, "period_us", _microseconds(self.period))
        object.__setattr__(self, "period", self.period_us / 1_000_000)
        if self.burst is not None:
            if not kind.takes_burst:
                raise ConfigError(f"{self.algorithm} has no burst: leave it out, or use token_bucket or gcra")
            if self.count == 0:
                raise ConfigError("a limit of 0 blocks everything and takes no burst: leave it out")
            _check_integer("burst", self.burst, 1)
            if self.burst == self.count:
                object.__setattr__(self, "burst", None)
        if self.name is not None and (not isinstance(self.name, str) or not self.name):
            raise ConfigError(f"a limit's name must be text of at least one character, not {self.name!r}")
        if not isinstance(self.lease, bool):
            raise ConfigError.of("lease", f"must be true or false, not {self.lease!r}")
        if self.lease and not kind.can_lease:
            others = ", ".join(leasable_algorithms())
            raise ConfigError.of(
                "lease", f"is not possible with {self.algorithm}: leave it out, or use one of {others}"
            )
        build(self, "")  # ConfigError for what cannot be counted exactly

    def _check_calendar(self) -> None:
        from crestgate.core.calendar import parse_zone

        if not isinstance(self.unit, str) or self.unit not in CALENDAR_UNITS:
            units = ", ".join(CALENDAR_UNITS)
            raise ConfigError.of("unit", f"of a calendar window must be one of {units}, not {self.unit!r}")
        if self.algorithm != CALENDAR_ALGORITHM:
            raise ConfigError.of(
                "algorithm", f"of a calendar window is {CALENDAR_ALGORITHM}, not {self.algorithm!r}: leave it out"
            )
        if self.period != CALENDAR_UNITS[self.unit]:
            raise ConfigError.of(
                "period", "does not belong to the calendar unit: use Limit.calendar(count, unit, zone)"
            )
        object.__setattr__(self, "zone", parse_zone(DEFAULT_ZONE if self.zone is None else self.zone))

    @classmethod
    def calendar(
        cls, count: int, unit: str, zone: str = DEFAULT_ZONE, *, name: str | None = None, lease: bool = False
    ) -> Limit:
        """`count` requests in each civil minute, hour, day, week (from Monday), month, quarter or year of a time zone.

        Its `period` is the longest such window, apart from clock changes: 31 days for a month.

        >>> Limit.calendar(50, "day", "Europe/Berlin") == Limit.parse("50/calendar day in Europe/Berlin")
        True
        """
        period = CALENDAR_UNITS.get(unit, 1) if isinstance(unit, str) else 1
        return cls(count, period, None, CALENDAR_ALGORITHM, name, unit=unit, zone=zone, lease=lease)

    @classmethod
    def parse(cls, text: str) -> Limit:
        """Read one limit: `COUNT (/ | per) [N] UNIT [burst B] [using ALGORITHM]`,
        `COUNT (/ | per) calendar UNIT [in ZONE]`, or `COUNT concurrent [ttl [N] UNIT]`.

        >>> Limit.parse("10 per 30 seconds burst 5 using gcra")
        Limit(10, 30.0, burst=5, algorithm='gcra')
        >>> Limit.parse("20 concurrent") == Limit(20, 60, algorithm="concurrency")
        True
        """
        limits = cls.parse_chain(text)
        if len(limits) > 1:
            raise ConfigError(f"{text!r} is {len(limits)} limits; exactly one is expected")
        return limits[0]

    @classmethod
    def parse_chain(cls, text: str, default_algorithm: str = DEFAULT_ALGORITHM) -> tuple[Limit, ...]:
        """Read one or several limits separated by `;` or `,`. The default is for those that name no algorithm.

        >>> Limit.parse_chain("5/s; 1000/day using fixed_window")
        (Limit(5, 1.0), Limit(1000, 86400.0, algorithm='fixed_window'))
        """
        return tuple(cls._read(text, notation, default_algorithm) for notation in parse_chain(text))

    @classmethod
    def _read(cls, text: str, notation: Notation, default_algorithm: str) -> Limit:
        try:
            if notation.calendar_unit is not None:
                return cls(
                    notation.count,
                    CALENDAR_UNITS[notation.calendar_unit],
                    notation.burst,
                    notation.algorithm or CALENDAR_ALGORITHM,
                    unit=notation.calendar_unit,
                    zone=notation.zone,
                )
            return cls(
                notation.count,
                Fraction(notation.period_us, 1_000_000),
                notation.burst,
                notation.algorithm or default_algorithm,
            )
        except ConfigError as error:
            raise ConfigError(notation.show(text, str(error))) from None

    @property
    def capacity(self) -> int:
        """Maximum use at one time: the burst, or else the count."""
        return self.count if self.burst is None else self.burst

    def __str__(self) -> str:
        if self.unit is not None:
            return f"{self.count}/{self._calendar_text()}"
        algorithm = None if self.algorithm == DEFAULT_ALGORITHM else self.algorithm
        return canonical(self.count, self.period_us, self.burst, algorithm)

    def _calendar_text(self) -> str:
        return f"calendar {self.unit}" if self.zone == DEFAULT_ZONE else f"calendar {self.unit} in {self.zone}"

    def __repr__(self) -> str:
        if self.unit is not None:
            extra = f", name={self.name!r}" if self.name is not None else ""
            extra += ", lease=True" if self.lease else ""
            return f"Limit.calendar({self.count}, {self.unit!r}, {self.zone!r}{extra})"
        extra = f", burst={self.burst}" if self.burst is not None else ""
        extra += f", algorithm={self.algorithm!r}" if self.algorithm != DEFAULT_ALGORITHM else ""
        extra += f", name={self.name!r}" if self.name is not None else ""
        extra += ", lease=True" if self.lease else ""
        return f"Limit({self.count}, {self.period!r}{extra})"


def leasable_algorithms() -> list[str]:
    """The algorithms whose limits can be leased."""
    return [name for name, kind in ALGORITHMS.items() if kind.can_lease]


def unknown_algorithm(name: object) -> str:
    close = get_close_matches(str(name), ALGORITHMS, n=1)
    hint = f"did you mean {close[0]!r}? " if close else ""
    return f"unknown algorithm {name!r}: {hint}there are {', '.join(ALGORITHMS)}"


def _check_integer(field: str, value: object, minimum: int) -> None:
    if not isinstance(value, int) or isinstance(value, bool) or value < minimum:
        raise ConfigError.of(field, f"must be a whole number of at least {minimum}, not {value!r}")
    if value > MAX_SAFE_INTEGER:
        raise ConfigError.of(field, f"is too large to count exactly: it may be {MAX_SAFE_INTEGER} at most")


def _microseconds(period: float | Fraction) -> int:
    number = isinstance(period, int | float | Fraction) and not isinstance(period, bool)
    if not number or (isinstance(period, float) and not isfinite(period)) or period <= 0:
        raise ConfigError.of("period", f"must be a number of seconds above 0, not {period!r}")
    whole_seconds = isinstance(period, int) or (isinstance(period, float) and period.is_integer())
    exact = None if whole_seconds else Fraction(period) * 1_000_000  # slower than the rest of a Limit
    whole = int(period) * 1_000_000 if exact is None else round(exact)
    if whole > MAX_SAFE_INTEGER:
        raise ConfigError.of(
            "period", f"is too long to count exactly: it may be {MAX_SAFE_INTEGER // 1_000_000} seconds at most"
        )
    # A float such as 0.1 is not exact; accept a difference of a thousandth of a microsecond.
    if exact is not None and (whole < 1 or abs(exact - whole) > max(Fraction(1, 1000), exact / 10**12)):
        raise ConfigError.of("period", f"must be a whole number of microseconds (0.000001 s), not {period!r} s")
    return whole
