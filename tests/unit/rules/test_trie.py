"""The trie and the rule set, compared with a naive scan over all rules, with few words so that many rules match."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from hypothesis import given, settings
from hypothesis import strategies as st
from naive_rules import matches, naive_chain, spelled

from crestgate.core.context import RequestContext
from crestgate.rules.matching.patterns import parse_pattern
from crestgate.rules.matching.trie import Trie, TrieEditor
from crestgate.rules.rule import Rule
from crestgate.rules.ruleset import RuleSet
from unit.rules.cases import NOW_US

WORDS = ("a", "b", "{}")
segments = st.sampled_from([*WORDS, "*", "{id}"])
paths = st.lists(st.sampled_from(WORDS), max_size=4).map(lambda parts: "/" + "/".join(parts))
path_patterns = st.builds(
    lambda parts, end: "/" + "/".join([*parts, *end]),
    st.lists(segments, max_size=4),
    st.sampled_from([(), ("*",), ("**",)]),
)
patterns = st.one_of(path_patterns, st.sampled_from(["*", "**", "list", "a"]))


def build_trie(spellings: Sequence[str]) -> Trie[str]:
    editing: TrieEditor[str] = TrieEditor(Trie())
    for text in spellings:
        editing.put(parse_pattern(text), spelled(text))
    return editing.done()


def scan(spellings: Sequence[str], path: str) -> list[str]:
    return sorted({spelled(text) for text in spellings if matches(text, path)})


@settings(deadline=None)
@given(st.lists(path_patterns, max_size=12), st.lists(paths, min_size=1, max_size=5))
def test_trie_matches_a_scan(spellings: list[str], paths: list[str]) -> None:
    trie = build_trie(spellings)
    for path in paths:
        assert sorted(trie.matches(path)) == scan(spellings, path)


@settings(deadline=None)
@given(path_patterns)
def test_pattern_has_one_spelling(text: str) -> None:
    assert parse_pattern(text).key == spelled(text)
    assert parse_pattern(spelled(text)) == parse_pattern(text)


edits = st.lists(st.tuples(path_patterns, st.booleans()), max_size=6)


@settings(deadline=None)
@given(st.lists(edits, max_size=5), st.lists(paths, min_size=1, max_size=4))
def test_trie_is_immutable_while_others_are_derived_from_it(
    rounds: list[list[tuple[str, bool]]], paths: list[str]
) -> None:
    trie: Trie[str] = Trie()
    held: dict[str, str] = {}
    history = [(trie, dict(held))]
    for changes in rounds:
        editing = TrieEditor(trie)
        for text, put in changes:
            key = spelled(text)
            editing.put(parse_pattern(text), key if put else None)
            if put:
                held[key] = text
            else:
                held.pop(key, None)
            assert editing.get(parse_pattern(text)) == (key if put else None)
        trie = editing.done()
        history.append((trie, dict(held)))
    for old, then in history:
        for path in paths:
            assert sorted(old.matches(path)) == scan(list(then.values()), path)


@settings(deadline=None)
@given(st.lists(path_patterns, max_size=10, unique_by=spelled))
def test_removed_patterns_leave_no_nodes(spellings: list[str]) -> None:
    editing = TrieEditor(build_trie(spellings))
    for text in spellings:
        editing.put(parse_pattern(text), None)
    assert editing.done().root.empty()


def test_unchanged_nodes_are_shared() -> None:
    before = build_trie(["/a/b/c", "/b/*"])
    editing = TrieEditor(before)
    editing.put(parse_pattern("/a/x"), "new")
    after = editing.done()
    assert after.root.children["b"] is before.root.children["b"]
    assert after.root.children["a"] is not before.root.children["a"]
    assert after.root.children["a"].children["b"] is before.root.children["a"].children["b"]


def test_work_grows_with_the_path_and_not_with_the_rules() -> None:
    """Counts visited nodes instead of measuring time."""

    def visited_nodes(number: int) -> int:
        trie = build_trie([f"/api/v{n}/orders/*" for n in range(number)] + ["/api/*/orders/{id}"])
        visits = 0

        class Counting(dict[str, object]):
            def get(self, *args: object) -> object:
                nonlocal visits
                visits += 1
                return super().get(*args)  # type: ignore[call-overload]  # whatever it was given

        def watch(node: object) -> None:
            children = node.children  # type: ignore[attr-defined]  # of a node, whose type is private
            for child in [*children.values(), node.wildcard_child]:  # type: ignore[attr-defined]  # as above
                if child is not None:
                    watch(child)
            node.children = Counting(children)  # type: ignore[attr-defined]  # as above

        watch(trie.root)
        assert len(trie.matches("/api/v3/orders/7")) == 2
        return visits

    assert visited_nodes(1000) == visited_nodes(10)


# -- the whole rule set ---------------------------------------------------------------------------------------------

IDENTIFIERS = {
    "user": "12",
    "apikey": "12",
    "client": "12",
    "ip": ("10.0.0.1", "10.0.0.2"),
    "key": "12",
    "api": (),
    "global": (),
    "org": ("1", "a|b"),
    "model": "12",
}
COMPOSITES = [["org", "model"], ["model", "org"], ["user", "org"], ["api", "org"], ["org", "ip", "user"]]


@st.composite
def rules(draw: st.DrawFn) -> Rule:
    dimensions = draw(st.sampled_from([[name] for name in IDENTIFIERS] + COMPOSITES))
    rule = Rule.read(
        {
            "rule_id": draw(st.sampled_from("abcdefghijklmnop")),
            "dimension": dimensions,
            "identifier": [draw(st.sampled_from(["*", *IDENTIFIERS[name]])) for name in dimensions],
            "endpoint_pattern": draw(patterns),
            "method": draw(st.sampled_from(["*", "*", "GET", "PUT"])),
            "tier": draw(st.sampled_from(["*", "*", "free", "gold"])),
            "limit": 10,
            "window_seconds": draw(st.sampled_from([1, 60, 60.0])),
            "mode": draw(st.sampled_from(["enforce", "enforce", "enforce", "shadow", "disabled"])),
            "expires_at": draw(st.sampled_from([None, None, NOW_US / 1e6 - 1, NOW_US / 1e6, NOW_US / 1e6 + 1])),
        }
    )
    assert rule is not None
    return rule


def without_conflicts(found: list[Rule]) -> list[Rule]:
    """Rules as in a source: one of each id, one of each unique key (expired ones may still have theirs)."""
    retained: dict[str, Rule] = {}
    for rule in found:
        clash = any(rule.unique_key == other.unique_key and rule.unique_key is not None for other in retained.values())
        if rule.rule_id not in retained and not clash:
            retained[rule.rule_id] = rule
    return list(retained.values())


rule_lists = st.lists(rules(), max_size=16).map(without_conflicts)
contexts = st.builds(
    RequestContext,
    ip=st.sampled_from([None, "10.0.0.1", "10.0.0.2"]),
    user=st.sampled_from([None, "1", "2", "3"]),
    api_key=st.sampled_from([None, "1", "3"]),
    client=st.sampled_from([None, "1", "3"]),
    path=st.one_of(st.none(), paths, st.sampled_from(["list", "a", "other"])),
    method=st.sampled_from([None, "GET", "PUT"]),
    tier=st.sampled_from([None, None, "gold", "silver"]),
    key=st.sampled_from([None, "1", "3"]),
    attributes=st.none()
    | st.dictionaries(st.sampled_from(["org", "model", "other"]), st.sampled_from(["1", "2", "*", "a|b", "%7C"])),
)
tier_maps = st.dictionaries(st.sampled_from("12"), st.sampled_from(["free", "gold"]))


def resolved(rule_set: RuleSet, context: RequestContext) -> list[tuple[str, str]]:
    return [(entry.rule.rule_id, key) for key, entry in rule_set.resolve(context, NOW_US)]


@settings(max_examples=150, deadline=None)
@given(rule_lists, st.lists(contexts, min_size=1, max_size=4), tier_maps)
def test_rule_set_resolves_like_a_scan(found: list[Rule], paths: list[RequestContext], tiers: dict[str, str]) -> None:
    rule_set = RuleSet.empty().edited(found, tiers=tiers)
    defaults = [*rule_set.defaults.client, rule_set.defaults.policy]
    for context in paths:
        assert resolved(rule_set, context) == naive_chain(found, context, tiers, defaults, NOW_US)


@settings(max_examples=150, deadline=None)
@given(
    st.lists(st.tuples(rule_lists, st.lists(st.sampled_from("abcdefgh"), max_size=4)), max_size=5),
    st.lists(contexts, min_size=1, max_size=4),
)
def test_edited_rule_set_equals_one_built_from_scratch(
    rounds: list[tuple[list[Rule], list[str]]], paths: list[RequestContext]
) -> None:
    rule_set = RuleSet.empty()
    held: dict[str, Rule] = {}
    history: list[tuple[RuleSet, dict[str, Rule]]] = [(rule_set, {})]
    for puts, deletes in rounds:
        for rule_id in deletes:
            held.pop(rule_id, None)
        for rule in puts:
            claims = {other.unique_key for rule_id, other in held.items() if rule_id != rule.rule_id}
            if rule.unique_key is not None and rule.unique_key in claims:
                rule = replace(rule, mode="disabled")  # a repository would have refused it
            held[rule.rule_id] = rule
        rule_set = rule_set.edited([held[rule.rule_id] for rule in puts], deletes)
        history.append((rule_set, dict(held)))
    for edited, then in history:
        scratch = RuleSet.empty().edited(then.values())
        assert edited.rules == scratch.rules == then
        assert set(edited.entries) == set(scratch.entries)
        assert set(edited.names) == set(scratch.names)
        assert {c: {e.rule.rule_id for e in es} for c, es in edited.clients.items()} == {
            c: {e.rule.rule_id for e in es} for c, es in scratch.clients.items()
        }
        for context in paths:
            assert resolved(edited, context) == resolved(scratch, context)


@settings(deadline=None)
@given(rule_lists)
def test_deleted_rules_leave_an_empty_rule_set(found: list[Rule]) -> None:
    emptied = RuleSet.empty().edited(found).edited(deletes=[rule.rule_id for rule in found])
    assert not emptied.rules
    assert not emptied.entries
    assert not emptied.names
    assert not emptied.clients
    assert emptied.trie.root.empty()
