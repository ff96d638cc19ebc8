"""Requests under rules, decided by both limiters."""

from __future__ import annotations

import asyncio
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest

from crestgate import AsyncLimiter, ConfigError, Limiter, PressureEvent, RequestContext, StoreClosedError
from crestgate.rules.catalog import Catalog
from crestgate.rules.evaluator import RuleEvaluator
from crestgate.rules.port import Edit
from unit.limiter.rule_limiters import NEVER, Kind, Maker, RuleLimiter
from unit.rules.cases import NOW_US

# -- chains ---------------------------------------------------------------------------------------------------------


def test_chain_is_all_or_nothing_across_subjects(make_limiter: Maker) -> None:
    gate = make_limiter("u user limit=10\ni ip limit=20\ng global limit=2")
    assert gate.admits("user=1 ip=10.0.0.1", 5) == 2
    assert gate.remaining("user=1 ip=10.0.0.1") == [8, 18, 0], "a denied request consumes nothing"
    assert gate.remaining("user=2 ip=10.0.0.2") == [10, 20, 0]


def test_any_limit_of_a_chain_may_deny(make_limiter: Maker) -> None:
    gate = make_limiter("u user limit=2\ng global limit=10")
    assert gate.admits("user=1", 5) == 2
    assert gate.remaining("user=1") == [0, 8]
    assert gate.check("user=2").allowed


def test_decision_names_the_rule_that_decided(make_limiter: Maker) -> None:
    gate = make_limiter("per-user user limit=10\nper-address ip limit=2 5s\nall global limit=50")
    decision = gate.check("user=1 ip=10.0.0.1")
    assert (decision.name, decision.limit, decision.remaining, decision.reason) == ("per-address", 2, 1, "ok")
    assert [part.name for part in decision.parts] == ["per-user", "per-address", "all"]
    assert [part.remaining for part in decision.parts] == [9, 1, 49]
    gate.check("user=1 ip=10.0.0.1")
    denied = gate.check("user=1 ip=10.0.0.1")
    assert (denied.allowed, denied.name, denied.reason) == (False, "per-address", "limited")
    assert [part.allowed for part in denied.parts] == [True, False, True]
    assert denied.retry_after is not None
    gate.clock.advance(denied.retry_after)
    assert gate.check("user=1 ip=10.0.0.1").allowed


def test_single_rule_is_a_chain_of_one(make_limiter: Maker) -> None:
    decision = make_limiter("u user limit=10").check("user=1")
    assert (decision.name, decision.remaining) == ("u", 9)
    assert decision.parts == (decision,)


def test_subjects_do_not_share_counters(make_limiter: Maker) -> None:
    gate = make_limiter("u user limit=1\nk key limit=1\ni ip limit=1")
    for request in ("user=1", "user=2", "user=1|2", "key=1", "key=user:1", "ip=10.0.0.1", "ip=1"):
        assert gate.check(request).allowed, request
        assert not gate.check(request).allowed, request


def test_ipv6_callers_share_a_counter_per_network(make_limiter: Maker) -> None:
    gate = make_limiter("i ip limit=2")
    assert gate.check("ip=2001:db8::1").allowed
    assert gate.check("ip=2001:db8::2").allowed
    assert not gate.check("ip=2001:db8::3").allowed
    assert gate.check("ip=2001:db8:0:1::1").allowed


def test_equivalent_paths_share_a_counter(make_limiter: Maker) -> None:
    gate = make_limiter("a api on=/orders limit=2")
    assert [gate.check(f"path={path}").allowed for path in ("/orders/", "//%6Frders;x=1", "/x/../orders")] == [
        True,
        True,
        False,
    ]


def test_concurrent_threads_admit_exactly_the_limit() -> None:
    gate = RuleLimiter("sync", "u user limit=150\ng global limit=100\ns user shadow limit=30")
    with ThreadPoolExecutor(8) as pool:
        answers = list(pool.map(lambda n: gate.check(f"user={n % 2}"), range(300)))
    assert sum(answer.allowed for answer in answers) == 100
    gate.close()


# -- peek, reset, cost ----------------------------------------------------------------------------------------------


def test_peek_request_equals_check_request(make_limiter: Maker) -> None:
    gate = make_limiter("u user limit=3\ng global limit=2\ns user shadow limit=1")
    for _ in range(4):
        before = gate.peek("user=1")
        assert gate.peek("user=1") == before, "a peek changes nothing"
        done = gate.check("user=1")
        assert (before.allowed, before.reason, before.retry_after) == (done.allowed, done.reason, done.retry_after)
        assert [shadow.allowed for shadow in before.shadows] == [shadow.allowed for shadow in done.shadows]


def test_peek_counts_neither_shadow_denials_nor_clients(make_limiter: Maker) -> None:
    gate = make_limiter("s user shadow limit=0")
    assert gate.peek("user=1 client=new").reason == "shadow"
    assert gate.limiter.shadow_denials == {}
    assert len(unknown_clients(gate)) == 0


def test_reset_request_clears_all_counters(make_limiter: Maker) -> None:
    gate = make_limiter("u user limit=2\ng global limit=2\ns user shadow limit=2")
    assert gate.admits("user=1", 3) == 2
    gate.reset("user=1")
    assert gate.remaining("user=1") == [2, 2]
    assert [shadow.remaining for shadow in gate.peek("user=1").shadows] == [2]
    assert gate.check("user=1").state == "normal", "its pressure state is cleared too"


def test_reset_request_does_not_affect_others(make_limiter: Maker) -> None:
    gate = make_limiter("u user limit=2")
    gate.check("user=1")
    gate.check("user=2")
    gate.reset("user=1")
    assert (gate.remaining("user=1"), gate.remaining("user=2")) == ([2], [1])
    gate.reset("ip=10.0.0.1")  # no rule applies: nothing to reset


def test_cost_is_charged_to_every_rule(make_limiter: Maker) -> None:
    gate = make_limiter("u user limit=10\ng global limit=20")
    assert gate.check("user=1", 4).allowed
    assert gate.remaining("user=1") == [6, 16]
    assert not gate.check("user=1", 7).allowed
    assert gate.check("user=1", 6).allowed
    assert gate.check("user=1", 0).allowed, "a cost of 0 passes"
    never = gate.check("user=1", 21)
    assert (never.reason, never.retry_after) == ("cost_exceeds_limit", None)
    assert gate.remaining("user=1") == [0, 10]


def test_limit_of_zero_blocks(make_limiter: Maker) -> None:
    gate = make_limiter("u user limit=10\nb user for=1 limit=0 on=/admin")
    blocked = gate.check("user=1 path=/admin")
    assert (blocked.allowed, blocked.reason, blocked.name, blocked.retry_after) == (False, "blocked", "b", None)
    assert gate.check("user=1 path=/").remaining == 9


BAD: list[tuple[Any, Any, type[Exception], str]] = [
    (RequestContext(user="1", client="c"), -1, ValueError, "cost must be a whole number from 0 to 2147483647, not -1"),
    (RequestContext(user="1", client="c"), 2**31, ValueError, "cost must be a whole number from 0 to 2147483647"),
    (
        RequestContext(user="1", client="c"),
        1.0,
        ValueError,
        "cost must be a whole number from 0 to 2147483647, not 1.0",
    ),
    (RequestContext(user="1", client="c"), "1", ValueError, "cost must be a whole number"),
    (RequestContext(user="1", client=""), 1, ValueError, "client must not be empty"),
    (RequestContext(user="1", client="c", ip="x" * 1025), 1, ValueError, "ip is 1025 bytes long"),
    (RequestContext(user="1", client="c", method=b"GET"), 1, TypeError, "method must be text"),  # type: ignore[arg-type]  # on purpose
    (RequestContext(user="1", client="c", key=7), 1, TypeError, "key must be text or None, not int"),  # type: ignore[arg-type]  # on purpose
    ({"user": "1"}, 1, TypeError, "rules are matched against a RequestContext, not dict"),
    (None, 1, TypeError, "rules are matched against a RequestContext, not NoneType"),
]


@pytest.mark.parametrize(("context", "cost", "error", "words"), BAD, ids=lambda value: str(value)[:40])
def test_invalid_input_changes_nothing(
    make_limiter: Maker, context: Any, cost: Any, error: type[Exception], words: str
) -> None:
    gate = make_limiter("u user limit=5\ng global limit=5")
    for ask in (gate.check, gate.peek):
        with pytest.raises(error) as caught:
            ask(context, cost)
        assert words in str(caught.value)
    assert gate.remaining("user=1") == [5, 5]
    assert len(unknown_clients(gate)) == 0


# -- no rules -------------------------------------------------------------------------------------------------------


def test_request_without_rules_is_not_limited(make_limiter: Maker) -> None:
    gate = make_limiter("u user limit=1")
    for decision in (gate.check("ip=10.0.0.1", 2**31 - 1), gate.peek("ip=10.0.0.1")):
        assert (decision.allowed, decision.reason, decision.parts, decision.shadows) == (True, "no_rule", (), ())
        assert (decision.retry_after, decision.reset_after, decision.delay) == (0.0, 0.0, 0.0)
        assert decision.state == "normal"


def test_limiter_without_rules_explains_how_to_get_them(kind: Kind) -> None:
    if kind == "sync":
        with Limiter() as limiter, pytest.raises(ConfigError, match="this limiter has no rules to match a request"):
            limiter.check_request(RequestContext(user="1"))
    else:
        with pytest.raises(ConfigError, match="from_config"):
            asyncio.run(AsyncLimiter().check_request(RequestContext(user="1")))


# -- shadow rules ---------------------------------------------------------------------------------------------------


def test_shadow_rule_never_denies_and_its_denials_are_counted(make_limiter: Maker) -> None:
    gate = make_limiter("u user limit=10\ns user shadow limit=2")
    answers = [gate.check("user=1") for _ in range(5)]
    assert [answer.allowed for answer in answers] == [True] * 5
    assert [answer.reason for answer in answers] == ["ok", "ok", "shadow", "shadow", "shadow"]
    assert gate.limiter.shadow_denials == {"s": 3}
    last = answers[-1]
    assert (last.name, last.remaining) == ("u", 5), "the numbers are those of the rules that bind"
    assert [part.name for part in last.parts] == ["u"]
    assert [(shadow.name, shadow.allowed, shadow.remaining) for shadow in last.shadows] == [("s", False, 0)]


def test_shadow_rule_has_its_own_counters(make_limiter: Maker) -> None:
    gate = make_limiter("u user limit=10")
    gate.check("user=1", 6)
    gate.put("s user shadow limit=10")
    decision = gate.check("user=1")
    assert (decision.remaining, decision.shadows[0].remaining) == (3, 9)


def test_shadow_rule_is_not_charged_for_denied_requests(make_limiter: Maker) -> None:
    gate = make_limiter("u user limit=2\ns global shadow limit=5")
    assert gate.admits("user=1", 6) == 2
    assert [shadow.remaining for shadow in gate.peek("user=1").shadows] == [3]
    assert gate.limiter.shadow_denials == {}
    assert gate.check("user=1").reason == "limited", "a denied request is not a shadow denial"


def test_shadow_rules_are_independent(make_limiter: Maker) -> None:
    gate = make_limiter("s user shadow limit=1\nt global shadow limit=3")
    shadows = [[shadow.allowed for shadow in gate.check("user=1").shadows] for _ in range(4)]
    assert shadows == [[True, True], [False, True], [False, True], [False, False]]
    assert gate.limiter.shadow_denials == {"s": 3, "t": 1}


def test_shadow_rule_alone_is_no_rule_until_it_would_deny(make_limiter: Maker) -> None:
    gate = make_limiter("s user shadow limit=1")
    answers = [gate.check("user=1") for _ in range(2)]
    assert [(answer.allowed, answer.reason, answer.parts) for answer in answers] == [
        (True, "no_rule", ()),
        (True, "shadow", ()),
    ]


def test_shadow_rule_never_delays(make_limiter: Maker) -> None:
    gate = make_limiter("u user limit=10\ns user shadow limit=2 60s algorithm=leaky_bucket")
    gate.check("user=1")
    second = gate.check("user=1")
    assert (second.delay, second.retry_after) == (0.0, 0.0)
    assert second.shadows[0].delay == 30.0, "it would have"


def test_denials_of_removed_shadow_rules_are_dropped(make_limiter: Maker) -> None:
    gate = make_limiter("s user shadow limit=0\nt user shadow 5s limit=100")
    gate.check("user=1")
    gate.write(Edit("rule", "s", None))
    gate.put("t user shadow 5s limit=0")
    gate.check("user=1")
    assert gate.limiter.shadow_denials == {"t": 1}


# -- changes in the middle of a window ------------------------------------------------------------------------------


@pytest.mark.parametrize("algorithm", ["sliding_window_counter", "token_bucket", "fixed_window", "gcra"])
def test_raised_tier_keeps_the_counter(make_limiter: Maker, algorithm: str) -> None:
    gate = make_limiter(
        f"free user tier=free limit=100 3600s algorithm={algorithm}\n"
        f"gold user tier=gold limit=1000 3600s algorithm={algorithm}"
    )
    gate.check("user=alice", 60)
    gate.write(Edit("tier", "alice", {"tier": "gold"}))
    raised = gate.peek("user=alice")
    assert (raised.name, raised.limit, raised.remaining) == ("gold", 1000, 940)
    gate.check("user=alice", 500)
    gate.write(Edit("tier", "alice", None))
    lowered = gate.check("user=alice")
    assert (lowered.allowed, lowered.name, lowered.remaining) == (False, "free", 0), "a lowered tier keeps it too"


def test_tier_of_the_context_takes_effect_immediately(make_limiter: Maker) -> None:
    gate = make_limiter("free user tier=free limit=10\ngold user tier=gold limit=100")
    gate.check("user=alice", 6)
    assert gate.remaining("user=alice tier=gold") == [94]


def test_override_expires_and_the_counter_continues(make_limiter: Maker) -> None:
    gate = make_limiter("base user limit=2 60s algorithm=fixed_window")
    gate.clock.advance(60 - gate.clock.now() % 60)  # the beginning of a window
    assert gate.admits("user=1", 3) == 2
    ends = gate.clock.now() - NOW_US / 1_000_000 + 10
    gate.put(f"more user for=1 limit=5 60s algorithm=fixed_window ends=+{ends}")
    assert (gate.peek("user=1").name, gate.admits("user=1", 5)) == ("more", 3)
    assert gate.admits("user=2", 3) == 2, "the override applies to one user only"
    gate.clock.advance(9.999999)
    assert gate.peek("user=1").limit == 5
    gate.clock.advance(0.000001)
    ended = gate.check("user=1")
    assert (ended.allowed, ended.name, ended.limit, ended.remaining) == (False, "base", 2, 0)
    gate.clock.advance(50)
    assert gate.admits("user=1", 5) == 2


def test_recreated_rule_keeps_its_counter(make_limiter: Maker) -> None:
    gate = make_limiter("a user limit=10")
    gate.check("user=1", 7)
    gate.write(Edit("rule", "a", None))
    assert gate.check("user=1").reason == "no_rule"
    gate.put("b user limit=10")
    assert gate.remaining("user=1") == [3]


def test_plans_come_from_the_catalog(make_limiter: Maker) -> None:
    gate = make_limiter("u user")
    gate.write(Edit("plan", "fast", {"limits": ["2/minute", "100/hour"]}))
    assert [gate.check_key("k", "fast").allowed for _ in range(3)] == [True, True, False]
    gate.write(Edit("plan", "fast", {"limits": ["5/minute", "100/hour"]}))
    assert gate.check_key("k", "fast").allowed, "a changed plan applies from the next check on, and keeps its counter"
    assert gate.check_key("k", "fast").parts[0].remaining == 1
    gate.write(Edit("plan", "fast", None))
    with pytest.raises(ConfigError, match="fast"):
        gate.check_key("k", "fast")


# -- clients without configuration ----------------------------------------------------------------------------------


def unknown_clients(gate: RuleLimiter) -> Any:
    evaluator = gate.limiter.evaluator
    assert isinstance(evaluator, RuleEvaluator)
    return evaluator.seen_clients


def test_unknown_client_gets_default_limit_and_is_listed(make_limiter: Maker) -> None:
    gate = make_limiter("c client for=acme limit=5")
    assert gate.admits("client=new", 120) == 100
    assert unknown_clients(gate).last_us("new") == NOW_US
    assert gate.admits("client=acme", 10) == 5
    assert unknown_clients(gate).last_us("acme") is None
    assert gate.repository.revision == 1, "nothing is stored for it"


def test_configured_client_keeps_its_counter(make_limiter: Maker) -> None:
    gate = make_limiter("u user")
    gate.check("client=new", 30)
    gate.put("c client for=new limit=100 algorithm=token_bucket")
    decision = gate.peek("client=new")
    assert (decision.name, decision.remaining) == ("c", 70)


# -- pressure -------------------------------------------------------------------------------------------------------


def test_pressure_counts_binding_rules_only(make_limiter: Maker) -> None:
    events: list[PressureEvent] = []
    gate = make_limiter("u user limit=10\ns user shadow limit=1", on_pressure=events.append)
    states = [gate.check("user=1").state for _ in range(11)]
    assert states == ["normal"] * 8 + ["warning", "throttled", "throttled"]
    assert [(event.key, event.decision.name, event.before, event.after) for event in events] == [
        ("user:1", "u", "normal", "warning"),
        ("user:1", "u", "warning", "throttled"),
    ]
    assert gate.peek("user=1").state == "throttled"
    gate.reset("user=1")
    assert gate.peek("user=1").state == "normal"


def test_each_counter_of_a_chain_has_its_own_pressure(make_limiter: Maker) -> None:
    gate = make_limiter("u user limit=2\ng global limit=100")
    gate.check("user=1")
    assert [part.state for part in gate.check("user=1").parts] == ["throttled", "normal"]
    assert [part.state for part in gate.check("user=2").parts] == ["normal", "normal"]


# -- closing --------------------------------------------------------------------------------------------------------


def test_closing_closes_the_store(kind: Kind) -> None:
    gate = RuleLimiter(kind, "u user")
    runner, gate.runner = gate.runner, asyncio.Runner()
    gate.close()
    gate.runner = runner
    with pytest.raises(StoreClosedError):
        gate.check("user=1")
    runner.close()


def test_catalog_may_be_empty() -> None:
    catalog = Catalog([], NEVER)
    with Limiter("memory://", catalog=catalog) as limiter:
        assert limiter.check_request(RequestContext(user="1")).reason == "no_rule"


# -- in-flight limits -----------------------------------------------------------------------------------------------


def test_check_under_an_in_flight_rule_takes_no_slot(make_limiter: Maker) -> None:
    gate = make_limiter("slots user limit=2 algorithm=concurrency\nall global limit=5")
    assert gate.admits("user=1", 3) == 3
    assert gate.remaining("user=1") == [2, 2]
