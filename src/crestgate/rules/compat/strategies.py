"""Strategies: one limit for every caller of a kind (`ip`, `api`, `apikey`, …), switched on and off in a file.

A strategy is a rule for every identifier and every path; several limits in it are as many rules.
"""

from __future__ import annotations

from collections.abc import Mapping

from crestgate.core.dimensions import DIMENSION_NAMES, parse_dimension
from crestgate.core.limit import Limit
from crestgate.errors import ConfigError
from crestgate.loader.fields import Fields, join_names
from crestgate.rules.rule import Rule

__all__ = ["STRATEGIES", "read_strategies", "rules_for_all"]

STRATEGIES = tuple(name for name in DIMENSION_NAMES if name != "key")


def read_strategies(fields: Fields, section: str = "strategies") -> list[tuple[str, Rule]]:
    """The rules of the section, each with its field path; errors are added to the problems."""
    found: list[tuple[str, Rule]] = []
    for field_path, name, data in fields.entries(section):
        dimension = parse_dimension(name)
        if dimension not in STRATEGIES:
            fields.problems.add(field_path, f"there is no such strategy: write one of {join_names(STRATEGIES)}")
            continue
        strategy = Fields(data, field_path, fields.problems, ("enabled", "limit"))
        enabled = strategy.boolean("enabled", True)
        text = strategy.text("limit", None)
        if text is None:
            if isinstance(data, Mapping) and not strategy.has("limit"):
                strategy.report("limit", "is missing: write a limit such as 100/minute")
            continue
        try:
            rules = rules_for_all(dimension, f"strategy:{dimension}", f"strategy {dimension}", text)
        except ConfigError as error:
            strategy.report("limit", str(error))
        else:
            found.extend((strategy.path("limit"), rule) for rule in rules if enabled)
    return found


def rules_for_all(dimension: str, rule_id: str, name: str, *notations: str) -> list[Rule]:
    """Rules with these limits for every caller of a dimension.

    >>> [(rule.rule_id, rule.limit, rule.window_seconds) for rule in rules_for_all("ip", "x", "x", "5/s; 100/min")]
    [('x', 5, 1.0), ('x#2', 100, 60.0)]
    """
    limits = [limit for text in notations for limit in Limit.parse_chain(text)]
    windows = [(limit.period_us, limit.unit, limit.zone) for limit in limits]
    if len(set(windows)) < len(windows):
        raise ConfigError("has two limits of one period, which would share a counter: write one of them")
    return [
        Rule(
            rule_id=rule_id if position == 1 else f"{rule_id}#{position}",
            name=name,
            dimension=dimension,
            limit=limit.count,
            window_seconds=float(limit.period),
            burst=limit.burst,
            algorithm=limit.algorithm,
            calendar=limit.unit,
            timezone=limit.zone,
        )
        for position, limit in enumerate(limits, 1)
    ]
