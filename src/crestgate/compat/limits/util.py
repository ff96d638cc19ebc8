"""The notation of `limits` (`10 per 2 minutes; 100/hour`), window statistics, and optional dependencies of storages."""

from __future__ import annotations

import importlib
import re
from collections import UserDict
from collections.abc import Mapping
from dataclasses import dataclass
from types import ModuleType
from typing import Any, ClassVar, NamedTuple

from crestgate.compat.limits.errors import ConfigurationError
from crestgate.compat.limits.limits import GRANULARITIES, RateLimitItem

__all__ = [
    "Dependency",
    "DependencyDict",
    "LazyDependency",
    "WindowStats",
    "granularity_from_string",
    "parse",
    "parse_many",
]

_SEPARATOR = re.compile("[,;|]")
_LIMIT = re.compile(r"\s*([0-9]+)\s*(?:/|per)\s*([0-9]+)?\s*([a-z]+)\s*", re.IGNORECASE)


class WindowStats(NamedTuple):
    """What a strategy's `get_window_stats` returns."""

    reset_time: float
    """When the window resets, in seconds since the epoch."""
    remaining: int
    """How many requests are left."""


def parse_many(limit_string: str) -> list[RateLimitItem]:
    """The limits of a text, separated by `,`, `;` or `|`; ValueError for what is not one.

    >>> parse_many("10 per 2 minutes; 100/hour")
    [10 per 2 minute, 100 per 1 hour]
    """
    if not isinstance(limit_string, str):
        raise ValueError(f"a rate limit is text such as '10 per 2 minutes; 100/hour', not {limit_string!r}")
    items = []
    for part in _SEPARATOR.split(limit_string):
        match = _LIMIT.fullmatch(part)
        if match is None:
            raise ValueError(
                f"cannot parse {part.strip()!r} in the rate limit {limit_string!r}: write AMOUNT/UNIT or "
                "AMOUNT per N UNIT, such as '10/minute' or '10 per 2 minutes'"
            )
        amount, multiples, unit = match.groups()
        items.append(granularity_from_string(unit)(int(amount), int(multiples or 1)))
    return items


def parse(limit_string: str) -> RateLimitItem:
    """The first limit of a text; ValueError for what is not one.

    >>> parse("1 / Second")
    1 per 1 second
    """
    return parse_many(limit_string)[0]


def granularity_from_string(granularity_string: str) -> type[RateLimitItem]:
    """The class of a unit's name, in singular or plural."""
    for granularity in GRANULARITIES.values():
        if granularity.check_granularity_string(granularity_string):
            return granularity
    raise ValueError(f"unknown unit {granularity_string!r}: there are {', '.join(GRANULARITIES)}")


@dataclass
class Dependency:
    """A package that a storage of your own uses. The versions have the type of `version_required`."""

    name: str
    version_required: Any
    version_found: Any
    module: ModuleType | None


class DependencyDict(UserDict[str, Dependency]):
    """Dependencies by name; ConfigurationError for one that is missing or too old, when it is looked up."""

    def __getitem__(self, key: str) -> Dependency:
        dependency = super().__getitem__(key)
        required = dependency.version_required
        if dependency.module is None:
            minimum = "" if required is None else f" A minimum version of {required} is required."
            raise ConfigurationError(f"{key!r} prerequisite not available.{minimum}")
        if required is not None and dependency.version_found < required:
            raise ConfigurationError(
                f"The minimum version of {required} for {key!r} could not be found. "
                f"Found version: {dependency.version_found}"
            )
        return dependency


class LazyDependency:
    """Base class of storages that import their packages when they are first used."""

    DEPENDENCIES: ClassVar[Mapping[str, Any] | list[str]] = []
    """Names of modules, or the minimum version (`packaging.version.Version`) of each."""

    @property
    def dependencies(self) -> DependencyDict:
        found: DependencyDict | None = self.__dict__.get("_dependencies")
        if found is None:
            names = self.DEPENDENCIES
            wanted = names if isinstance(names, Mapping) else dict.fromkeys(names)
            found = DependencyDict({name: _find(name, version) for name, version in wanted.items()})
            self.__dict__["_dependencies"] = found
        return found


def _find(name: str, required: Any) -> Dependency:
    try:
        module = importlib.import_module(name)
        root = importlib.import_module(name.partition(".")[0])
    except ImportError:
        return Dependency(name, required, None, None)
    version = getattr(root, "__version__", "0.0.0")
    return Dependency(name, required, version if required is None else type(required)(version), module)
