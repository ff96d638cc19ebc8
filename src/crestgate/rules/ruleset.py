# mypyc: compile
"""An immutable set of rules, and the resolver that finds those that apply to a request.

`edited` returns a new rule set, which shares all unchanged parts with this one. So a request sees one set from
beginning to end, and a change of one rule among 100,000 costs about as much as among ten.

Rules are found by path first (trie.py), then by subject: per pattern, the rules for one exact subject by that
subject, and those for all subjects by dimension and tier. Of those that apply, the most specific of each slot wins.
Rules of several dimensions together are found the same way, by subjects made for them (composites.py).
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any, final

from crestgate.core.bounded_cache import BoundedCache
from crestgate.core.context import ContextFields
from crestgate.core.dimensions import DIMENSION_NAMES, dimension_order
from crestgate.rules.compat.clients import DEFAULT_CLIENT_LIMITS
from crestgate.rules.compat.policies import DEFAULT_POLICY
from crestgate.rules.compat.strategies import rules_for_all
from crestgate.rules.compiled_rule import CompiledRule
from crestgate.rules.composites import composite_subject, part_subject
from crestgate.rules.matching.paths import readings
from crestgate.rules.matching.patterns import ANY_PATH, Pattern, name_pattern, parse_pattern
from crestgate.rules.matching.trie import Trie, TrieEditor
from crestgate.rules.plan import StoredPlan
from crestgate.rules.rule import ANY, Rule
from crestgate.rules.rule_table import CachedMatch, ExactComposite, MatchShape, RequestShape, RuleTable
from crestgate.rules.subjects import attribute_subjects, check_text, counter_key, identified, subjects_of

__all__ = ["DEFAULT_TIER", "Defaults", "ResolvedRule", "RuleSet"]

DEFAULT_TIER = "free"
MAX_CACHED = 4096
MAX_CACHED_PATH = 256
"""Characters of a path: longer ones are seldom requested twice."""

ResolvedRule = tuple[str, CompiledRule]
"""A rule that applies: the key of its counter, and the rule."""

_NONE: dict[str, list[CompiledRule]] = {}


@dataclass(frozen=True, slots=True)
class Defaults:
    """Limits that apply where no rule does."""

    policy: Rule = field(default_factory=DEFAULT_POLICY.default_rule)
    """For keys without a policy."""
    client: tuple[Rule, ...] = field(default_factory=lambda: tuple(client_defaults(DEFAULT_CLIENT_LIMITS)))
    """For clients that are not configured."""
    policy_key: tuple[str, ...] = ()
    """Parts of the policy key of a request that names none."""


def client_defaults(limits: Iterable[str]) -> list[Rule]:
    return rules_for_all("client", "default-client-limits", "default client limits", *limits)


@final
class RuleSet:
    """Rules, the tiers of users, plans, and defaults."""

    def __init__(
        self,
        rules: Mapping[str, Rule],
        entries: Mapping[str, CompiledRule],
        trie: Trie[RuleTable],
        names: Mapping[str, RuleTable],
        clients: Mapping[str, tuple[CompiledRule, ...]],
        attributes: Mapping[str, int],
        tiers: Mapping[str, str],
        plans: Mapping[str, StoredPlan],
        defaults: Defaults,
    ) -> None:
        self.rules = rules
        """By rule_id, including disabled and expired ones."""
        self.entries = entries
        self.trie = trie
        self.names = names
        """Tables by the name of an API, and that of `*`."""
        self.every = names.get(ANY_PATH)
        self.clients = clients
        """The rules of each configured client. Shadow rules do not count: they never replace the defaults."""
        self.attributes = attributes
        """The attributes of requests that rules use, and by how many rules. Others are not looked at."""
        self.tiers = tiers
        self.plans = plans
        self.defaults = defaults
        self.cache: dict[RequestShape, CachedMatch] = BoundedCache(MAX_CACHED)
        """Earlier results, by the shape of the requests. Bounded, whatever paths are requested."""
        self.matches: dict[MatchShape, CachedMatch] = BoundedCache(MAX_CACHED)
        """The same by the patterns that match a path, instead of the path: most new paths, such as `/products/7`,
        match what others before them did."""
        self.default_policy = CompiledRule(defaults.policy, ANY_PATH)
        self.default_clients = [CompiledRule(rule, ANY_PATH) for rule in defaults.client]

    @classmethod
    def empty(cls) -> RuleSet:
        return RuleSet({}, {}, Trie(), {}, {}, {}, {}, {}, Defaults())

    def edited(
        self,
        puts: Iterable[Rule] = (),
        deletes: Iterable[str] = (),
        *,
        precedence: Mapping[str, int] | None = None,
        tiers: Mapping[str, str] | None = None,
        plans: Mapping[str, StoredPlan] | None = None,
        defaults: Defaults | None = None,
    ) -> RuleSet:
        """The rule set after a change. `precedence` is that of a rule's source, by rule_id (0 by default): of
        equally specific rules, the highest wins. `tiers`, `plans` and `defaults` replace those of this one."""
        edit = _RuleSetEdit(self)
        for rule_id in deletes:
            edit.remove(rule_id)
        for rule in puts:
            edit.remove(rule.rule_id)
            edit.add(rule, 0 if precedence is None else precedence.get(rule.rule_id, 0))
        return RuleSet(
            edit.rules,
            edit.entries,
            edit.trie.done(),
            edit.names,
            edit.clients,
            edit.attributes,
            self.tiers if tiers is None else tiers,
            self.plans if plans is None else plans,
            self.defaults if defaults is None else defaults,
        )

    def knows_client(self, client: str, now_us: int) -> bool:
        """Whether a client is configured by a rule that has not expired."""
        entries = self.clients.get(client)
        return entries is not None and any(e.expires_us is None or e.expires_us > now_us for e in entries)

    def tier_of(self, context: ContextFields) -> str:
        """The request's tier: its own, else its user's, else the default."""
        given: Any = context  # its fields may have any type at runtime
        if given.tier is not None:
            return check_text("tier", given.tier)
        return DEFAULT_TIER if given.user is None else self.tiers.get(check_text("user", given.user), DEFAULT_TIER)

    def resolve(self, context: ContextFields, now_us: int) -> list[ResolvedRule]:
        """The rules that apply and win, in the order of the chain, including shadow rules, which do not bind."""
        given: Any = context
        raw = given.path
        if raw is not None and not isinstance(raw, str):
            check_text("path", raw)  # raises
        method = given.method
        if method is not None:
            method = check_text("method", method).upper()
        tier = self.tier_of(context) if self.tiers or given.tier is not None else DEFAULT_TIER
        subjects, present = identified(context)
        shape: RequestShape = (raw, method, tier, present)
        if given.attributes is not None:
            own = attribute_subjects(given.attributes, self.attributes)
            subjects.update(own)
            shape = (raw, method, tier, (present, *sorted(own)))
        cached = self.cache.get(shape)
        if cached is not None:
            keys = self.completed(subjects, cached.path)
            if self.holds(cached, context, keys):
                return [(counter_key(entry, keys), entry) for entry in cached.winners]
        return self.find(context, now_us, subjects, shape)

    def holds(self, match: CachedMatch, context: ContextFields, keys: dict[str, str]) -> bool:
        """Whether an earlier result holds for a request with these subjects: no rule is for exactly one of them."""
        if (match.exact or match.composites) and not match.holds_for(keys):
            return False
        return context.client is None or context.client not in self.clients

    def find(
        self, context: ContextFields, now_us: int, subjects: dict[str, str], shape: RequestShape
    ) -> list[ResolvedRule]:
        """As `resolve`, without reading the cache; results that are valid for all callers of this shape are cached."""
        raw, method, tier, present = shape
        spellings = [] if raw is None else readings(raw)
        path = spellings[0] if spellings else raw
        keys = self.completed(subjects, path)
        tables = self.tables(raw, spellings)
        match_shape: MatchShape = (tuple(tables), raw is None, method, tier, present)
        match = self.matches.get(match_shape)
        if match is not None and self.holds(match, context, keys):
            self.add_to_cache(shape, CachedMatch(path, match.exact, match.composites, match.winners))
            return [(counter_key(entry, keys), entry) for entry in match.winners]
        best: dict[str, CompiledRule] = {}
        cacheable = not self.defaults.policy_key
        composites: list[ExactComposite] = []
        for table in tables:
            for dimension, subject in keys.items():
                found = table.exact.get(subject)
                if found is not None:
                    cacheable = False
                    _compete(best, found, tier, method, now_us)
                by_tier = table.shared.get(dimension, _NONE)
                for table_tier in (ANY, tier):
                    found = by_tier.get(table_tier)
                    if found is not None and not _compete(best, found, tier, method, now_us):
                        cacheable = False
            cacheable = self.find_composites(table, keys, best, composites, shape, now_us) and cacheable
        if context.client is not None:
            cacheable = cacheable and context.client not in self.clients
            if not self.knows_client(context.client, now_us):
                for entry in self.default_clients:
                    best.setdefault(entry.counter, entry)
        if "key" in keys and not any(map(_is_policy, best.values())):
            best[self.default_policy.counter] = self.default_policy
        chosen = [(counter_key(entry, keys), entry) for entry in best.values()]
        if len(chosen) > 1:
            chosen.sort(key=_order)
        if cacheable:
            winners = [entry for _, entry in chosen]
            match = CachedMatch(path, [t.exact for t in tables if t.exact], composites, winners)
            self.matches[match_shape] = match
            self.add_to_cache(shape, match)
        return chosen

    def find_composites(
        self,
        table: RuleTable,
        keys: dict[str, str],
        best: dict[str, CompiledRule],
        composites: list[ExactComposite],
        shape: RequestShape,
        now_us: int,
    ) -> bool:
        """Let the rules of a table for several dimensions together compete. Adds those that have exact parts to
        `composites`; returns whether the result can be cached."""
        if not table.masks:
            return True
        _, method, tier, _ = shape
        cacheable = True
        for composite in table.composites(keys):
            by_tier = table.shared.get(composite.dimension, _NONE)
            for table_tier in (ANY, tier):
                found = by_tier.get(table_tier)
                if found is not None and not _compete(best, found, tier, method, now_us):
                    cacheable = False
            if composite.masks:
                composites.append((table.exact_parts, composite))
                for subject in composite.subjects(keys):
                    found = table.exact_parts.get(subject)
                    if found is not None:
                        cacheable = False
                        _compete(best, found, tier, method, now_us)
        return cacheable

    def add_to_cache(self, shape: RequestShape, match: CachedMatch) -> None:
        raw = shape[0]
        if raw is None or len(raw) <= MAX_CACHED_PATH:
            self.cache[shape] = match

    def for_user(self, user: str, now_us: int) -> list[ResolvedRule]:
        """The rules of dimension `user` that win for a user, on any path and method, including shadow rules."""
        return self.for_subject("user", user, now_us)

    def for_subject(self, dimension: str, identifier: str, now_us: int) -> list[ResolvedRule]:
        """The same of another dimension whose rules have identifiers, or of a composite one (`org,model` and
        `acme,large`, as `join_parts` joins them); clients and keys without own rules get the defaults."""
        keys = subjects_of(dimension, identifier)
        user = keys.get("user")
        tier = DEFAULT_TIER if user is None else self.tiers.get(user[5:], DEFAULT_TIER)
        names = sorted(keys, key=dimension_order)
        wanted = ",".join(names)
        parts = [part_subject(name, keys[name]) for name in names]
        best: dict[str, CompiledRule] = {}
        for entry in self.entries.values():
            if entry.dimension != wanted:
                continue
            exact = keys[wanted] if entry.parts is None else composite_subject(names, parts, entry.mask)
            if entry.subject is None or entry.subject == exact:
                _compete(best, [entry], tier, entry.method, now_us)
        if dimension == "client" and not self.knows_client(identifier, now_us):
            for entry in self.default_clients:
                best.setdefault(entry.counter, entry)
        if dimension == "key" and not any(map(_is_policy, best.values())):
            best[self.default_policy.counter] = self.default_policy
        chosen = [(counter_key(entry, keys), entry) for entry in best.values()]
        chosen.sort(key=_order)
        return chosen

    def tables(self, path: str | None, spellings: list[str]) -> list[RuleTable]:
        """The rules of every pattern that matches a path, or any of its spellings."""
        found: list[RuleTable] = [] if self.every is None else [self.every]
        if path is None:
            return found
        if len(spellings) == 1 and path.startswith("/"):
            return found + self.trie.matches(spellings[0])
        if not path.startswith("/"):
            named = self.names.get(name_pattern(path))
            if named is not None:
                found.append(named)
        for reading in spellings:
            found += [table for table in self.trie.matches(reading) if table not in found]
        return found

    def keys(self, context: ContextFields, path: str | None) -> dict[str, str]:
        """The subjects of a request: one for each dimension that it has a value of."""
        subjects = identified(context)[0]
        if context.attributes is not None:
            subjects.update(attribute_subjects(context.attributes, None))
        return self.completed(subjects, path)

    def completed(self, subjects: dict[str, str], path: str | None) -> dict[str, str]:
        """These subjects, with those that every request with this path has, and with its policy key."""
        if self.defaults.policy_key and "key" not in subjects:
            key = self.policy_key(subjects, path)
            if key is not None:
                subjects["key"] = "key:" + key
        if path is not None:
            subjects["api"] = "api:" + path
        subjects["global"] = "global"
        return subjects

    def policy_key(self, subjects: dict[str, str], path: str | None) -> str | None:
        """The policy key of a request that names none, if it is configured: `user:123|route:/v1/pay`."""
        parts = self.defaults.policy_key
        if not parts:
            return None
        key_parts = [subject for dimension, subject in subjects.items() if dimension in parts]
        if "route" in parts and path is not None:
            key_parts.append("route:" + path)
        if len(parts) > 1:  # escape the separator, or two requests could have one key
            key_parts = [part.replace("%", "%25").replace("|", "%7C") for part in key_parts]
        return "|".join(key_parts) if key_parts else None


@final
class _RuleSetEdit:
    """The changed parts of the next rule set."""

    def __init__(self, old: RuleSet) -> None:
        self.rules = dict(old.rules)
        self.entries = dict(old.entries)
        self.trie: TrieEditor[RuleTable] = TrieEditor(old.trie)
        self.names = dict(old.names)
        self.clients = dict(old.clients)
        self.attributes = dict(old.attributes)

    def add(self, rule: Rule, precedence: int) -> None:
        self.rules[rule.rule_id] = rule
        if rule.mode == "disabled":
            return
        pattern = parse_pattern(rule.endpoint_pattern)
        entry = CompiledRule(rule, pattern.key, precedence)
        self.entries[rule.rule_id] = entry
        table = self.table(pattern)
        table.add(entry)
        self.put_table(pattern, table)
        if _configures(entry):
            self.clients[rule.identifier] = (*self.clients.get(rule.identifier, ()), entry)
        for name in _attributes_of(entry):
            self.attributes[name] = self.attributes.get(name, 0) + 1

    def remove(self, rule_id: str) -> None:
        self.rules.pop(rule_id, None)
        entry = self.entries.pop(rule_id, None)
        if entry is None:
            return
        pattern = parse_pattern(entry.rule.endpoint_pattern)
        table = self.table(pattern)
        table.remove(rule_id, entry)
        self.put_table(pattern, None if table.empty() else table)
        if _configures(entry):
            client = entry.rule.identifier
            self.clients[client] = tuple(other for other in self.clients[client] if other is not entry)
            if not self.clients[client]:
                del self.clients[client]
        for name in _attributes_of(entry):
            self.attributes[name] -= 1
            if not self.attributes[name]:
                del self.attributes[name]

    def table(self, pattern: Pattern) -> RuleTable:
        """The pattern's table, copied if it is shared, so that it may be changed."""
        number = self.trie.number
        old = self.names.get(pattern.key) if pattern.segments is None else self.trie.get(pattern)
        if old is None:
            return RuleTable(number)
        return old if old.owner == number else old.copied(number)

    def put_table(self, pattern: Pattern, table: RuleTable | None) -> None:
        if pattern.segments is not None:
            self.trie.put(pattern, table)
        elif table is not None:
            self.names[pattern.key] = table
        else:
            self.names.pop(pattern.key, None)


def _attributes_of(entry: CompiledRule) -> list[str]:
    """The attributes of requests that a rule uses."""
    names = [entry.dimension] if entry.parts is None else entry.parts
    return [name for name in names if name not in DIMENSION_NAMES]


def _is_policy(entry: CompiledRule) -> bool:
    """Whether a rule is a binding policy, of one key or of all."""
    return entry.dimension == "key" and not entry.shadow


def _configures(entry: CompiledRule) -> bool:
    """Whether a rule makes a client a configured one."""
    return entry.dimension == "client" and entry.subject is not None and not entry.shadow


def _compete(
    best: dict[str, CompiledRule], entries: list[CompiledRule], tier: str, method: str | None, now_us: int
) -> bool:
    """Let the rules of a subject that apply compete for their slots. Returns whether the result can be cached: none of
    them expires."""
    cacheable = True
    for entry in entries:
        if entry.expires_us is not None:
            cacheable = False
            if entry.expires_us <= now_us:
                continue
        if entry.method is not None and entry.method != method:
            continue
        if entry.tier is not None and entry.tier != tier:
            continue
        rival = best.get(entry.counter)
        if rival is None or entry.rank > rival.rank or (entry.rank == rival.rank and _ends_sooner(entry, rival)):
            best[entry.counter] = entry
    return cacheable


def _ends_sooner(entry: CompiledRule, rival: CompiledRule) -> bool:
    """Of two equally specific rules that expire (from two sources), the one that expires first wins."""
    return entry.expires_us is not None and rival.expires_us is not None and entry.expires_us < rival.expires_us


def _order(chosen: ResolvedRule) -> tuple[bool, int, str, str, tuple[float, str], str]:
    entry = chosen[1]
    return entry.shadow, *entry.order
