"""Replays: the decisions of the library on the same requests, what is counted, and its bounds."""

from __future__ import annotations

import random
import tracemalloc
from fractions import Fraction
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from naive import Naive
from naive_rules import naive_chain

from crestgate.core.context import RequestContext
from crestgate.errors import ConfigError
from crestgate.rules.rule import Rule
from crestgate.rules.ruleset import RuleSet
from crestgate.simulate.bad_lines import BadLines
from crestgate.simulate.logged_request import LoggedRequest
from crestgate.simulate.reorder import Reorder
from crestgate.simulate.replay import Replay
from crestgate.simulate.report import build_report
from crestgate.simulate.session import simulate_log
from crestgate.simulate.suggest import RuleTraffic, parse_share, suggest_limit
from crestgate.simulate.tallies import MAX_POINTS, Tallies, TimeSeries
from unit.simulate.logs import PER_USER, START, combined, rule_set, write_log

SECOND = 1_000_000


def replayed(rules: RuleSet, requests: list[LoggedRequest], against: RuleSet | None = None) -> Replay:
    replay = Replay(rules, against, BadLines())
    replay.run(requests)
    return replay


def requests_of(*users: str, seconds: int = 0) -> list[LoggedRequest]:
    return [LoggedRequest((START + i * seconds) * SECOND, i + 1, user=user) for i, user in enumerate(users)]


def test_denials_by_rule_and_subject() -> None:
    report = build_report(replayed(rule_set(PER_USER), requests_of(*"aaaaabbbb")))
    assert (report["requests"], report["denied"]) == (9, 3)
    [rule] = report["rules"]
    assert (rule["requests"], rule["denied"], rule["subjects"], rule["subjects_denied"]) == (9, 3, 2, 2)
    assert [(one["subject"], one["denied"]) for one in report["subjects"]] == [("user:a", 2), ("user:b", 1)]


def test_shadow_rules_are_reported_apart() -> None:
    shadow = {**PER_USER, "rule_id": "strict", "limit": 1, "mode": "shadow"}
    report = build_report(replayed(rule_set(PER_USER, shadow), requests_of(*"aaa")))
    assert report["denied"] == 0
    assert [(one["rule_id"], one["denied"]) for one in report["shadow_rules"]] == [("strict", 2)]
    assert report["subjects"] == []
    assert report["shadow_subjects"][0]["subject"] == "user:a"


def test_comparison_with_other_rules() -> None:
    today = rule_set({**PER_USER, "limit": 5})
    looser_for_b = rule_set({**PER_USER, "limit": 2}, {**PER_USER, "rule_id": "b", "identifier": "b", "limit": 9})
    report = build_report(replayed(looser_for_b, requests_of(*"aaaabbbbbbb"), today))
    against = report["against"]
    assert (report["denied"], against["denied"]) == (2, 2)
    assert (against["newly_denied"], against["newly_allowed"]) == (2, 2)
    assert report["subjects"][0] == {
        "subject": "user:a",
        "rule_id": "per-user",
        "requests": 4,
        "denied": 2,
        "share_denied": 0.5,
        "newly_denied": 2,
    }
    assert against["subjects"][0]["subject"] == "user:b"
    assert against["subjects"][0]["newly_allowed"] == 2


def test_api_keys_are_shown_as_digests() -> None:
    rules = rule_set({"rule_id": "k", "dimension": "apikey", "limit": 1, "window_seconds": 60})
    requests = [LoggedRequest(START * SECOND, api_key="secret") for _ in range(2)]
    report = build_report(replayed(rules, requests))
    assert report["subjects"][0]["subject"] == "apikey:sha256:ca195b975018"
    assert "secret" not in str(report)


def test_value_that_no_rule_can_match_is_a_bad_line() -> None:
    replay = replayed(rule_set(PER_USER), [LoggedRequest(START * SECOND, 7, user="x" * 2000)])
    assert (replay.requests, replay.bad.count) == (0, 1)
    assert replay.bad.first is not None
    assert replay.bad.first[0] == 7


def test_lines_out_of_order_are_sorted_within_the_window(tmp_path: Path) -> None:
    lines = [combined(START + at, "a") for at in (0, 3, 1, 2, 9, 5, 62)]
    limited = {**PER_USER, "window_seconds": 1, "limit": 1}
    report = simulate_log(write_log(tmp_path, lines), rule_set(limited))
    assert (report["denied"], report["late"]) == (0, 0)


def test_later_lines_are_replayed_at_the_time_of_their_neighbours() -> None:
    reorder = Reorder(window_us=10 * SECOND, max_held=2)
    first = reorder.add([LoggedRequest(at * SECOND, at) for at in (100, 101, 120)])
    assert [one.time_us // SECOND for one in first] == [100, 101]
    replay = replayed(rule_set(PER_USER), [*first, *reorder.add([LoggedRequest(50 * SECOND, 4)]), *reorder.flush()])
    assert (replay.requests, replay.late) == (4, 1)
    assert replay.clock.now_us == 120 * SECOND


def test_reordering_holds_a_bounded_number() -> None:
    reorder = Reorder(max_held=10)
    ready = reorder.add([LoggedRequest(5, line) for line in range(25)])
    assert [one.line for one in ready] == list(range(15))


def test_empty_log(tmp_path: Path) -> None:
    report = simulate_log(write_log(tmp_path, []), rule_set(PER_USER))
    assert (report["requests"], report["share_denied"], report["from"]) == (0, 0.0, None)


def test_log_without_any_usable_line_is_an_error(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="line 1: not the combined log format"):
        simulate_log(write_log(tmp_path, ["what\n", "is\n"]), rule_set(PER_USER))


def test_time_series_merges_into_longer_steps() -> None:
    series = TimeSeries(max_points=10)
    for second in range(0, 100_000, 7):
        series.count(second * SECOND, second % 2 == 0, False)
    assert len(series.points) <= 10
    assert sum(point.requests for point in series.points.values()) == len(range(0, 100_000, 7))
    assert series.seconds == 10_800


def test_subjects_are_bounded_and_those_hit_most_stay() -> None:
    rules = rule_set(PER_USER)
    replay = Replay(rules, None, BadLines())
    replay.proposed.tallies = Tallies(max_subjects=50)
    replay.run(requests_of(*["heavy"] * 10, *(f"user-{number}" for number in range(500)), *["heavy"] * 2))
    report = build_report(replay)
    assert replay.proposed.tallies.size <= 50
    assert report["exact_subjects"] is False
    assert report["subjects"][0]["subject"] == "user:heavy"
    assert report["subjects"][0]["denied"] == 9


def test_memory_does_not_grow_with_the_log(tmp_path: Path) -> None:
    def lines(count: int) -> list[str]:
        return [combined(START + number // 20, f"u{number % 500}", f"/p/{number % 50}") for number in range(count)]

    peaks = []
    for count in (6_000, 18_000):  # both are more than is read at a time
        path = write_log(tmp_path, lines(count))
        tracemalloc.start()
        simulate_log(path, rule_set(PER_USER))
        peaks.append(tracemalloc.get_traced_memory()[1])
        tracemalloc.stop()
    assert peaks[1] < 1.6 * peaks[0], peaks


ALGORITHMS = ("token_bucket", "leaky_bucket", "gcra", "fixed_window", "sliding_window_log", "sliding_window_counter")
rule_shapes: st.SearchStrategy[dict[str, Any]] = st.builds(
    dict,
    dimension=st.sampled_from(["user", "ip", "api", "global"]),
    endpoint_pattern=st.sampled_from(["*", "/a", "/a/*", "/{x}"]),
    method=st.sampled_from(["*", "GET"]),
    algorithm=st.sampled_from(ALGORITHMS),
    limit=st.integers(0, 4),
    window_seconds=st.sampled_from([1, 2, 10]),
    mode=st.sampled_from(["enforce", "enforce", "shadow"]),
)
log_shapes = st.lists(
    st.tuples(
        st.integers(0, 3_000_000),
        st.sampled_from(["x", "y", None]),
        st.sampled_from(["10.0.0.1", "10.0.0.2"]),
        st.sampled_from(["/a", "/a/b", "/c"]),
        st.sampled_from(["GET", "POST"]),
        st.integers(0, 3),
    ),
    max_size=30,
)


@settings(max_examples=60, deadline=None)
@given(st.lists(rule_shapes, min_size=1, max_size=5), log_shapes)
def test_every_decision_agrees_with_the_model(
    shapes: list[dict[str, object]], log: list[tuple[int, str | None, str, str, str, int]]
) -> None:
    """The model shares no code with resolver, store and algorithms."""
    by_slot: dict[str, Rule] = {}
    for number, shape in enumerate(shapes):
        rule = Rule.read({**shape, "rule_id": f"r{number}"})
        by_slot.setdefault(rule.counter, rule)
    rules = {rule.rule_id: rule for rule in by_slot.values()}
    replay = Replay(RuleSet.empty().edited(rules.values()), None, BadLines())
    counters: dict[tuple[str, str], Naive] = {}
    now = START * SECOND
    for step, user, ip, path, method, cost in log:
        now += step
        context = RequestContext(user=user, ip=ip, path=path, method=method)
        verdicts: dict[tuple[str, str], bool] = {}
        for winner in naive_chain(list(rules.values()), context, {}, (), now):
            rule = rules[winner[0]]
            if winner not in counters:
                counters[winner] = Naive(rule.algorithm, rule.limit, int(rule.window_seconds * SECOND), None)
            verdicts[winner] = counters[winner].peek(now, cost).allowed
        allowed = all(ok for (name, _), ok in verdicts.items() if rules[name].mode == "enforce")
        for winner, ok in verdicts.items():
            if allowed and ok:
                counters[winner].take(now, cost)
        denied_before = replay.proposed.denied
        replay.run([LoggedRequest(now, 1, ip, user, path, method, cost=cost)])
        assert (replay.proposed.denied == denied_before) is allowed
        denying = {tally.rule.rule_id for tally, _ in replay.proposed.denials}
        assert denying == {n for (n, _), ok in verdicts.items() if not ok and rules[n].mode == "enforce"}


@pytest.mark.parametrize("of", ["requests", "subjects"])
@pytest.mark.parametrize("algorithm", ALGORITHMS)
def test_suggested_limit_is_the_smallest(of: str, algorithm: str) -> None:
    draw = random.Random(11)
    users = [f"u{int(draw.paretovariate(1.0)) % 40}" for _ in range(400)]
    requests = [LoggedRequest((START + number // 4) * SECOND, number, user=user) for number, user in enumerate(users)]
    rule = {**PER_USER, "algorithm": algorithm, "window_seconds": 20}
    traffic = RuleTraffic(rule_set(rule), "per-user")
    traffic.add(requests)
    share = parse_share("10%")
    suggestion = suggest_limit(traffic, share, of)
    traffic.close()
    shares = []
    for limit in (suggestion.limit, suggestion.limit - 1):
        replay = replayed(rule_set({**rule, "limit": limit}), requests)
        [tally] = replay.proposed.tallies.rules.values()
        denied = tally.denied if of == "requests" else sum(1 for one in tally.subjects.values() if one.denied)
        shares.append(Fraction(denied, tally.requests if of == "requests" else len(tally.subjects)))
    assert shares[0] <= share < shares[1]
    assert (
        suggestion.denied_requests == replayed(rule_set({**rule, "limit": suggestion.limit}), requests).proposed.denied
    )


def test_suggestion_that_a_burst_prevents() -> None:
    rule = {**PER_USER, "algorithm": "token_bucket", "burst": 1}
    traffic = RuleTraffic(rule_set(rule), "per-user")
    traffic.add(requests_of(*"aaaa"))
    with pytest.raises(ConfigError, match="its burst of 1"):
        suggest_limit(traffic, parse_share("1%"), "requests")


@pytest.mark.parametrize(("text", "share"), [("1%", "1/100"), ("0.01", "1/100"), ("0", "0"), (" 2.5 % ", "1/40")])
def test_share(text: str, share: str) -> None:
    assert parse_share(text) == Fraction(share)


@pytest.mark.parametrize("text", ["", "101%", "-1", "2", "1%x", "1/100", "many", "nan"])
def test_bad_share(text: str) -> None:
    with pytest.raises(ConfigError, match="--deny-at-most"):
        parse_share(text)


def test_suggestion_for_unknown_rule_names_those_there_are() -> None:
    with pytest.raises(ConfigError, match="no rule 'x' in the rules; there are: per-user"):
        RuleTraffic(rule_set(PER_USER), "x")


def test_points_of_the_series_are_bounded() -> None:
    assert MAX_POINTS <= 300
