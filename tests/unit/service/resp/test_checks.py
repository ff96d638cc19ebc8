"""RL.CHECK, RL.PEEK and RL.RESET: our notation, plans and policies over RESP."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import pytest

from crestgate.config.settings import Logs
from crestgate.core.limit import Limit
from crestgate.rules.port import AuditQuery
from crestgate.service.resp.encoder import DECISION_FIELDS
from flaky_store import Flaky
from unit.service.resp.clients import Client, service_of
from unit.service.worker import ADMIN, PEER, Worker

RECORDS: dict[tuple[str, str], dict[str, Any]] = {
    ("plan", "gold"): {"limits": ["3/minute", "100/day"]},
    ("plan", "daily"): {"limits": "5/day"},
}
Start = Callable[..., Client]


@pytest.fixture
def start() -> Iterator[Start]:
    workers: list[Worker] = []

    def make(**options: Any) -> Client:
        workers.append(Worker(RECORDS, **options))
        return Client(workers[-1])

    yield make
    for worker in workers:
        worker.close()


@pytest.fixture
def client(start: Start) -> Client:
    return start()


def fields(reply: list[Any]) -> dict[str, Any]:
    return dict(zip(DECISION_FIELDS, reply, strict=True))


def test_reply_is_a_fixed_array(client: Client) -> None:
    assert client.call("RL.CHECK", "user:42", "2/minute") == [1, 2, 1, 0, 30_000, 0, "ok", "inline", "normal"]
    client.call("RL.CHECK", "user:42", "2/minute")
    assert client.call("RL.CHECK", "user:42", "2/minute") == [
        0, 2, 0, 30_000, 60_000, 0, "limited", "inline", "throttled",
    ]  # fmt: skip


def test_reply_is_a_map_in_resp3(client: Client) -> None:
    client.call("HELLO", 3)
    reply = client.call("RL.CHECK", "user:42", "2/minute")
    assert tuple(reply) == DECISION_FIELDS
    assert reply["allowed"] is True
    assert client.call("RL.CHECK", "user:42", "2/minute", "COST", 2)["allowed"] is False


def test_cost_that_never_passes(client: Client) -> None:
    reply = fields(client.call("RL.CHECK", "k", "2/minute", "COST", 3))
    assert (reply["allowed"], reply["retry_after_ms"], reply["reason"]) == (0, -1, "cost_exceeds_limit")


def test_times_are_rounded_up(start: Start) -> None:
    client = start()
    client.call("RL.CHECK", "k", "1/second")
    client.worker.clock.advance(0.0001)
    reply = fields(client.call("RL.CHECK", "k", "1/second"))
    assert (reply["retry_after_ms"], reply["reset_after_ms"]) == (1000, 1000)


def test_leaky_bucket_has_a_delay(client: Client) -> None:
    client.call("RL.CHECK", "k", "1/second burst 3 using leaky_bucket")
    assert fields(client.call("RL.CHECK", "k", "1/second burst 3 using leaky_bucket"))["delay_ms"] == 1000


@pytest.mark.parametrize("limits", [["5/minute; 2/day"], ["5/minute", "2/day"], ["5/minute , 2/day"]])
def test_several_limits_are_all_or_nothing(client: Client, limits: list[str]) -> None:
    assert fields(client.call("RL.CHECK", "k", *limits, "cost", 2))["remaining"] == 0
    assert fields(client.call("RL.CHECK", "k", *limits))["allowed"] == 0
    assert fields(client.call("RL.PEEK", "k", "5/minute"))["remaining"] == 3


def test_plans_share_the_counters_of_http(client: Client) -> None:
    assert fields(client.call("RL.CHECK", "k", "gold", "daily"))["rule"] == "gold"
    answer = client.worker.post("/api/v1/check", {"key": "k", "plans": ["gold", "daily"]})
    assert [part["remaining"] for part in answer["parts"]] == [1, 98, 3]
    assert client.error("RL.CHECK", "k", "golden") == (
        "ERR plan: there is no plan 'golden': make it with POST /api/v1/plans"
    )


def test_limit_that_is_written_out_reaches_no_counter_of_a_plan(client: Client) -> None:
    client.call("RL.CHECK", "k", "3/minute", "COST", 3)
    assert fields(client.call("RL.PEEK", "k", "gold"))["remaining"] == 3


def test_without_limits_the_policy_of_the_key_applies(client: Client) -> None:
    reply = fields(client.call("RL.CHECK", "user:42", "COST", 10))
    assert (reply["limit"], reply["remaining"], reply["rule"]) == (100, 90, "default-policy")
    assert "user:42" in client.worker.metrics.keys.last_us


def test_peek_consumes_nothing_and_is_not_counted(client: Client) -> None:
    for _ in range(3):
        assert fields(client.call("RL.PEEK", "k", "2/minute", "COST", 2))["allowed"] == 1
    assert client.worker.metrics.snapshot(0, {}).counters["allowed"] == {}


@pytest.mark.parametrize(
    ("arguments", "error"),
    [
        ((), "ERR wrong number of arguments for 'rl.check' command: write RL.CHECK key [limit …] [COST n]"),
        (("k", "5/minute", "COST", "x"), "ERR cost: must be a whole number from 0 to 2147483647, not 'x'"),
        (("k", "5/minute", "COST"), "ERR plan: there is no plan 'COST': make it with POST /api/v1/plans"),
        (("k", "5/minute", "5/minute"), "ERR limit: has a counter twice: each key and name may be there once"),
        (("k", "5/lightyear"), "ERR limit: cannot read limit '5/lightyear': unknown unit 'lightyear'"),
        (("k", b"\xff"), "ERR limit: must be text in UTF-8, not '�'"),
        (("k" * 2000, "5/minute"), "ERR key: is 2000 bytes long; the maximum is 1024"),
        (("k", ";".join(f"{n}/day" for n in range(1, 22))), "ERR limit: there are 21, and a command may have 20"),
    ],
)
def test_errors(client: Client, arguments: tuple[object, ...], error: str) -> None:
    assert client.error("RL.CHECK", *arguments).startswith(error)


def test_reset_needs_the_scope_write_and_is_audited(start: Start) -> None:
    client = start()
    client.call("RL.CHECK", "k", "2/minute", "COST", 2)
    assert client.error("RL.RESET", "k", "2/minute") == "NOAUTH Authentication required: send AUTH with an API key"
    client.call("AUTH", client.worker.key("check"))
    assert client.error("RL.RESET", "k", "2/minute").startswith("NOPERM the API key 'check-key' has scope check")
    client.call("AUTH", client.worker.key("write"))
    replies = client.pipeline(
        [("RL.PEEK", "k", "2/minute"), ("RL.RESET", "k", "2/minute", "gold"), ("RL.CHECK", "k", "2/minute"), ("PING",)]
    )
    assert [replies[0][0], replies[1], replies[2][:3], replies[3]] == [0, 3, [1, 2, 1], "PONG"]
    entries = [(entry.action, entry.actor, entry.address) for entry in client.worker.repository.audit(AuditQuery())]
    assert ("reset requested", "key:write-key", PEER) in entries


def test_decisions_are_counted_like_those_of_http(start: Start) -> None:
    client = start()
    client.pipeline([("CL.THROTTLE", "k", 0, 1, 60)] * 3 + [("RL.CHECK", "k", "gold"), ("RL.CHECK", "k", "5/x")])
    counters = client.worker.metrics.snapshot(client.worker.clock.ticks(), {}).counters
    assert counters["allowed"] == {("inline", "key"): 1, ("gold", "key"): 1}
    assert counters["blocked"] == {("inline", "key"): 2, ("gold", "key"): 0}
    assert {labels: n for labels, n in counters["requests"].items() if labels[0] == "resp"} == {
        ("resp", "200"): 4,
        ("resp", "400"): 1,
    }


def test_checks_beyond_the_limit_of_the_node_are_refused_one_by_one(start: Start) -> None:
    client = start(limits={"checks": Limit(10, 60, algorithm="fixed_window")})
    replies = client.pipeline([("CL.THROTTLE", "k", 99, 1, 60)] * 12 + [("PING",)])
    assert [isinstance(reply, list) for reply in replies] == [True] * 10 + [False] * 3
    assert str(replies[10]).startswith("BUSY too many checks on this node: the limit is 10/minute")
    assert replies[12] == "PONG"


def test_failure_of_the_store_is_in_the_reply(start: Start) -> None:
    store = Flaky()
    store.broken = True
    client = start(store=store)
    assert fields(client.call("RL.CHECK", "k", "2/minute"))["reason"] == "fail_open"
    assert client.call("CL.THROTTLE", "k", 4, 5, 60)[0] == 0
    client.call("AUTH", ADMIN)
    assert client.error("RL.RESET", "k", "2/minute") == "UNAVAILABLE the store at nowhere does not answer"


def test_bug_is_an_error_of_its_own_command(client: Client, monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(_: str) -> None:
        raise RuntimeError("a bug")

    monkeypatch.setattr(client.worker.parts.limiter.resolver, "plan", fail)
    replies = client.pipeline([("PING",), ("RL.CHECK", "k", "gold"), ("CL.THROTTLE", "k", 4, 5, 60)])
    assert [replies[0], replies[2][0]] == ["PONG", 0]
    assert str(replies[1]).startswith("ERR internal error: the log has it under this request id: ")


def test_requests_are_logged_if_told_so(start: Start, capsys: pytest.CaptureFixture[str]) -> None:
    client = start()
    for requests in ("all", "admin"):
        logged = Client(client.worker, service_of(client.worker, Logs(requests=requests)))
        logged.pipeline([("CL.THROTTLE", "user:42", 4, 5, 60), ("RL.CHECK", "user:42", "gold")])
        lines = capsys.readouterr().out.splitlines()
        assert [name for line in lines for name in ("CL.THROTTLE", "RL.CHECK") if name in line] == (
            ["CL.THROTTLE", "RL.CHECK"] if requests == "all" else []
        )
        assert "user:42" not in "".join(lines)
