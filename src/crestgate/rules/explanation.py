"""Why each rule applies to a request, lost its slot, or does not match.

An operator asks why one request was denied, and needs every rule that was considered, not only those that decided. What
applies is taken from `RuleSet.resolve`, as checks take it, so an explanation cannot disagree with a check. Only the
reasons of all other rules are derived here, from the same tables of matching patterns and the same subjects.

A rule set may have 100,000 rules. So they are examined some at a time (`RuleScan.advance`), and only the nearest are
kept: those that match first, then those that miss the request by little. Rules for other identifiers come last: there
may be one for each user.
"""

from __future__ import annotations

from bisect import insort
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import islice
from typing import Final, Literal, final

from crestgate.core.context import ContextFields
from crestgate.core.dimensions import DIMENSIONS
from crestgate.core.redaction import digest_api_key
from crestgate.rules.compiled_rule import CompiledRule
from crestgate.rules.matching.paths import readings
from crestgate.rules.matching.patterns import ANY_PATH, name_pattern, parse_pattern
from crestgate.rules.matching.trie import Trie, TrieEditor
from crestgate.rules.rule import ANY, Rule
from crestgate.rules.rule_table import RuleTable
from crestgate.rules.ruleset import ResolvedRule, RuleSet
from crestgate.rules.timestamps import format_timestamp

__all__ = ["MAX_RULES", "Explanation", "RuleScan", "RuleStatus", "RuleVerdict", "explain_rules", "shown_identifiers"]

RuleStatus = Literal["applies", "lost", "shadow", "not_matched"]
MAX_RULES: Final = 200
"""Rules of one explanation."""
MAX_SHOWN: Final = 64
"""Characters of a request's value in a reason: callers make them up."""

DISABLED, EXPIRED, TIER, METHOD, PATH, NO_VALUE, IDENTIFIER = (1 << bit for bit in range(7))
WEIGHTS: Final = {DISABLED: 1, EXPIRED: 1, TIER: 2, METHOD: 3, PATH: 4, NO_VALUE: 6, IDENTIFIER: 20}
"""How far each mismatch puts a rule from the request."""
DISTANCES: Final = [sum(weight for bit, weight in WEIGHTS.items() if mask & bit) for mask in range(1 << len(WEIGHTS))]
ATTRIBUTES: Final = {one.name: one.attribute or one.name for one in DIMENSIONS}


@final
@dataclass(frozen=True, slots=True)
class RuleVerdict:
    """What became of one rule."""

    rule: Rule
    status: RuleStatus
    reason: str
    lost_to: str | None = None
    """The rule_id of the winner of its slot, for a rule that lost."""


@final
@dataclass(frozen=True, slots=True)
class Explanation:
    """The verdicts on the rules that are nearest to a request. The first ones are those that apply, in the order of the
    chain, shadow rules after the binding ones."""

    verdicts: Sequence[RuleVerdict]
    considered: int
    """Rules that were examined."""

    @property
    def truncated(self) -> bool:
        """Whether some rules were left out."""
        return self.considered > len(self.verdicts)


def explain_rules(
    rules: RuleSet, context: ContextFields, now_us: int, chosen: Sequence[ResolvedRule] | None = None
) -> Explanation:
    """Examine all rules at once. `chosen` is what `rules.resolve` has returned, if the caller has that."""
    scan = RuleScan(rules, context, now_us, rules.resolve(context, now_us) if chosen is None else chosen)
    while scan.advance(len(rules.rules) + 1):
        pass
    return scan.result()


@final
class RuleScan:
    """Examines the rules of one rule set, some at a time."""

    def __init__(
        self,
        rules: RuleSet,
        context: ContextFields,
        now_us: int,
        chosen: Sequence[ResolvedRule],
        max_rules: int = MAX_RULES,
    ) -> None:
        self._rules = rules
        self._now_us = now_us
        self._max_rules = max_rules
        self._chosen = [entry for _, entry in chosen]
        self._winners = {entry.counter: entry for entry in self._chosen}
        self._path = context.path
        self._method = None if context.method is None else context.method.upper()
        self._tier = rules.tier_of(context)
        self._spellings = [] if self._path is None else readings(self._path)
        self._subjects = rules.keys(context, self._spellings[0] if self._spellings else self._path)
        tables = rules.tables(self._path, self._spellings)
        self._patterns = {pattern for pattern in map(_pattern_of, tables) if pattern is not None}
        """Keys of the patterns that match the path."""
        self._left = iter(rules.rules.values())
        self._beaten: dict[str, int] = {}
        """Rules that lost, by slot."""
        self._lost: list[CompiledRule] = []
        self._missed: dict[int, list[tuple[Rule, int]]] = {}
        """Rules that do not match and their mismatches, by distance; as many as may be shown of each, by their ids:
        another process may have read the rules in another order."""

    def advance(self, count: int) -> bool:
        """Examine this many more rules; whether there may be more."""
        examined = 0
        for rule in islice(self._left, count):
            examined += 1
            entry = self._rules.entries.get(rule.rule_id)
            mismatches = self._mismatches(rule, entry)
            if mismatches:
                same = self._missed.setdefault(DISTANCES[mismatches], [])
                insort(same, (rule, mismatches), key=lambda one: one[0].rule_id)
                del same[self._max_rules :]
            elif entry is not None and self._winners[entry.counter] is not entry:
                self._beaten[entry.counter] = self._beaten.get(entry.counter, 0) + 1
                insort(self._lost, entry, key=lambda one: one.rule.rule_id)
                del self._lost[self._max_rules :]
        return examined == count

    def result(self) -> Explanation:
        """The verdicts, after all rules were examined."""
        verdicts = [self._applies(entry) for entry in self._chosen[: self._max_rules]]
        verdicts += [self._lost_to(entry) for entry in self._lost[: self._max_rules - len(verdicts)]]
        for distance in sorted(self._missed):
            room = self._max_rules - len(verdicts)
            verdicts += [self._not_matched(rule, bits) for rule, bits in self._missed[distance][:room]]
        rules = self._rules.rules
        defaults = sum(self._rules.entries.get(entry.rule.rule_id) is not entry for entry in self._chosen)
        return Explanation(verdicts, len(rules) + defaults)

    def _mismatches(self, rule: Rule, entry: CompiledRule | None) -> int:
        """A bit for each reason why a rule does not match; 0 if it does."""
        bits = 0
        for name, identifier in zip(rule.dimensions, rule.identifiers, strict=True):
            subject = self._subjects.get(name)
            if subject is None:
                bits |= NO_VALUE
            elif identifier != ANY and subject != f"{name}:{identifier}":
                bits |= IDENTIFIER
        if entry is None:
            bits |= DISABLED
        pattern = parse_pattern(rule.endpoint_pattern).key if entry is None else str(entry.order[1])
        if pattern not in self._patterns and (entry is not None or not self._is_matched(rule)):
            bits |= PATH
        if rule.expires_us is not None and rule.expires_us <= self._now_us:
            bits |= EXPIRED
        if rule.method not in (ANY, self._method):
            bits |= METHOD
        if rule.tier not in (ANY, self._tier):
            bits |= TIER
        return bits

    def _is_matched(self, rule: Rule) -> bool:
        """Whether the path matches the pattern of a disabled rule, which is in no table."""
        pattern = parse_pattern(rule.endpoint_pattern)
        if pattern.segments is None:
            return pattern.key == ANY_PATH or (self._path is not None and pattern.key == name_pattern(self._path))
        editor: TrieEditor[bool] = TrieEditor(Trie())
        editor.put(pattern, True)
        trie = editor.done()
        return any(trie.matches(spelling) for spelling in self._spellings)

    def _applies(self, entry: CompiledRule) -> RuleVerdict:
        rule = entry.rule
        if entry is self._rules.default_policy:
            return RuleVerdict(rule, "applies", "the default policy: no policy is for this key")
        if entry in self._rules.default_clients:
            return RuleVerdict(rule, "applies", "the default limit of clients that are not configured")
        reason = f"is for {_scope_of(entry)}"
        if rule.expires_us is not None:
            reason += f" until {format_timestamp(rule.expires_us)}"
        beaten = self._beaten.get(entry.counter, 0)
        if beaten:
            reason += f"; wins over {beaten} other {'rule' if beaten == 1 else 'rules'} of its slot"
        if entry.shadow:
            return RuleVerdict(rule, "shadow", f"{reason}; in shadow mode: it counts apart and never denies")
        return RuleVerdict(rule, "applies", reason)

    def _lost_to(self, entry: CompiledRule) -> RuleVerdict:
        winner = self._winners[entry.counter]
        name = winner.rule.rule_id
        return RuleVerdict(entry.rule, "lost", f"lost to {name}: {_advantage(winner, entry)}", name)

    def _not_matched(self, rule: Rule, bits: int) -> RuleVerdict:
        reasons: list[str] = []
        if bits & DISABLED:
            reasons.append("it is disabled")
        if bits & EXPIRED:
            reasons.append(f"it expired at {format_timestamp(rule.expires_us)}")
        if bits & NO_VALUE:
            missing = [ATTRIBUTES.get(name, name) for name in rule.dimensions if name not in self._subjects]
            reasons.append(f"the request has no {' and no '.join(missing)}")
        if bits & IDENTIFIER:
            named = zip(rule.dimensions, shown_identifiers(rule), strict=True)
            reasons.append(f"it is for {' and '.join([f'{name} {value}' for name, value in named if value != ANY])}")
        if bits & PATH:
            reasons.append(
                f"the path does not match {rule.endpoint_pattern}" if self._path else "the request has no path"
            )
        if bits & METHOD:
            reasons.append(f"it is for method {rule.method}")
        if bits & TIER:
            reasons.append(f"it is for tier {rule.tier}, and the request's is {self._tier[:MAX_SHOWN]}")
        return RuleVerdict(rule, "not_matched", "; ".join(dict.fromkeys(reasons)))


def shown_identifiers(rule: Rule) -> list[str]:
    """The identifier of each of a rule's dimensions, with a digest in place of an API key."""
    return [
        ANY if identifier == ANY else digest_api_key(f"{name}:{identifier}").partition(":")[2]
        for name, identifier in zip(rule.dimensions, rule.identifiers, strict=True)
    ]


def _pattern_of(table: RuleTable) -> str | None:
    """The key of a table's pattern: all of its rules have it."""
    for index in (table.exact, table.exact_parts):
        for entries in index.values():
            return str(entries[0].order[1])
    for by_tier in table.shared.values():
        for entries in by_tier.values():
            return str(entries[0].order[1])
    return None


def _scope_of(entry: CompiledRule) -> str:
    """Whom a rule is for."""
    dimension = entry.dimension
    if dimension == "global":
        noun = "all requests together"
    elif dimension == "api":
        noun = "this endpoint, whoever calls it"
    elif entry.parts is not None:
        named = zip(entry.parts, [identifier for _, identifier in entry.rule.parts], strict=True)
        noun = " and ".join([f"{'every' if value == ANY else 'exactly this'} {name}" for name, value in named])
    elif entry.subject is not None:
        noun = f"exactly this {dimension}"
    else:
        noun = f"every {dimension}"
    return noun if entry.tier is None else f"{noun}, of tier {entry.tier}"


def _advantage(winner: CompiledRule, loser: CompiledRule) -> str:
    """Why a rule wins over another one of its slot: see `CompiledRule.rank`."""
    if winner.mask != loser.mask and loser.mask:
        more = winner.mask.bit_count(), loser.mask.bit_count()
        if more[0] != more[1]:
            return f"{more[0]} exact parts beat {more[1]}"
        return f"of as many exact parts, those written first win: {_first_exact(winner)}"
    if winner.subject is not None and loser.subject is None:
        return f"an exact identifier beats {'a tier' if loser.tier is not None else '*'}"
    if winner.tier is not None and loser.tier is None:
        return "a tier beats *"
    if winner.expires_us is not None and loser.expires_us is None:
        return "of two equally specific rules, the one with expires_at wins while it lasts"
    if winner.rank > loser.rank:
        return "both are equally specific, and its source has precedence"
    return "both are equally specific, and it ends first"


def _first_exact(winner: CompiledRule) -> str:
    """The first exact part of a rule of a composite dimension, as it is written."""
    rule = winner.rule
    return next(name for name, value in zip(rule.dimensions, rule.identifiers, strict=True) if value != ANY)
