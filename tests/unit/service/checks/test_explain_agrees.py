"""Explanations agree with the checks that follow, for random rules and requests, on virtual time."""

from __future__ import annotations

import json
import re
import shlex
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from crestgate.rules.editor import Editor
from crestgate.rules.matching.patterns import parse_pattern
from crestgate.rules.port import Actor, Edit
from crestgate.rules.records import rule_of
from crestgate.rules.rule import Rule
from crestgate.service.context import CallContext
from example_counts import examples
from unit.service.worker import Worker

START = 1_700_000_000
VALUES = {"user": ["1", "2"], "ip": ["10.0.0.1"], "apikey": ["k"], "client": ["c"], "key": ["p"]}
PATTERNS = ["*", "/a", "/a/*", "/{x}/b", "/a/b", "named"]
# Not those of the registry: other tests add algorithms that fail.
ALGORITHMS = ("token_bucket", "leaky_bucket", "gcra", "fixed_window", "sliding_window_log", "sliding_window_counter")
Data = dict[str, Any]


def one_of(*values: object) -> st.SearchStrategy[Any]:
    return st.sampled_from(values)


@st.composite
def rule_bodies(draw: st.DrawFn) -> Data:
    dimension = draw(one_of(*VALUES, "user", "user", "api", "global"))
    algorithm, limit = draw(one_of(*ALGORITHMS)), draw(st.integers(0, 4))
    return {
        "dimension": dimension,
        "identifier": draw(one_of("*", *VALUES.get(dimension, ()))),
        "endpoint_pattern": draw(one_of(*PATTERNS)),
        "method": draw(one_of("*", "*", "GET", "POST")),
        "tier": draw(one_of("*", "*", "gold", "free")),
        "algorithm": algorithm,
        "limit": limit,
        "burst": draw(one_of(None, 1, 2, 3, 5, 9)) if limit and "window" not in algorithm else None,
        "window_seconds": draw(one_of(1, 60)),
        "mode": draw(one_of("enforce", "enforce", "enforce", "shadow", "disabled")),
        "expires_at": draw(one_of(None, None, START, START + 3, START + 1000)),
    }


def without_duplicates(bodies: list[Data]) -> list[Data]:
    """Without rules that could not be created beside each other."""
    keys = [Rule.read({"rule_id": "r", **body}).unique_key or n for n, body in enumerate(bodies)]
    return list(dict(zip(keys, bodies, strict=True)).values())


rule_sets = st.lists(rule_bodies(), max_size=12).map(without_duplicates)
contexts = st.fixed_dictionaries(
    {},
    optional={
        "user": one_of("1", "2", "3"),
        "ip": one_of("10.0.0.1", "10.0.0.2"),
        "api_key": one_of("k", "other"),
        "client": one_of("c", "d"),
        "key": one_of("p", "q"),
        "path": one_of("/a", "/a/b", "/x/b", "/a//b", "/A", "named"),
        "method": one_of("GET", "post"),
        "tier": one_of("gold", "silver"),
    },
)
requests = st.lists(st.tuples(contexts, st.integers(0, 3), one_of(0, 0, 0.4, 2)), min_size=1, max_size=8)


def open_worker(bodies: list[Data]) -> Worker:
    return Worker({("rule", f"r{n}"): {"rule_id": f"r{n}", **body} for n, body in enumerate(bodies)})


def explain(worker: Worker, body: Data) -> Data:
    call = CallContext({"method": "POST", "path": "/api/v1/explain", "headers": []}, {}, "id")
    data: Data = json.loads(worker.respond("/api/v1/explain", call, json.dumps(body).encode()).body)
    return data


def parts_of(decision: Data) -> list[str]:
    return [part["rule"] for part in decision.get("parts") or [decision] if part["rule"]]


def slot(rule: Data, body: Data) -> tuple[object, ...]:
    pattern = parse_pattern(rule["endpoint_pattern"]).key
    return rule["dimension"], pattern, rule["method"], body["window_seconds"], rule["mode"]


@settings(max_examples=examples(100), deadline=None)
@given(rule_sets, requests)
def test_explain_agrees_with_the_check_that_follows(bodies: list[Data], asked: list[tuple[Data, int, float]]) -> None:
    worker, twin = open_worker(bodies), open_worker(bodies)
    by_id = {f"r{n}": body for n, body in enumerate(bodies)}
    try:
        for context, cost, pause in asked:
            body = {"context": context, "cost": cost}
            explained = explain(worker, body)
            assert explain(worker, body) == explained
            decided = worker.post("/api/v1/check", body)
            assert decided == twin.post("/api/v1/check", body), "explaining has consumed something"
            agrees(explained, decided)
            names = {rule["rule_id"]: rule for rule in explained["rules"]}
            assert {*by_id} <= {*names}, "a rule was not considered"
            for rule in explained["rules"]:
                if rule["status"] == "lost":
                    winner = names[rule["lost_to"]]
                    assert winner["status"] in ("applies", "shadow")
                    assert slot(rule, by_id[rule["rule_id"]]) == slot(winner, by_id[winner["rule_id"]])
            worker.clock.advance(pause)
            twin.clock.advance(pause)
    finally:
        worker.close()
        twin.close()


def agrees(explained: Data, decided: Data) -> None:
    decision = explained["decision"]
    assert decision["allowed"] == decided["allowed"]
    assert decision["reason"] == decided["reason"]
    if not decided["allowed"]:
        binding = [{name: value for name, value in one.items() if name != "shadows"} for one in (decision, decided)]
        assert binding[0] == binding[1]
    of_status = {
        status: [rule["rule_id"] for rule in explained["rules"] if rule["status"] == status]
        for status in ("applies", "shadow")
    }
    assert of_status["applies"] == parts_of(decided) == parts_of(decision)
    assert of_status["shadow"] == [shadow["rule"] for shadow in decided.get("shadows", ())]
    for rule in explained["rules"]:
        assert (rule["counter"] is not None) == (rule["status"] in ("applies", "shadow"))


@pytest.mark.parametrize("burst", [None, 7])
@pytest.mark.parametrize("algorithm", ALGORITHMS)
def test_limit_that_would_admit_is_the_smallest(algorithm: str, burst: int | None) -> None:
    if burst is not None and "window" in algorithm:
        return
    body: Data = {
        "rule_id": "it",
        "dimension": "user",
        "limit": 5,
        "window_seconds": 60,
        "algorithm": algorithm,
        "burst": burst,
    }
    worker = Worker({("rule", "it"): body})
    check = {"context": {"user": "1"}, "cost": 3}
    try:
        while worker.post("/api/v1/check", check)["allowed"]:
            worker.clock.advance(0.7)
        (change,) = [one for one in explain(worker, check)["changes"] if one.startswith("rule it") and "least" in one]
        needed = int(re.findall(r"\d+", change)[0])
        field = "limit" if burst is None else "burst"
        for value, allowed in ((needed - 1, False), (needed, True)):
            worker.repository.write([Edit("rule", "it", {**body, field: value})], Actor("test"))
            worker.catalog.refresh()
            assert explain(worker, check)["decision"]["allowed"] is allowed
    finally:
        worker.close()


def run_override(worker: Worker, command: str) -> Rule:
    """Do what `crestgate override USER RULE LIMIT --for 2h` does."""
    program, verb, user, rule_id, limit, option, lasts = shlex.split(command)
    assert (program, verb, option, lasts) == ("crestgate", "override", "--for", "2h")
    record = worker.repository.get("rule", rule_id)
    assert record is not None
    return Editor(worker.repository, Actor("test"), now_us=worker.clock.ticks).override(
        user, rule_of(record), int(limit), 7200
    )


def suggested_overrides(explained: Data) -> list[str]:
    found = [one.partition(": ")[2] for one in explained["changes"] if one.startswith("an override for user ")]
    return found[0].split(" && ") if found else []


user_rules = st.lists(
    rule_bodies().map(lambda body: {**body, "dimension": "user", "identifier": "*", "mode": "enforce"}), max_size=6
).map(without_duplicates)


@settings(max_examples=examples(100), deadline=None)
@given(user_rules, requests)
def test_suggested_overrides_admit_the_request(bodies: list[Data], asked: list[tuple[Data, int, float]]) -> None:
    worker = open_worker(bodies)
    try:
        for context, cost, pause in asked:
            body = {"context": {**context, "user": "1"}, "cost": cost}
            commands = suggested_overrides(explain(worker, body))
            for command in commands:
                assert run_override(worker, command).rule_id.count("override:") == 1
            worker.catalog.refresh()
            assert worker.post("/api/v1/check", body)["allowed"] or not commands
            worker.clock.advance(pause)
    finally:
        worker.close()


@pytest.mark.parametrize(("burst", "counts"), [(2, [6, 8, 11]), (10, [6, 7, 8]), (None, [6, 7, 8])])
def test_suggested_override_raises_the_limit_and_names_the_base(burst: int | None, counts: list[int]) -> None:
    body: Data = {"dimension": "user", "limit": 5, "window_seconds": 60, "algorithm": "gcra", "burst": burst}
    worker = open_worker([body])
    request = {"context": {"user": "mallory"}, "cost": 1}
    try:
        for count in counts:
            while worker.post("/api/v1/check", request)["allowed"]:
                pass
            (command,) = suggested_overrides(explain(worker, request))
            assert command == f"crestgate override mallory r0 {count} --for 2h"
            run_override(worker, command)
            worker.catalog.refresh()
            assert worker.post("/api/v1/check", request)["allowed"]
    finally:
        worker.close()
