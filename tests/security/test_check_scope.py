"""Scope `check` may take, peek, and settle its own takes. Nothing else."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import httpx
import pytest

from conformance.service_here import KEY, ServiceHere
from crestgate import Limit, Limiter
from crestgate.core.algorithms import ALGORITHMS, build
from crestgate.core.plans import Resolver
from crestgate.errors import ConfigError
from crestgate.rules.port import Actor, AuditQuery
from crestgate.rules.rule import Rule
from crestgate.service.auth.keys import create_key
from crestgate.stores.memory import MemoryStore
from crestgate.stores.port import IdempotencyRecord, Member, Op, Request
from crestgate.stores.remote.http_connection import ServiceAddress
from crestgate.stores.remote.store import ServiceStore
from crestgate.stores.shared import SharedStore
from crestgate.testing import FakeClock
from integration.service.service_process import Service

START = 1_700_000_000
SIX = ("token_bucket", "leaky_bucket", "gcra", "fixed_window", "sliding_window_counter", "sliding_window_log")
RULE = "rule|user|*|3600|/o/*"
MAX_DEBT = 2**31 - 1
RULES = "plans:\n" + "".join([f"  {name}: [3/hour using {name}, 2/day using {name}]\n" for name in SIX])
RULES += "rules:\n- {name: orders, dimension: user, limit: 3, window_seconds: 3600, endpoint_pattern: /o/*}\n"


class Caller:
    """A client that sends batches."""

    def __init__(self, port: int, key: str | None = None) -> None:
        headers = {} if key is None else {"authorization": f"Bearer {key}"}
        self.http = httpx.Client(base_url=f"http://127.0.0.1:{port}", headers=headers, timeout=60)

    def send(self, *checks: dict[str, Any]) -> list[dict[str, Any]]:
        response = self.http.post("/api/v1/check/batch", json={"checks": checks, "exact": True})
        assert response.status_code == 200, response.text
        decisions: list[dict[str, Any]] = response.json()["decisions"]
        return decisions

    def take(self, *counters: dict[str, Any]) -> list[dict[str, Any]]:
        (answer,) = self.send({"counters": list(counters)})
        taken: list[dict[str, Any]] = answer["counters"]
        return taken

    def settle(self, op: str, *counters: dict[str, Any]) -> int:
        """The status of an attempt to give back or charge."""
        (answer,) = self.send({"op": op, "counters": list(counters)})
        return int(answer["error"]["status"]) if "error" in answer else 200

    def left(self, **check: Any) -> list[int]:
        (answer,) = self.send({"op": "peek", **check})
        return [counter["remaining"] for counter in answer["counters"]]


@pytest.fixture(scope="module")
def here(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ServiceHere]:
    service = ServiceHere(tmp_path_factory.mktemp("scope"), RULES)
    yield service
    service.close()


@pytest.fixture
def clock(here: ServiceHere) -> FakeClock:
    made = FakeClock(START)
    here.on(MemoryStore(clock=made)).close()
    return made


@pytest.fixture(scope="module")
def keys(here: ServiceHere) -> tuple[str, str]:
    """Two keys with scope check."""
    made = [create_key(here.parts.repository, Actor("test"), name, "check")[1] for name in ("one", "two")]
    here.catalog.refresh()
    return made[0], made[1]


@pytest.fixture
def caller(here: ServiceHere, clock: FakeClock, keys: tuple[str, str]) -> Caller:
    return Caller(here.port, keys[0])


@pytest.fixture
def other(here: ServiceHere, clock: FakeClock, keys: tuple[str, str]) -> Caller:
    return Caller(here.port, keys[1])


@pytest.fixture
def admin(here: ServiceHere, clock: FakeClock) -> Caller:
    return Caller(here.port, KEY)


def actions(here: ServiceHere, subject: str) -> list[str]:
    entries = here.parts.repository.audit(AuditQuery(subject=subject))
    return [f"{entry.actor} {entry.action}" for entry in reversed(entries)]


def exhaust(caller: Caller, **check: Any) -> None:
    while all(counter["allowed"] for counter in caller.send(check)[0]["counters"]):
        pass


# -- the counters of rules and plans ----------------------------------------------------------------------------------


@pytest.mark.parametrize("op", ["give_back", "charge"])
def test_rules_counter_cannot_be_settled_by_name(caller: Caller, here: ServiceHere, op: str) -> None:
    context = {"context": {"user": "alice", "path": "/o/1"}}
    (decision,) = caller.send({"context": {"user": "alice", "path": "/o/1"}})
    (taken,) = decision["counters"]
    assert taken["name"] == RULE
    exhaust(caller, **context)
    named = {"key": taken["key"], "name": taken["name"], "limit": taken["limit"], "tick": taken["tick"]}
    amount = {"amount": 3, "cost": 3} if op == "give_back" else {"cost": MAX_DEBT}
    assert caller.settle(op, {**named, **amount}) == 403
    assert caller.left(**context) == [0]
    (waits,) = caller.send({"op": "peek", **context})[0]["counters"]
    assert waits["wait"] <= 3600 * 1_000_000
    assert actions(here, taken["key"]) == []


@pytest.mark.parametrize("algorithm", SIX)
def test_plans_counter_is_out_of_reach_of_inline_limits(caller: Caller, algorithm: str, clock: FakeClock) -> None:
    plan = {"counters": [{"key": "bob", "plan": algorithm}]}
    exhaust(caller, **plan)
    before = caller.left(**plan)
    assert before[1] == 0
    names = (algorithm, f"{algorithm}#2", f"plan|{algorithm}", f"inline|{algorithm}", f"{algorithm}\x00", RULE)
    for name in names:
        for using in SIX:
            for limit in (f"2000000000/second using {using}", f"1000000/hour using {using}", f"3/hour using {using}"):
                counter = {"key": "bob", "name": name, "limit": limit}
                caller.take(counter)
                assert caller.settle("give_back", {**counter, "cost": 3, "amount": 3, "tick": START}) == 403
    clock.advance(0.001)
    assert caller.left(**plan) == before


def test_inline_limits_are_named_apart_by_construction() -> None:
    rule = Rule.read({"name": "x", "dimension": "user", "limit": 1, "window_seconds": 60})
    assert rule.counter.startswith(("rule|", "shadow|"))
    for name in ("inline|gold", "inline|", "rule|x", "shadow|x"):
        with pytest.raises(ConfigError, match="may not begin like"):
            Resolver({name: "1/day"})
    assert set(SIX) <= set(ALGORITHMS)


def test_inline_counters_of_all_callers_are_one(caller: Caller, other: Caller) -> None:
    counter = {"key": "shared", "limit": "5/day"}
    assert [caller.take(counter)[0]["remaining"], other.take(counter)[0]["remaining"]] == [4, 3]


# -- settling one's own takes -----------------------------------------------------------------------------------------


def settled(taken: dict[str, Any], counter: dict[str, Any], **more: Any) -> dict[str, Any]:
    """The counter of a settlement, built from the response to its take."""
    named: dict[str, Any] = {name: taken[name] for name in ("key", "name", "limit") if name in taken}
    return {
        **{name: value for name, value in counter.items() if name != "plan"},
        **named,
        "token": taken["token"],
        **more,
    }


@pytest.mark.parametrize("form", ["inline", "named", "plan", "rule"])
def test_token_settles_once_whatever_was_taken(caller: Caller, other: Caller, here: ServiceHere, form: str) -> None:
    counter: dict[str, Any] = {
        "inline": {"key": form, "limit": "3/hour using fixed_window", "cost": 2},
        "named": {"key": form, "name": "mine", "limit": "3/hour using fixed_window", "cost": 2},
        "plan": {"key": form, "plan": "fixed_window", "cost": 2},
        "rule": {},
    }[form]
    check: dict[str, Any] = (
        {"counters": [counter]} if counter else {"context": {"user": "r", "path": "/o/1"}, "cost": 2}
    )
    look = {**check, "counters": [{**counter, "cost": 0}]} if counter else {**check, "cost": 0}
    (answer,) = caller.send(check)
    backs = [settled(taken, counter, amount=2, cost=2) for taken in answer["counters"]]
    assert other.settle("give_back", *backs) == 403, "the token belongs to another caller"
    assert Caller(here.port).settle("give_back", *backs) == 401
    assert caller.left(**look)[0] == 1
    assert caller.settle("give_back", *backs) == 200
    assert caller.left(**look)[0] == 3
    for op, more in (("give_back", {}), ("charge", {"amount": 0})):
        assert caller.settle(op, *[{**back, **more} for back in backs]) == 409, "a token counts once"
    assert caller.left(**look)[0] == 3
    assert actions(here, answer["counters"][0].get("key", form)) == []


def test_token_is_for_one_counter_limit_and_amount(caller: Caller) -> None:
    counter = {"key": "k", "name": "n", "limit": "10/hour using fixed_window"}
    caller.take({**counter, "cost": 5})
    (taken,) = caller.take({**counter, "cost": 2})
    back = settled(taken, counter, amount=2)
    for change in ({"key": "k2"}, {"name": "n2"}, {"limit": "11/hour using fixed_window"}, {"name": "inline|n"}):
        assert caller.settle("give_back", {**back, **change}) == 403
    assert caller.settle("give_back", {**back, "amount": 3, "cost": 100, "tick": 0}) == 400
    for index in range(0, len(back["token"]), 3):
        token = back["token"]
        wrong = token[:index] + ("0" if token[index] != "0" else "1") + token[index + 1 :]
        assert caller.settle("give_back", {**back, "token": wrong}) in (400, 403), index
    for token in (
        "",
        ".",
        "....",
        "i.....",
        "x" * 1000,
        "i1.a.b.c.d",
        "ié.a.1.1.0",
        "i-1.a.-1.-1.0",
        "s" + back["token"][1:],
    ):
        assert caller.settle("give_back", {**back, "token": token}) in (400, 403), token
    assert caller.left(counters=[counter]) == [3]
    assert caller.settle("give_back", back) == 200
    assert caller.left(counters=[counter]) == [5]


@pytest.mark.parametrize("name", ["inline|", "inline|n"])
def test_forged_token_changes_no_inline_counter(caller: Caller, name: str) -> None:
    """A limit compiled for a forged token is never used for an inline limit."""
    text, same = ("41/day using gcra", "41 per day using gcra") if name == "inline|" else ("42/d", "42/day")
    back = {"key": f"forged-{name}", "name": name, "limit": text, "amount": 1}
    for token, status in (("s1.a.1.1.b", 403), (f"s1.{'0' * 16}-0.1.1.{'0' * 32}", 400)):
        assert caller.settle("give_back", {**back, "token": token}) == status
    counter: dict[str, Any] = {"key": f"forged-{name}", "name": name.removeprefix("inline|") or None}
    taken = [caller.take({**counter, "limit": limit})[0]["remaining"] for limit in (text, same)]
    assert taken[0] - taken[1] == 1, "both spellings are one counter"


def test_tokens_of_two_takes_are_settled_one_by_one(caller: Caller) -> None:
    counters = [{"key": key, "limit": "10/hour using fixed_window"} for key in ("a", "b")]
    backs = [settled(caller.take(counter)[0], counter, amount=1) for counter in counters]
    assert caller.settle("give_back", *backs) == 403
    assert [caller.settle("give_back", back) for back in backs] == [200, 200]


def test_denials_and_peeks_have_no_token(caller: Caller) -> None:
    counter = {"key": "t", "limit": "1/hour"}
    assert "token" in caller.take(counter)[0]
    assert "token" not in caller.take(counter)[0]
    assert "token" not in caller.take({**counter, "key": "free", "cost": 0})[0]
    (look,) = caller.send({"op": "peek", "counters": [{**counter, "key": "u"}]})
    assert "token" not in look["counters"][0]
    first, second = caller.take({**counter, "key": "v"}, {**counter, "binds": False})
    assert ("token" in first, "token" in second) == (True, False), "the second was not charged"


def test_token_expires(caller: Caller, clock: FakeClock) -> None:
    counter = {"key": "old", "limit": "10/day using fixed_window"}
    taken = [settled(caller.take(counter)[0], counter) for _ in range(3)]
    clock.advance(240)
    assert caller.settle("give_back", {**taken[0], "amount": 1}) == 200
    clock.advance(1)
    assert caller.settle("give_back", {**taken[1], "amount": 1}) == 403
    assert caller.settle("give_back", {**taken[0], "amount": 1}) == 403
    assert caller.settle("charge", {**taken[1], "cost": 1}) == 200, "a debt may be charged later"
    clock.advance(86_400)
    assert caller.settle("charge", {**taken[2], "cost": 1}) == 403


def test_replayed_token_refills_nothing_after_its_record_expired(caller: Caller, clock: FakeClock) -> None:
    """The record of a settlement outlives the token, whenever it was used."""
    counter = {"key": "again", "limit": "10/day using fixed_window"}
    caller.take({**counter, "cost": 5})
    back = settled(caller.take(counter)[0], counter, amount=1)
    clock.advance(200)
    assert caller.settle("give_back", back) == 200
    for _ in range(40):
        clock.advance(10)
        assert caller.settle("give_back", back) in (403, 409)
    assert caller.left(counters=[counter]) == [5]


@pytest.mark.parametrize("kind", ["memory", "shared"])
def test_replayed_token_refills_nothing_after_its_record_was_dropped(
    here: ServiceHere, keys: tuple[str, str], tmp_path: Path, kind: str
) -> None:
    """Any caller with scope check can fill the space for idempotency records. A give-back then fails closed."""
    clock = FakeClock(START)
    store: MemoryStore | SharedStore
    if kind == "memory":
        store = MemoryStore(clock=clock)
        store.records.max_bytes = 1_000_000
    else:
        store = SharedStore(str(tmp_path / "counters"), 100, clock=clock)
    here.on(store).close()
    caller = Caller(here.port, keys[0])
    counter = {"key": "again", "limit": "10/day using fixed_window"}
    caller.take({**counter, "cost": 5})
    back = settled(caller.take(counter)[0], counter, amount=1)
    assert caller.settle("give_back", back) == 200
    assert caller.settle("give_back", back) == 409
    clock.advance(1)
    for number in range(400):
        filler = IdempotencyRecord(f"filler {number}", bytes(16), bytes(200_000))
        store.apply([Request(Op.TAKE, [Member("filler", build(Limit.parse("9999/day"), "filler"), 1)], filler)])
    (answer,) = caller.send({"op": "give_back", "counters": [back]})
    assert answer["error"]["status"] == 409
    assert "cannot determine whether this charge was already settled" in answer["error"]["detail"]
    assert caller.left(counters=[counter]) == [5]
    clock.advance(1)
    assert caller.settle("give_back", settled(caller.take(counter)[0], counter, amount=1)) == 200, (
        "other callers are not affected"
    )


@pytest.mark.parametrize("kind", ["memory", "shared"])
def test_flood_of_inline_limits_resets_no_rule(here: ServiceHere, tmp_path: Path, kind: str) -> None:
    """A caller without a key fills the store: counters of rules and plans stay."""
    clock = FakeClock(START)
    max_keys = 1_000
    here.on(
        MemoryStore(max_keys, clock) if kind == "memory" else SharedStore(str(tmp_path / "c"), max_keys, clock=clock)
    ).close()
    stranger = Caller(here.port)
    users = [f"u{number}" for number in range(20)]
    for user in users:
        exhaust(stranger, dimension="USER", identifier=user, endpoint="/o/1")
        exhaust(stranger, key=user, plans=["fixed_window"])
    for batch in range(10):
        clock.advance(0.01)
        keys = [f"k{batch}.{number}" for number in range(1_000)]
        checks = [
            {"counters": [{"key": key, "limit": "1/day"} for key in keys[i : i + 50]]} for i in range(0, 1000, 50)
        ]
        assert all("error" not in answer for answer in stranger.send(*checks))
    for user in users:
        assert stranger.left(dimension="USER", identifier=user, endpoint="/o/1") == [0]
        assert stranger.left(key=user, plans=["fixed_window"]) == [1, 0]


def test_inline_limit_lasts_a_year_at_most(caller: Caller, admin: Caller) -> None:
    """Each is a key in the store for as long as it counts, and callers can create any number of them."""
    allowed = (
        "1/367d",
        "9/year using fixed_window",
        "1/day burst 366",
        "2/day burst 732 using gcra",
        "9/calendar year",
    )
    refused = ("1/368d", "1/36500d using sliding_window_log", "1/day burst 368", "1/year burst 2 using leaky_bucket")
    for limit in allowed:
        assert caller.take({"key": "k", "limit": limit})[0]["allowed"]
    for limit in refused:
        (answer,) = caller.send({"counters": [{"key": "k", "limit": limit}]})
        assert answer["error"]["status"] == 400
        assert "write a shorter period or a smaller burst" in answer["error"]["detail"]
        assert admin.take({"key": "k", "limit": limit})[0]["allowed"], "programs with scope write may"


def test_token_races_with_itself(here: ServiceHere, clock: FakeClock, keys: tuple[str, str]) -> None:
    callers = [Caller(here.port, keys[0]) for _ in range(8)]
    counter = {"key": "race", "limit": "100/day using fixed_window"}
    callers[0].take({**counter, "cost": 50})
    back = settled(callers[0].take({**counter, "cost": 5})[0], counter, amount=5)
    with ThreadPoolExecutor(8) as pool:
        statuses = list(pool.map(lambda caller: caller.settle("give_back", back), callers))
    assert sorted(statuses) == [200] + [409] * 7
    assert callers[0].left(counters=[counter]) == [50]


def test_anonymous_callers_share_their_tokens_and_no_others(here: ServiceHere, caller: Caller) -> None:
    counter = {"key": "open", "limit": "10/day using fixed_window"}
    back = settled(Caller(here.port).take(counter)[0], counter, amount=1)
    assert caller.settle("give_back", back) == 403
    assert Caller(here.port).settle("give_back", back) == 200


# -- debts ------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("algorithm", SIX)
def test_debt_is_at_most_one_full_limit(caller: Caller, clock: FakeClock, algorithm: str) -> None:
    plan = {"key": f"debt-{algorithm}", "plan": algorithm}
    (answer,) = caller.send({"counters": [plan]})
    debts = [settled(taken, plan, cost=MAX_DEBT) for taken in answer["counters"]]
    assert caller.settle("charge", *debts) == 200
    (look,) = caller.send({"op": "peek", "counters": [plan]})
    assert [counter["allowed"] for counter in look["counters"]] == [False, False]
    assert max(counter["wait"] for counter in look["counters"]) <= 2 * 86_400 * 1_000_000
    clock.advance(2 * 86_400)
    assert all(counter["allowed"] for counter in caller.take(plan))


# -- operations that need scope write ---------------------------------------------------------------------------------


@pytest.mark.parametrize("op", ["give_back", "charge", "reset"])
def test_everything_else_needs_write_and_is_audited(admin: Caller, caller: Caller, here: ServiceHere, op: str) -> None:
    counter: dict[str, Any] = {"key": f"w-{op}", "limit": "10/day using fixed_window", "cost": 4}
    (taken,) = caller.take(counter)
    more = {"tick": taken["tick"], "amount": 4} if op == "give_back" else {}
    assert caller.settle(op, {**counter, **more}) == 403
    assert Caller(here.port).settle(op, {**counter, **more}) == 401
    assert caller.left(counters=[counter]) == [6]
    assert admin.settle(op, {**counter, **more}) == 200
    assert caller.left(counters=[counter]) == [2 if op == "charge" else 10]
    assert actions(here, counter["key"]) == [f"key:admin {op} requested", f"key:admin {op}"]


HEAD = f"i1.{'0' * 16}-0"
MAC = "0" * 32


@pytest.mark.parametrize(
    "token",
    [
        f"i1.a.{'f' * 40}.1.b",
        "i1.a.1.-1.b",
        f"{HEAD}.{'f' * 40}.1.{MAC}",
        f"{HEAD}.1.-1.{MAC}",
        f"{HEAD}.7fffffff.1fffffffffffff.{MAC}",
    ],
)
def test_forged_token_is_ignored_for_writers(admin: Caller, here: ServiceHere, token: str) -> None:
    """A give-back without proof uses the amount of the request, within the bounds of requests."""
    counter: dict[str, Any] = {"key": f"forged {token}", "limit": "10/day using fixed_window", "cost": 4}
    (taken,) = admin.take(counter)
    back = {**counter, "token": token, "tick": taken["tick"]}
    for more in ({"amount": MAX_DEBT + 1}, {"amount": -1}, {"cost": MAX_DEBT + 1}, {"tick": -1}, {"tick": 2**53}):
        assert admin.settle("give_back", {**back, **more}) == 400, more
    assert admin.left(counters=[counter]) == [6]
    assert admin.settle("give_back", {**back, "amount": 4}) == 200
    assert admin.left(counters=[counter]) == [10]
    assert actions(here, counter["key"]) == ["key:admin give_back requested", "key:admin give_back"]


def test_plan_is_charged_without_a_token_by_write_alone(admin: Caller, caller: Caller, here: ServiceHere) -> None:
    plan = {"key": "plan-charge", "plan": "fixed_window", "cost": 2}
    assert caller.settle("charge", plan) == 403
    assert admin.settle("charge", plan) == 200
    assert caller.left(counters=[{**plan, "cost": 0}]) == [1, 0]
    assert actions(here, "plan-charge") == ["key:admin charge requested", "key:admin charge"]


# -- crestgate:// ------------------------------------------------------------------------------------------------------


def test_reservations_of_a_check_key_work(here: ServiceHere, clock: FakeClock, keys: tuple[str, str]) -> None:
    store = ServiceStore(ServiceAddress("127.0.0.1", here.port, keys[0]), timeout_ms=60_000)
    with Limiter(store) as limiter:
        for limits, most in (("3/hour using fixed_window", [3]), ("fixed_window", [3, 2])):
            with limiter.reserve("res", limits, cost=2) as held:
                held.settle(1)
            assert [part.remaining for part in limiter.peek("res", limits).parts] == [one - 1 for one in most]
            with pytest.raises(KeyError), limiter.reserve("res", limits, cost=1):
                raise KeyError
            assert [part.remaining for part in limiter.peek("res", limits).parts] == [one - 1 for one in most]
            with limiter.reserve("res", limits, cost=1) as held:
                held.settle(2)
            assert limiter.peek("res", limits, cost=0).remaining == 0
    assert actions(here, "res") == []


def test_tokens_are_valid_on_every_worker_and_after_a_restart(serve: Callable[..., Service]) -> None:
    first = serve(arguments=("--workers", "2"))
    counter = {"key": "k", "limit": "100/day using fixed_window"}
    backs = [settled(Caller(first.port).take(counter)[0], counter, amount=1) for _ in range(12)]
    assert [Caller(first.port).settle("give_back", back) for back in backs[:6]] == [200] * 6
    first.stop()
    second = serve(key=first.key)
    assert [Caller(second.port).settle("give_back", back) for back in backs] == [409] * 6 + [200] * 6
    assert Caller(second.port).left(counters=[counter]) == [100]
    with second.client(second.key) as client:
        entries = client.get("/api/v1/audit").json()["entries"]
    assert [entry["after"] for entry in entries if entry["subject"] == "key:settlement"] == [{}]
