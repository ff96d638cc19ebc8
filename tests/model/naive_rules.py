"""An independent model of which rules apply: every rule is examined for every request, in the simplest code.

It shares no code with the library but the rules themselves and the spelling of paths (which has its own tests):
no trie, no tables by subject, no ranks. A pattern is matched by cutting it and the path into segments.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence

from crestgate.core.context import RequestContext
from crestgate.rules.rule import Rule

__all__ = ["Winner", "matches", "naive_chain", "spelled"]

ORDER = ("user", "apikey", "client", "ip", "key", "api", "global")
Winner = tuple[str, str]
"""The rule_id, and the key of its counter."""


def spelled(pattern: str) -> str:
    """A pattern in its canonical spelling."""
    if pattern in ("*", "**"):
        return "*"
    if "/" not in pattern:
        return pattern
    parts = cut(pattern)
    end = "/*" if parts and parts[-1] in ("*", "**") else ""
    if end:
        parts.pop()
    return "".join(f"/{'{}' if wild(part) else part}" for part in parts) + end or "/"


def matches(pattern: str, path: str | None) -> bool:
    """Whether a pattern is for a (normalised) path."""
    if pattern in ("*", "**"):
        return True
    if path is None:
        return False
    if "/" not in pattern or "/" not in path:
        return pattern == path
    wanted, given = cut(pattern), cut(path)
    if wanted and wanted[-1] in ("*", "**"):
        wanted.pop()
        if len(given) < len(wanted):
            return False
        given = given[: len(wanted)]
    return len(wanted) == len(given) and all(wild(w) or w == g for w, g in zip(wanted, given, strict=True))


def cut(path: str) -> list[str]:
    return [part for part in path.split("/") if part]


def wild(part: str) -> bool:
    return part == "*" or (part[0] == "{" and part[-1] == "}")


def naive_chain(
    rules: Sequence[Rule], context: RequestContext, tiers: Mapping[str, str], defaults: Iterable[Rule], now_us: int
) -> list[Winner]:
    """The chain of a request whose path is normalised and whose address has only one spelling."""
    tier = context.tier or tiers.get(context.user or "", "free")
    values = {
        "user": context.user,
        "apikey": context.api_key,
        "client": context.client,
        "ip": context.ip,
        "key": context.key,
        "api": context.path,
        "global": "",
    }
    values.update(context.attributes or {})
    alive = [r for r in rules if r.mode != "disabled" and (r.expires_us is None or r.expires_us > now_us)]
    apply = [
        rule
        for rule in alive
        if all(values.get(name) is not None for name in rule.dimensions)
        and all(wanted in ("*", values[name]) for name, wanted in zip(rule.dimensions, rule.identifiers, strict=True))
        and matches(rule.endpoint_pattern, context.path)
        and rule.method in ("*", context.method)
        and rule.tier in ("*", tier)
    ]
    winners = [rule for rule in apply if not any(beats(rival, rule) for rival in apply)]
    winners += joining(winners, alive, context, defaults)
    winners.sort(key=sort_key)
    return [(rule.rule_id, subject(rule, values)) for rule in winners]


def slot(rule: Rule) -> tuple[object, ...]:
    dimensions = frozenset(rule.dimensions)
    return rule.mode == "shadow", dimensions, spelled(rule.endpoint_pattern), rule.method, rule.window_seconds


def ordered(names: Iterable[str]) -> list[str]:
    """Built-in dimensions in their order, then others by name."""
    return [name for name in ORDER if name in names] + sorted(name for name in names if name not in ORDER)


def exact(rule: Rule) -> list[bool]:
    """Whether each dimension of a rule has an exact identifier."""
    identifiers = dict(zip(rule.dimensions, rule.identifiers, strict=True))
    return [identifiers[name] != "*" for name in ordered(identifiers)]


def bits(flags: Iterable[bool]) -> int:
    return int("".join(str(int(flag)) for flag in flags), 2)


def beats(rival: Rule, rule: Rule) -> bool:
    """Whether a rival for the same slot is more specific."""
    if slot(rival) != slot(rule):
        return False
    for criterion in (
        lambda r: sum(exact(r)),  # an exact identifier first, of several dimensions the most,
        lambda r: bits(identifier != "*" for identifier in r.identifiers),  # of as many what is written first,
        lambda r: bits(exact(r)),  # or what comes first in the order of dimensions,
        lambda r: r.tier != "*",  # then a tier,
        lambda r: r.expires_us is not None,  # and of equals the one that ends
    ):
        if criterion(rival) != criterion(rule):
            return bool(criterion(rival) > criterion(rule))
    return False


def joining(
    winners: Sequence[Rule], alive: Sequence[Rule], context: RequestContext, defaults: Iterable[Rule]
) -> list[Rule]:
    """The defaults of an unconfigured client, and of a key without a policy."""
    enforced = [rule for rule in alive if rule.mode == "enforce"]
    known = any(rule.dimension == "client" and rule.identifier == context.client for rule in enforced)
    policy = any(rule.dimension == "key" and rule.mode == "enforce" for rule in winners)
    taken = {slot(rule) for rule in winners}
    return [
        rule
        for rule in defaults
        if (rule.dimension == "client" and context.client is not None and not known and slot(rule) not in taken)
        or (rule.dimension == "key" and context.key is not None and not policy)
    ]


def sort_key(rule: Rule) -> tuple[object, ...]:
    """Shadows last; by dimension (own and several ones after the others), pattern, method, window."""
    shadow, _, pattern, method, window = slot(rule)
    position = ORDER.index(rule.dimension) if rule.dimension in ORDER else len(ORDER)
    return shadow, position, pattern, method, window, ",".join(ordered(rule.dimensions))


def subject(rule: Rule, values: Mapping[str, str | None]) -> str:
    if len(rule.dimensions) > 1:
        parts = []
        for name in ordered(rule.dimensions):
            pattern = spelled(rule.endpoint_pattern)
            value = pattern if name == "api" and pattern != "*" else str(values[name])
            parts.append(f"{name}:{'%2A' if value == '*' else value.replace('%', '%25').replace('|', '%7C')}")
        return "|".join(parts)
    if rule.dimension == "global":
        return "global"
    if rule.dimension == "api" and spelled(rule.endpoint_pattern) != "*":
        return f"api:{spelled(rule.endpoint_pattern)}"
    return f"{rule.dimension}:{values[rule.dimension]}"
