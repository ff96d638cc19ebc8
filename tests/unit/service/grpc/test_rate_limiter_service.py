"""crestgate.v1.RateLimiter: the same counters, numbers and errors as over HTTP, in messages."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import pytest

from crestgate.protobuf import messages
from crestgate.rules.port import AuditQuery
from crestgate.service.grpc.transport.call import RpcCall
from crestgate.service.observability.worker_metrics import counter_name
from crestgate.stores.port import Outcome, Request
from flaky_store import Flaky
from slow_store import SlowStore
from unit.service.worker import ADMIN, Worker, bearer, status_of, unary

USER, IP, API_KEY, CLIENT, KEY, API, GLOBAL = range(1, 8)
LONG = "x" * 1025
CHECK = b"/crestgate.v1.RateLimiter/CheckRateLimit"
MOST = 2**31 - 1
NAMES = "USER, IP, API_KEY, CLIENT, KEY, API, GLOBAL"


def rule(name: str, dimension: str, limit: int = 3, **more: Any) -> dict[tuple[str, str], dict[str, Any]]:
    body = {"rule_id": name, "dimension": dimension, "limit": limit, "window_seconds": 60, "algorithm": "fixed_window"}
    return {("rule", name): body | more}


RECORDS = {
    **rule("per-user", "user", endpoint_pattern="/orders"),
    **rule("per-user-write", "user", 2, endpoint_pattern="/orders", method="POST", window_seconds=30),
    **rule("per-address", "ip", 4),
    **rule("per-token", "apikey"),
    **rule("per-client", "client"),
    **rule("per-key", "key", identifier="tenant", limit=2),
    **rule("search", "api", endpoint_pattern="/search"),
    **rule("everybody", "global", 5, endpoint_pattern="/everybody"),
    **rule("tried", "user", 1, endpoint_pattern="/tried", mode="shadow"),
    **rule("queued", "user", 4, endpoint_pattern="/queued", algorithm="leaky_bucket", window_seconds=4),
    ("plan", "gold"): {"limits": ["3/minute using fixed_window"]},
    ("plan", "daily"): {"limits": ["100/day using fixed_window"]},
}


@pytest.fixture
def worker() -> Iterator[Worker]:
    worker = Worker(RECORDS)
    yield worker
    worker.close()


@pytest.fixture
def own() -> Iterator[Callable[..., Worker]]:
    """Factory of workers for one test."""
    made: list[Worker] = []

    def make(**options: Any) -> Worker:
        made.append(Worker(RECORDS, **options))
        return made[-1]

    yield make
    for one in made:
        one.close()


def as_json(response: Any) -> dict[str, Any]:
    """A response message as the JSON of HTTP, without the fields that messages lack."""
    fields = {
        "allowed": response.allowed,
        "limit": response.limit,
        "remaining": response.remaining,
        "current_count": response.current_count,
        "reset_at": response.reset_at,
        "reset_after": response.reset_after,
        "retry_after": response.retry_after,
        "reason": response.reason,
        "rule": response.rule,
        "state": response.state,
        "delay": response.delay,
    }
    if response.HasField("queue_position"):
        fields["queue_position"] = response.queue_position
    for name in ("parts", "shadows"):
        if getattr(response, name, ()):
            fields[name] = [as_json(part) for part in getattr(response, name)]
    return fields


def rounded(body: dict[str, Any]) -> dict[str, Any]:
    """An HTTP response with retry_after and rule as in messages, which have whole seconds and no null."""
    fields = body | {"rule": body["rule"] or ""}
    wait = fields["retry_after"]
    fields["retry_after"] = 0 if fields["allowed"] else -1 if wait is None else int(-(-wait // 1))
    for name in ("parts", "shadows"):
        if name in fields:
            fields[name] = [rounded(part) for part in fields[name]]
    return fields


@pytest.mark.parametrize(
    "fields",
    [
        {"dimension": USER, "identifier": "42", "endpoint": "/orders"},
        {"dimension": USER, "identifier": "42", "endpoint": "/orders", "method": "POST"},
        {"dimension": USER, "identifier": "42", "endpoint": "/tried"},
        {"dimension": USER, "identifier": "42", "endpoint": "/queued"},
        {"dimension": USER, "identifier": "42", "endpoint": "/orders", "cost": 4},
        {"dimension": USER, "identifier": "42", "endpoint": "/orders", "cost": 0},
        {"dimension": USER, "identifier": "42", "endpoint": "/nowhere"},
        {"dimension": IP, "identifier": "192.0.2.9"},
        {"dimension": API_KEY, "identifier": "secret"},
        {"dimension": CLIENT, "identifier": "acme"},
        {"dimension": KEY, "identifier": "tenant"},
        {"dimension": API, "identifier": "/search"},
        {"dimension": API, "endpoint": "/search"},
        {"dimension": GLOBAL, "endpoint": "/everybody"},
        {"key": "tenant"},
        {"key": "anybody", "plans": ["gold", "daily"]},
    ],
    ids=lambda fields: " ".join(map(str, fields.values())),
)
def test_grpc_and_http_share_counters_and_responses(own: Callable[..., Worker], fields: dict[str, Any]) -> None:
    """One worker is called over gRPC and HTTP in turn, another over HTTP alone: the responses are equal."""
    both, only = own(), own()
    named = fields | ({"dimension": messages.Dimension[fields["dimension"]]} if "dimension" in fields else {})
    for turn in range(6):
        expected = rounded(only.post("/api/v1/check", named))
        response = as_json(both.check(**fields)) if turn % 2 else rounded(both.post("/api/v1/check", named))
        assert response == expected, turn


def test_batch_responses_equal_those_of_single_checks(own: Callable[..., Worker]) -> None:
    checks = [
        messages.CheckRequest(dimension=USER, identifier=str(number % 3), endpoint="/orders", cost=1 + number % 2)
        for number in range(12)
    ]
    one_by_one, together = own(), own()
    expected = [one_by_one.call("CheckRateLimit", check) for check in checks]
    answer = together.call("CheckRateLimitBatch", messages.CheckBatchRequest(checks=checks))
    assert list(answer.decisions) == expected
    assert {decision.allowed for decision in answer.decisions} == {True, False}


def test_cost_defaults_to_one_and_may_be_zero(worker: Worker) -> None:
    request: dict[str, Any] = {"dimension": USER, "identifier": "42", "endpoint": "/orders"}
    assert worker.check(**request).remaining == 2
    assert worker.check(**request, cost=0).remaining == 2
    assert worker.check(**request, cost=2).remaining == 0


def test_retry_after_is_rounded_up_to_seconds(worker: Worker) -> None:
    request: dict[str, Any] = {"dimension": USER, "identifier": "42", "endpoint": "/queued"}
    assert worker.check(**request, cost=4).retry_after == 0
    worker.clock.advance(0.4)
    denied = worker.check(**request)
    assert (denied.allowed, denied.retry_after, denied.reason) == (False, 1, "limited")
    assert denied.reset_after == pytest.approx(3.6)
    never = worker.check(**request, cost=5)
    assert (never.allowed, never.retry_after, never.reason) == (False, -1, "cost_exceeds_limit")


def test_timestamp_is_only_measured(worker: Worker) -> None:
    now = 1_700_000_000
    assert worker.check(dimension=USER, identifier="42", endpoint="/orders", timestamp=now - 90).remaining == 2
    assert worker.check(dimension=USER, identifier="42", endpoint="/orders").remaining == 1
    skews = worker.metrics.snapshot(worker.clock.ticks(), {}).histograms["clock_skew_seconds"]
    assert (sum(skews.counts), skews.total) == (1, 90.0)


def test_allowed_client_requests_update_last_uses(worker: Worker) -> None:
    (counter,) = {entry.counter for entry in worker.catalog.current.entries.values() if entry.dimension == "client"}
    acme = counter_name(counter, "client:acme")
    for _ in range(3):
        worker.check(dimension=CLIENT, identifier="acme")
        worker.check(dimension=USER, identifier="42", endpoint="/orders")
    assert worker.metrics.take_uses() == {acme: worker.clock.ticks()}
    worker.clock.advance(1)
    assert not worker.check(dimension=CLIENT, identifier="acme").allowed
    assert worker.metrics.take_uses() == {}, "denied requests are not counted"


def test_clients_and_keys_are_listed(worker: Worker) -> None:
    worker.check(dimension=CLIENT, identifier="acme")
    worker.check(key="tenant")
    worker.check(dimension=KEY, identifier="other")
    assert set(worker.metrics.clients.last_us) == {"acme"}
    assert set(worker.metrics.keys.last_us) == {"tenant", "other"}


@pytest.mark.parametrize(
    ("fields", "expected"),
    [
        ({}, f"dimension: is not set: set it to one of {NAMES}, or set key"),
        ({"identifier": "42"}, "dimension: is not set"),
        ({"plans": ["gold"]}, "dimension: is not set"),
        (
            {"dimension": 99, "identifier": "42"},
            "dimension: must be one of USER, IP, API_KEY, CLIENT, KEY, API, GLOBAL",
        ),
        ({"dimension": USER}, "identifier: is missing: say which user it is"),
        ({"dimension": API}, "identifier: is missing"),
        ({"dimension": USER, "identifier": LONG}, "identifier: "),
        ({"dimension": USER, "identifier": "1", "plans": ["gold"]}, "plans: cannot be combined with 'dimension'"),
        ({"dimension": USER, "identifier": "1", "endpoint": "/" + "x" * 8192}, "endpoint: has 8193 characters"),
        ({"dimension": USER, "identifier": "1", "cost": -1}, f"cost: must be a whole number from 0 to {MOST}, not -1"),
        ({"dimension": USER, "identifier": "1", "cost": 2**31}, "cost: must be a whole number"),
        ({"dimension": USER, "identifier": "1", "cost": 2**63 - 1}, "cost: must be a whole number"),
        ({"key": "a", "dimension": USER}, "dimension: cannot be combined with 'key'"),
        ({"key": "a", "identifier": "1"}, "identifier: cannot be combined with 'key'"),
        ({"key": "a", "endpoint": "/x"}, "endpoint: cannot be combined with 'key'"),
        ({"key": "a", "method": "GET"}, "method: cannot be combined with 'key'"),
        ({"key": "a", "plans": ["none"]}, "plans[0]: there is no plan 'none'"),
        ({"key": "a", "plans": ["gold"] * 21}, "plans: names 21 plans"),
        ({"key": LONG}, "key: "),
        ({"key": "a", "plans": ["gold"], "cost": -1}, "cost: must be a whole number"),
    ],
)
def test_invalid_check_batch_and_quota_name_the_field(worker: Worker, fields: dict[str, Any], expected: str) -> None:
    fine = messages.CheckRequest(dimension=USER, identifier="1", endpoint="/orders")
    check = messages.CheckRequest(**fields)
    batch = messages.CheckBatchRequest(checks=[fine, check])
    for name, message, at in [
        ("CheckRateLimit", check, ""),
        ("CheckRateLimitBatch", batch, "checks[1]."),
        ("GetRemainingQuota", messages.QuotaRequest(**fields), ""),
    ]:
        status, detail = status_of(worker, name, message)
        assert status == "INVALID_ARGUMENT"
        assert detail.startswith(at + expected)
        assert "context" not in detail  # messages have no such field
    assert worker.check(dimension=USER, identifier="1", endpoint="/orders").remaining == 2  # nothing was counted


def test_batch_has_at_most_a_thousand_checks(worker: Worker) -> None:
    request = messages.CheckBatchRequest(checks=[messages.CheckRequest(dimension=IP, identifier="192.0.2.1")] * 1000)
    decisions = worker.call("CheckRateLimitBatch", request).decisions
    assert (len(decisions), sum(decision.allowed for decision in decisions)) == (1000, 4)
    request.checks.add()
    assert status_of(worker, "CheckRateLimitBatch", request) == (
        "INVALID_ARGUMENT",
        "checks: has more than 1,000 checks: send them in several batches",
    )
    assert len(worker.call("CheckRateLimitBatch", messages.CheckBatchRequest()).decisions) == 0


def test_quota_consumes_nothing(worker: Worker) -> None:
    request: dict[str, Any] = {"dimension": USER, "identifier": "42", "endpoint": "/orders", "method": "POST"}
    worker.check(**request)
    quotas = [worker.call("GetRemainingQuota", messages.QuotaRequest(**request, cost=cost)) for cost in (1, 2, 1)]
    assert [(quota.allowed, quota.remaining, quota.retry_after) for quota in quotas] == [
        (True, 1, 0),
        (False, 1, 10),
        (True, 1, 0),
    ]
    assert [part.rule for part in quotas[0].parts] == ["per-user", "per-user-write"]
    assert worker.check(**request).allowed


# -- idempotency ----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("header", [b"idempotency-key", b"x-idempotency-key"])
def test_replay_gets_the_first_response(worker: Worker, header: bytes) -> None:
    request: dict[str, Any] = {"dimension": USER, "identifier": "42", "endpoint": "/orders"}
    first = worker.check([(header, b"one")], **request)
    worker.clock.advance(5)
    again = worker.check([(header, b"one")], **request, timestamp=1)
    assert (first.reason, again.reason) == ("ok", "replayed")
    first.reason = "replayed"
    assert again == first
    assert worker.check(**request).remaining == 1


def test_replayed_batch_consumes_nothing(worker: Worker) -> None:
    request = messages.CheckBatchRequest(checks=[messages.CheckRequest(dimension=IP, identifier="192.0.2.1")] * 3)
    answers = [worker.call("CheckRateLimitBatch", request, [(b"idempotency-key", b"one")]) for _ in range(2)]
    assert [[d.remaining for d in answer.decisions] for answer in answers] == [[3, 2, 1]] * 2
    assert {d.reason for d in answers[1].decisions} == {"replayed"}


def test_idempotency_key_belongs_to_one_caller_and_request(worker: Worker) -> None:
    metadata = [(b"idempotency-key", b"one")]
    request: dict[str, Any] = {"dimension": USER, "identifier": "42", "endpoint": "/orders"}
    worker.check([*metadata, *bearer(worker.key("check"))], **request)
    assert worker.check([*metadata, *bearer(ADMIN)], **request).reason == "ok"
    assert worker.check(metadata, **request).reason == "ok"
    status, detail = status_of(worker, "CheckRateLimit", messages.CheckRequest(**request, cost=2), metadata)
    assert status == "INVALID_ARGUMENT"
    assert detail.startswith("this idempotency key was used with another body")
    status, detail = status_of(
        worker, "CheckRateLimit", messages.CheckRequest(**request), [(b"idempotency-key", b"x" * 256)]
    )
    assert (status, detail.split(":")[0]) == ("INVALID_ARGUMENT", "Idempotency-Key")


def test_different_idempotency_keys_in_one_call_are_refused(worker: Worker) -> None:
    request = messages.CheckRequest(dimension=USER, identifier="42", endpoint="/orders")
    for second in (b"idempotency-key", b"x-idempotency-key"):
        status, message = status_of(worker, "CheckRateLimit", request, [(b"idempotency-key", b"one"), (second, b"two")])
        assert (status, message.split(":")[0]) == ("INVALID_ARGUMENT", "Idempotency-Key")


class TokenClaims(Flaky):
    """A shared store in which another node holds the idempotency record and has not decided yet."""

    def apply(self, batch: Sequence[Request]) -> list[list[Outcome]]:
        for request in batch:
            if request.record is not None:
                request.record.pending = True
        return [[] for _ in batch]


def test_replay_of_undecided_request_is_aborted() -> None:
    worker = Worker(RECORDS, TokenClaims())
    request = messages.CheckRequest(dimension=USER, identifier="42", endpoint="/orders")
    assert status_of(worker, "CheckRateLimit", request, [(b"idempotency-key", b"one")])[0] == "ABORTED"
    worker.close()


# -- resets ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("fields", "counters"),
    [
        (
            {"dimension": USER, "identifier": "42", "endpoint": "/orders", "method": "POST"},
            [("user:42", "per-user"), ("user:42", "per-user-write")],
        ),
        ({"key": "tenant"}, [("key:tenant", "per-key")]),
        ({"key": "anybody", "plans": ["gold", "daily"]}, [("anybody", "gold"), ("anybody", "daily")]),
        ({"dimension": USER, "identifier": "42", "endpoint": "/nowhere"}, []),
    ],
)
def test_reset_is_audited(worker: Worker, fields: dict[str, Any], counters: list[tuple[str, str]]) -> None:
    before = worker.check(**fields)
    worker.check(**fields)
    answer = worker.call("ResetLimit", messages.ResetRequest(**fields), bearer(ADMIN))
    assert answer.reset_count == len(counters)
    assert [(counter.key, counter.rule) for counter in answer.reset] == counters
    written = [
        (entry.actor, entry.address, entry.subject)
        for entry in worker.repository.audit(AuditQuery())
        if entry.action == "reset"
    ]
    assert written == [("key:admin", "192.0.2.1", key) for key in dict(counters)]
    assert worker.check(**fields) == before


@pytest.mark.parametrize(
    ("fields", "expected"),
    [
        ({}, "dimension: is not set"),
        ({"dimension": USER}, "identifier: is missing"),
        ({"key": "a", "plans": ["none"]}, "plans[0]: there is no plan"),
    ],
)
def test_reset_without_counters(worker: Worker, fields: dict[str, Any], expected: str) -> None:
    status, detail = status_of(worker, "ResetLimit", messages.ResetRequest(**fields), bearer(ADMIN))
    assert (status, detail[: len(expected)]) == ("INVALID_ARGUMENT", expected)


@pytest.mark.parametrize("fields", [{"domain": "edge"}, {"descriptors": [{"entries": [{"key": "a", "value": "b"}]}]}])
def test_reset_of_descriptors_needs_configuration(worker: Worker, fields: dict[str, Any]) -> None:
    status, detail = status_of(worker, "ResetLimit", messages.ResetRequest(**fields), bearer(ADMIN))
    assert (status, detail[:41]) == ("FAILED_PRECONDITION", "no Envoy limits are configured: set envoy")


# -- remote stores --------------------------------------------------------------------------------------------------


def test_remote_store_is_awaited() -> None:
    store = SlowStore()
    worker = Worker(RECORDS, store)
    request = messages.CheckRequest(dimension=USER, identifier="42", endpoint="/orders").SerializeToString()

    async def call() -> Any:
        pending = asyncio.ensure_future(unary(worker.methods[CHECK], RpcCall(CHECK, (), None, None), request))
        while not store.held:
            await asyncio.sleep(0)
        store.answer()
        return messages.CheckResponse.FromString(await pending)

    answer = worker.runner.run(call())
    assert (answer.allowed, answer.remaining) == (True, 2)
    worker.close()
