"""Policies, clients and strategies: other names for rules, converted without loss."""

from __future__ import annotations

import json
from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from crestgate.core.limit import Limit
from crestgate.errors import ConfigError
from crestgate.loader.fields import Fields, Problems
from crestgate.rules.compat.clients import ClientLimit, SeenClients, client_limit_of, read_client
from crestgate.rules.compat.policies import Policy, policy_of, read_default_policy, read_policy
from crestgate.rules.compat.rule_ids import derived_id, derived_id_prefix
from crestgate.rules.compat.strategies import read_strategies, rules_for_all
from crestgate.rules.rule import Rule

texts = st.text(min_size=1, max_size=200).filter(
    lambda text: text != "*" and len(text.encode("utf-8", "surrogatepass")) <= 1024
)
tricky = st.text(st.sampled_from("a:%/|é\ud83d*"), min_size=1, max_size=90)


def reloaded(rule: Rule) -> Rule:
    """A rule after serialization and parsing."""
    read = Rule.read(json.loads(json.dumps(rule.body())))
    assert read is not None
    return read


# -- ids ------------------------------------------------------------------------------------------------------------


@settings(deadline=None)
@given(st.lists(st.lists(tricky | texts, min_size=1, max_size=3), min_size=2, max_size=4))
def test_different_names_never_share_an_id(names: list[list[str]]) -> None:
    ids = {derived_id("kind", *parts) for parts in names}
    assert len(ids) == len({tuple(parts) for parts in names})
    assert all(len(made.encode()) <= 255 and made.isprintable() for made in ids)


@settings(deadline=None)
@given(tricky | texts, st.lists(tricky, max_size=2))
def test_all_ids_of_a_name_share_a_prefix(name: str, others: list[str]) -> None:
    assert derived_id("client", name, *others, "x").startswith(derived_id_prefix("client", name))


def test_ids_are_readable() -> None:
    assert derived_id("policy", "user-123") == "policy:user-123"
    assert derived_id("client", "a:b", "API", "/web/test") == "client:a%3Ab:API:/web/test"
    assert derived_id("policy", "x" * 300).startswith("policy:" + "x" * 100 + ":sha256:")


# -- policies -------------------------------------------------------------------------------------------------------

policies = st.builds(
    Policy,
    texts,
    st.sampled_from(["TOKEN_BUCKET", "SLIDING_WINDOW"]),
    st.integers(1, 10**6),
    st.integers(1, 10**6),
    st.integers(1, 10**6),
    st.integers(1, 10**9),
)


@settings(deadline=None)
@given(policies)
def test_policy_round_trip(policy: Policy) -> None:
    assert policy_of(reloaded(policy.rule())) == policy


@pytest.mark.parametrize("letter", ["k", "é", "\U0001f6a6"])
def test_longest_names_can_be_stored(letter: str) -> None:
    longest = letter * (1024 // len(letter.encode()))
    policy = Policy(longest, id=1)
    assert policy_of(reloaded(policy.rule())) == policy
    limit = ClientLimit(longest, "API", "/" + longest[1:], "MIN", 5)
    assert client_limit_of(reloaded(limit.rule())) == limit


def test_token_bucket() -> None:
    rule = Policy("user-123", "TOKEN_BUCKET", capacity=50, refill_rate=5, window_seconds=30, id=7).rule()
    assert (rule.rule_id, rule.dimension, rule.identifier) == ("policy:user-123", "key", "user-123")
    assert rule.compiled() == Limit(5, 1, burst=50, algorithm="token_bucket")


def test_sliding_window_is_an_exact_log() -> None:
    rule = Policy("user-123", "SLIDING_WINDOW", capacity=50, refill_rate=5, window_seconds=30, id=7).rule()
    assert rule.compiled() == Limit(50, 30, algorithm="sliding_window_log")


def test_default_policy() -> None:
    """capacity 100, refillRate 10, windowSeconds 60, TOKEN_BUCKET."""
    problems = Problems()
    policy = read_default_policy({}, "default_policy", problems)
    assert policy is not None
    assert policy.numbers() == {"type": "TOKEN_BUCKET", "capacity": 100, "refillRate": 10, "windowSeconds": 60}
    assert policy.default_rule().compiled() == Limit(10, 1, burst=100)
    assert policy.default_rule().identifier == "*"


def test_policy_is_parsed() -> None:
    problems = Problems()
    data = {"key": "k", "type": "sliding_window", "capacity": 5, "refillRate": 2, "windowSeconds": 9}
    assert read_policy(data, "", problems) == Policy("k", "SLIDING_WINDOW", 5, 2, 9)
    assert read_policy({"key": "k"}, "", problems) == Policy("k")
    assert not problems.entries


POLICY_ERRORS: list[tuple[object, str]] = [
    ([], "policies[0]: must be a mapping with key, type, capacity, refillRate, windowSeconds, not a list"),
    ({}, "policies[0].key: is missing: write "),
    ({"key": ""}, "policies[0].key: must not be empty"),
    ({"key": "*"}, "policies[0].key: '*' would be every key: use default_policy instead"),
    ({"key": 5}, "policies[0].key: must be text, not 5: write it in quotes, '5'"),
    ({"key": "k", "type": "LEAKY"}, "policies[0].type: must be one of TOKEN_BUCKET, SLIDING_WINDOW, not 'LEAKY'"),
    ({"key": "k", "capacity": 0}, "policies[0].capacity: must be a whole number"),
    ({"key": "k", "refillRate": 0.5}, "policies[0].refillRate: must be a whole number"),
    ({"key": "k", "windowSeconds": "60"}, "policies[0].windowSeconds: must be a whole number"),
    ({"key": "k", "capacity": 2**53 - 1}, "is too large to count exactly"),
    ({"key": "k", "refill_rate": 5}, "policies[0].refill_rate: unknown field: did you mean 'refillRate'?"),
]


@pytest.mark.parametrize(("data", "message"), POLICY_ERRORS, ids=lambda value: str(value)[:50])
def test_invalid_policies(data: object, message: str) -> None:
    problems = Problems()
    assert read_policy(data, "policies[0]", problems) is None
    assert [problem for problem in problems.entries if message in str(problem)], problems.entries


def test_rule_without_origin_is_no_view() -> None:
    rule = reloaded(Rule("r", "r", "key", 5, 60, "k"))
    assert policy_of(rule) is None
    assert client_limit_of(rule) is None
    assert client_limit_of(Policy("k").rule()) is None


# -- unrecognised rules ---------------------------------------------------------------------------------------------


def nested(levels: int) -> object:
    value: object = 1
    for _ in range(levels):
        value = {"deeper": value}
    return value


POLICY_RULE = Policy("k", "TOKEN_BUCKET", 50, 5, 30, id=7).rule()
LIMIT_RULE = ClientLimit("k", "METHOD", "PUT", "MIN", 5).rule()
ODD: list[object] = [None, "", "x", 5.0, -1, True, [], ["x"], {}, {"view": "policy"}, nested(100_000), 10**5000]


@pytest.mark.parametrize(
    "change",
    [
        *({"limit": 6}, {"window_seconds": 2}, {"burst": 60}, {"burst": None}, {"algorithm": "gcra"}),
        *(
            {"identifier": "other"},
            {"identifier": "*"},
            {"identifier": ""},
            {"rule_id": "other"},
            {"dimension": "user"},
        ),
        *({"mode": "shadow"}, {"tier": "gold"}, {"method": "GET"}, {"endpoint_pattern": "/x"}, {"expires_us": 1}),
        {"on_store_error": "open"},
    ],
    ids=str,
)
def test_changed_rule_is_no_view(change: dict[str, Any]) -> None:
    assert policy_of(replace(POLICY_RULE, **change)) is None
    if change != {"burst": None}:  # the value it already has
        assert client_limit_of(replace(LIMIT_RULE, **change)) is None


def test_renamed_rule_is_still_a_view() -> None:
    assert policy_of(replace(POLICY_RULE, name="mine")) is not None
    assert client_limit_of(replace(LIMIT_RULE, name="mine")) is not None


@pytest.mark.parametrize("view", ["policy", "client", "other", ["policy"], None, 5])
def test_origin_with_only_the_view(view: object) -> None:
    for rule in (POLICY_RULE, LIMIT_RULE):
        invalid = replace(rule, origin={"view": view})
        assert policy_of(invalid) is None
        assert client_limit_of(invalid) is None


@pytest.mark.parametrize("value", ODD, ids=lambda value: type(value).__name__)
def test_origin_with_an_invalid_field(value: object) -> None:
    assert POLICY_RULE.origin is not None
    assert LIMIT_RULE.origin is not None
    for name in (*POLICY_RULE.origin, "more"):
        assert policy_of(replace(POLICY_RULE, origin={**POLICY_RULE.origin, name: value})) is None, name
    for name in (*LIMIT_RULE.origin, "more"):
        assert client_limit_of(replace(LIMIT_RULE, origin={**LIMIT_RULE.origin, name: value})) is None, name
    interval = LIMIT_RULE.origin["timeIntervalLimit"]
    for name in ("timeUnit", "more"):
        invalid = {**LIMIT_RULE.origin, "timeIntervalLimit": {**interval, name: value}}
        assert client_limit_of(replace(LIMIT_RULE, origin=invalid)) is None, name


@pytest.mark.parametrize("name", ["type", "capacity", "refillRate", "windowSeconds", "id"])
def test_origin_with_a_missing_field(name: str) -> None:
    assert POLICY_RULE.origin is not None
    origin = {key: value for key, value in POLICY_RULE.origin.items() if key != name}
    assert policy_of(replace(POLICY_RULE, origin=origin)) is None


def test_deeply_nested_origin_is_ignored() -> None:
    read = Rule.read({**POLICY_RULE.body(), "origin": {"view": "policy", "type": nested(100_000)}})
    assert read.origin is None
    assert Rule.read({**POLICY_RULE.body(), "origin": {"view": [[[1]]]}}).origin is None
    assert reloaded(LIMIT_RULE).origin == LIMIT_RULE.origin


# -- construction ---------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "fields",
    [
        *({"key": ""}, {"key": 5}, {"type": "LEAKY"}, {"type": ["TOKEN_BUCKET"]}, {"capacity": 0}, {"capacity": 1.5}),
        *({"capacity": True}, {"refill_rate": 0}, {"refill_rate": "5"}, {"window_seconds": 0}, {"id": -1}),
        *({"window_seconds": 2**53}, {"capacity": -(10**5000)}),
    ],
    ids=lambda fields: str(list(fields)),
)
def test_policy_rejects_invalid_fields(fields: dict[str, Any]) -> None:
    with pytest.raises(ConfigError, match="must be"):
        Policy(**{"key": "k", **fields})


@pytest.mark.parametrize(
    "fields",
    [
        *({"client": ""}, {"client": None}, {"client": "*"}, {"limit_type": "ALL"}, {"limit_type": None}),
        *({"limit_name": ""}, {"limit_name": "P T"}, {"limit_type": "DEFAULT"}, {"time_unit": "WEEK"}),
        *({"time_unit": ["MIN"]}, {"max_requests": -1}, {"max_requests": 5.0}, {"max_requests": 2**31}),
    ],
    ids=str,
)
def test_client_limit_rejects_invalid_fields(fields: dict[str, Any]) -> None:
    good = {"client": "acme", "limit_type": "METHOD", "limit_name": "PUT", "time_unit": "MIN", "max_requests": 5}
    with pytest.raises(ConfigError, match=r"must be|would be"):
        ClientLimit(**{**good, **fields})


def test_policy_cannot_apply_to_all_keys() -> None:
    with pytest.raises(ConfigError, match="would be every key: use default_policy instead"):
        Policy("*").rule()
    assert Policy("*").default_rule().identifier == "*"


def test_views_are_hashable() -> None:
    assert len({POLICY_RULE, reloaded(POLICY_RULE), LIMIT_RULE}) == 2


# -- clients --------------------------------------------------------------------------------------------------------

client_limits = st.builds(
    lambda client, named, unit, most: ClientLimit(client, named[0], named[1], unit, most),
    texts,
    st.one_of(
        st.just(("DEFAULT", "GLOBAL")),
        st.tuples(st.just("API"), st.sampled_from(["getUsers", "/web/*", "/{id}", "a b", "r/*", "*", "=x", "a{b"])),
        st.tuples(st.just("API"), st.text(st.sampled_from("abé "), min_size=1, max_size=500)),
        st.tuples(st.just("METHOD"), st.sampled_from(["GET", "PUT"])),
    ),
    st.sampled_from(["SEC", "MIN", "HOUR", "DAY"]),
    st.integers(0, 10**6),
)


@settings(deadline=None)
@given(client_limits)
def test_client_limit_round_trip(limit: ClientLimit) -> None:
    assert client_limit_of(reloaded(limit.rule())) == limit


LIMITS = [
    (("DEFAULT", "GLOBAL", "MIN", 100), ("*", "*"), Limit(100, 60)),
    (("API", "getUsers", "SEC", 5), ("getUsers", "*"), Limit(5, 1)),
    (("API", "/web/{id}", "HOUR", 5), ("/web/{id}", "*"), Limit(5, 3600)),
    (("API", "reports/*", "HOUR", 5), ("=reports/*", "*"), Limit(5, 3600)),
    (("METHOD", "PUT", "DAY", 5), ("*", "PUT"), Limit(5, 86400)),
]


@pytest.mark.parametrize(("written", "slot", "limit"), LIMITS, ids=[row[0][0] + row[0][1] for row in LIMITS])
def test_client_limits_are_token_buckets(
    written: tuple[str, str, str, int], slot: tuple[str, str], limit: Limit
) -> None:
    rule = ClientLimit("acme", *written).rule()
    assert (rule.dimension, rule.identifier) == ("client", "acme")
    assert (rule.endpoint_pattern, rule.method) == slot
    assert rule.compiled() == limit


def interval(unit: object = "MIN", max_requests: object = 5) -> dict[str, object]:
    return {"timeUnit": unit, "maxRequests": max_requests}


def test_client_is_parsed() -> None:
    problems = Problems()
    data = {
        "clientId": "acme",
        "limits": [
            {"limitType": "default", "timeIntervalLimit": interval("min", 100)},
            {"limitType": "API", "limitName": "getUsers", "timeIntervalLimit": interval("SEC")},
            {"limitType": "METHOD", "limitName": "put", "timeIntervalLimit": interval("DAY")},
        ],
    }
    found = read_client(data, "clients[0]", problems)
    assert not problems.entries
    assert [limit for _, limit in found] == [
        ClientLimit("acme", "DEFAULT", "GLOBAL", "MIN", 100),
        ClientLimit("acme", "API", "getUsers", "SEC", 5),
        ClientLimit("acme", "METHOD", "PUT", "DAY", 5),
    ]
    assert [path for path, _ in found] == [f"clients[0].limits[{n}]" for n in range(3)]


def limited(**fields: object) -> dict[str, object]:
    return {"clientId": "acme", "limits": [{"timeIntervalLimit": interval(), **fields}]}


CLIENT_ERRORS: list[tuple[object, str]] = [
    ("acme", "must be a mapping with clientId, limits, not 'acme'"),
    ({"limits": []}, "clientId: is missing: write "),
    ({"clientId": "*", "limits": []}, "clientId: '*' would be every client: use default_client_limits instead"),
    ({"clientId": "acme"}, "limits: is missing: write a list of {limitType, limitName, timeIntervalLimit}"),
    ({"clientId": "acme", "limits": {}}, "limits: must be a list"),
    ({"clientId": "acme", "limits": [5]}, "limits[0]: must be a mapping with limitType, limitName, timeIntervalLimit"),
    (limited(), "limits[0].limitType: is missing: write one of DEFAULT, API, METHOD"),
    (limited(limitType="ALL"), "limits[0].limitType: must be one of DEFAULT, API, METHOD, not 'ALL'"),
    (
        limited(limitType="DEFAULT", limitName="x"),
        "limits[0].limitName: the name of a DEFAULT limit must be GLOBAL, not 'x'",
    ),
    (limited(limitType="API"), "limits[0].limitName: is missing: write the API's name, or a path pattern"),
    (limited(limitType="API", limitName=5), "limits[0].limitName: must be text, not 5"),
    (limited(limitType="METHOD", limitName=5), "limits[0].limitName: must be text, not 5"),
    (limited(limitType="METHOD"), "limits[0].limitName: is missing: write a method such as PUT"),
    (limited(limitType="API", limitName="/a*"), "limits[0].limitName: '/a*' has the segment 'a*'"),
    (limited(limitType="METHOD", limitName="G T"), "limits[0].limitName: must be a method such as GET or PUT"),
    (limited(limitType="METHOD", limitName="M" * 33), "limits[0].limitName: must be a method such as GET or PUT"),
    (limited(limitType="DEFAULT", timeIntervalLimit=None), "limits[0].timeIntervalLimit: is missing: write {timeUnit"),
    (
        limited(limitType="DEFAULT", timeIntervalLimit=interval("WEEK")),
        "limits[0].timeIntervalLimit.timeUnit: must be one of SEC, MIN, HOUR, DAY, not 'WEEK'",
    ),
    (
        limited(limitType="DEFAULT", timeIntervalLimit=interval("MIN", -1)),
        "limits[0].timeIntervalLimit.maxRequests: must be a whole number",
    ),
    (
        {"clientId": "acme", "limits": [{"limitType": "DEFAULT", "timeIntervalLimit": interval()}] * 2},
        "limits[1]: has the same limitType and limitName as limits[0]: write each once",
    ),
]


@pytest.mark.parametrize(("data", "message"), CLIENT_ERRORS, ids=lambda value: str(value)[:60])
def test_invalid_clients(data: object, message: str) -> None:
    problems = Problems()
    read_client(data, "", problems)
    assert [problem for problem in problems.entries if message in str(problem)], problems.entries


# -- unconfigured clients -------------------------------------------------------------------------------------------

HOUR_US = 3600 * 1_000_000


def test_seen_clients_are_bounded_and_the_least_recent_is_evicted() -> None:
    clients = SeenClients(capacity=3)
    for now_us, client in enumerate(["a", "b", "c", "a", "d"]):
        clients.record(client, now_us)
    assert [clients.last_us(client) for client in "abcd"] == [3, None, 2, 4]
    assert len(clients) == 3


def test_idle_clients_are_forgotten() -> None:
    clients = SeenClients()
    clients.record("a", 0)
    clients.record("b", 1)
    clients.record("c", HOUR_US)
    assert len(clients) == 3, "an hour is not longer than an hour"
    clients.record("c", HOUR_US + 1)
    assert [clients.last_us(client) for client in "abc"] == [None, 1, HOUR_US + 1]


def test_clock_step_back_forgets_no_client() -> None:
    clients = SeenClients()
    clients.record("a", HOUR_US * 5)
    clients.record("b", 0)
    assert len(clients) == 2


# -- strategies -----------------------------------------------------------------------------------------------------


def strategies_of(section: Any) -> tuple[list[tuple[str, Rule]], list[str]]:
    problems = Problems()
    found = read_strategies(Fields({"strategies": section}, "", problems, ["strategies"]))
    return found, [str(problem) for problem in problems.entries]


def test_strategies_are_rules_for_all_identifiers() -> None:
    found, errors = strategies_of(
        {
            "ip": {"enabled": True, "limit": "100/minute"},
            "API": {"limit": "5/s; 50/min using gcra"},
            "apikey": {"enabled": False, "limit": "1/s"},
        }
    )
    assert not errors
    assert [(rule.rule_id, rule.dimension, rule.identifier, rule.endpoint_pattern) for _, rule in found] == [
        ("strategy:ip", "ip", "*", "*"),
        ("strategy:api", "api", "*", "*"),
        ("strategy:api#2", "api", "*", "*"),
    ]
    assert [rule.compiled() for _, rule in found] == [Limit(100, 60), Limit(5, 1), Limit(50, 60, algorithm="gcra")]
    assert all(reloaded(rule) == rule for _, rule in found)


STRATEGY_ERRORS: list[tuple[object, str]] = [
    ([], "strategies: must be a mapping"),
    (
        {"cookie": {}},
        "strategies.cookie: there is no such strategy: write one of user, apikey, client, ip, api, global",
    ),
    ({"ip": {}}, "strategies.ip.limit: is missing: write "),
    ({"ip": {"limit": "many"}}, "strategies.ip.limit: "),
    ({"ip": {"limit": "5/s", "enabled": "yes"}}, "strategies.ip.enabled: must be true or false, not 'yes'"),
    ({"ip": {"enabled": False, "limit": "5/x"}}, "strategies.ip.limit: "),
    ({"ip": {"limit": "5/s; 9/s"}}, "strategies.ip.limit: has two limits of one period, which would share a counter"),
]


@pytest.mark.parametrize(("section", "message"), STRATEGY_ERRORS, ids=lambda value: str(value)[:50])
def test_invalid_strategies(section: object, message: str) -> None:
    _, errors = strategies_of(section)
    assert [line for line in errors if line.startswith(message)], errors


def test_two_limits_of_one_period_are_refused() -> None:
    with pytest.raises(ConfigError, match="two limits of one period"):
        rules_for_all("client", "x", "x", "5/minute", "100/60 s")
