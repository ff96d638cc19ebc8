"""Own dimensions over HTTP and gRPC, in one worker on virtual time: check, batch, quota, explain, reset, authorize."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

import pytest

from crestgate.errors import InvalidRequestError
from crestgate.http.client_address import TrustedProxies
from crestgate.http.header_options import HeaderStyle
from crestgate.protobuf import messages
from crestgate.service.checks.forms import prepare_check
from crestgate.service.checks.idempotency import build_record
from crestgate.service.checks.schemas import CheckBody, ContextBody
from crestgate.service.context import CallContext
from crestgate.service.errors import ApiError
from crestgate.service.http.asgi import HttpResponse
from crestgate.service.http.authorize import Authorize
from crestgate.stores.port import Op
from unit.service.worker import ADMIN, Worker, bearer, status_of

USER = 1
RULES: dict[str, dict[str, Any]] = {
    "per-org": {"dimension": "org", "limit": 5},
    "per-org-and-model": {"dimension": ["org", "model"], "limit": 3},
    "acme": {"dimension": ["org", "model"], "identifier": ["acme", "*"], "limit": 4},
    "user-model": {"dimension": ["user", "model"], "limit": 2},
    "secret": {"dimension": ["apikey", "org"], "limit": 9, "window_seconds": 30},
}
BOTH = {"context": {"attributes": {"org": "umbrella", "model": "large"}}}


@pytest.fixture
def worker() -> Iterator[Worker]:
    common = {"window_seconds": 60, "algorithm": "fixed_window"}
    worker = Worker({("rule", name): {"rule_id": name, **common, **body} for name, body in RULES.items()})
    yield worker
    worker.close()


def handled(worker: Worker, path: str, body: dict[str, Any]) -> Any:
    """The response of a path that is not a fast one."""
    call = CallContext({"method": "POST", "path": path, "headers": []}, {}, "id")
    return json.loads(worker.respond(path, call, json.dumps(body).encode()).body)


def test_check_quota_and_batch(worker: Worker) -> None:
    first = worker.post("/api/v1/check", BOTH)
    assert (first["rule"], first["remaining"], len(first["parts"])) == ("per-org-and-model", 2, 2)
    assert handled(worker, "/api/v1/quota", BOTH)["remaining"] == 2
    other = {"context": {"attributes": {"org": "umbrella", "model": "small"}}}
    decisions = worker.post("/api/v1/check/batch", {"checks": [BOTH, other, BOTH, BOTH]})["decisions"]
    assert [one["allowed"] for one in decisions] == [True, True, True, False]
    assert decisions[3]["rule"] == "per-org-and-model"
    assert worker.post("/api/v1/check", {"context": {"attributes": {"model": "large"}}})["reason"] == "no_rule"


def test_users_and_models(worker: Worker) -> None:
    body = {"context": {"user": "42", "attributes": {"model": "large"}}}
    assert [worker.post("/api/v1/check", body)["allowed"] for _ in range(3)] == [True, True, False]
    assert worker.post("/api/v1/check", {"context": {"user": "42", "attributes": {"model": "small"}}})["allowed"]


def test_grpc_shares_the_counters(worker: Worker) -> None:
    attributes = {"org": "umbrella", "model": "large"}
    assert worker.check(attributes=attributes).remaining == 2
    assert worker.post("/api/v1/check", BOTH)["remaining"] == 1
    assert worker.call("GetRemainingQuota", messages.QuotaRequest(attributes=attributes)).remaining == 1
    batch = messages.CheckBatchRequest(checks=[messages.CheckRequest(attributes=attributes)] * 2)
    assert [one.allowed for one in worker.call("CheckRateLimitBatch", batch).decisions] == [True, False]
    reset = worker.call("ResetLimit", messages.ResetRequest(attributes=attributes), bearer(ADMIN))
    assert [(one.key, one.rule) for one in reset.reset] == [
        ("model:large|org:umbrella", "per-org-and-model"),
        ("org:umbrella", "per-org"),
    ]
    assert worker.check(attributes=attributes).remaining == 2


def test_grpc_attributes_beside_a_dimension(worker: Worker) -> None:
    fields: dict[str, Any] = {"dimension": USER, "identifier": "42", "attributes": {"model": "large"}}
    assert [worker.check(**fields).allowed for _ in range(3)] == [True, True, False]
    assert not worker.post("/api/v1/check", {"context": {"user": "42", "attributes": {"model": "large"}}})["allowed"]
    assert worker.check(dimension=USER, identifier="42").reason == "no_rule"


@pytest.mark.parametrize(
    ("fields", "text"),
    [
        ({"attributes": {"Org": "x"}}, "context.attributes: attributes has the name 'Org'"),
        ({"attributes": {"org": ""}}, "context.attributes.org: attributes.org must not be empty"),
        ({"attributes": {f"a{n}": "x" for n in range(17)}}, "context.attributes: attributes has 17 names"),
        ({"attributes": {f"a{n}": "x" * 300 for n in range(17)}}, "attributes: has more than 16 attributes"),
        ({"attributes": {"org": "x"}, "key": "k"}, "attributes: cannot be combined with 'key'"),
        ({"attributes": {"org": "x"}, "plans": ["gold"]}, "plans: cannot be combined with 'context'"),
        ({"attributes": {"org": "x"}, "identifier": "42"}, "dimension: is not set"),
    ],
    ids=lambda value: str(value)[:40],
)
def test_invalid_attributes_over_grpc(worker: Worker, fields: dict[str, Any], text: str) -> None:
    code, message = status_of(worker, "CheckRateLimit", messages.CheckRequest(**fields))
    assert code == "INVALID_ARGUMENT"
    assert text in message


def test_explain(worker: Worker) -> None:
    body = {"context": {"api_key": "hunter2", "attributes": {"org": "acme", "model": "large"}}}
    data = handled(worker, "/api/v1/explain", body)
    rules = {rule["rule_id"]: rule for rule in data["rules"]}
    assert [name for name, rule in rules.items() if rule["status"] == "applies"] == ["secret", "acme", "per-org"]
    assert (rules["acme"]["dimension"], rules["acme"]["identifier"]) == (["org", "model"], ["acme", "*"])
    assert rules["per-org-and-model"]["lost_to"] == "acme"
    assert "hunter2" not in json.dumps(data)
    assert "crestgate override" not in json.dumps(data)


def test_labels_of_metrics(worker: Worker) -> None:
    for number in range(300):
        worker.post("/api/v1/check", {"context": {"attributes": {"org": f"org-{number}", "model": "large"}}})
    snapshot = worker.metrics.snapshot(worker.clock.ticks(), {})
    assert set(snapshot.counters["allowed"]) == {("per-org-and-model", "model,org")}


def authorize(worker: Worker, trusted: bool, *headers: tuple[bytes, bytes]) -> Any:
    proxies = TrustedProxies(["192.0.2.0/24"] if trusted else [])
    scope = {"method": "GET", "path": "/", "headers": list(headers), "query_string": b"", "client": ("192.0.2.1", 1)}
    call = CallContext(scope, dict(headers), "id")
    call.address = "192.0.2.1"
    response = Authorize(worker.checks, proxies, HeaderStyle())(call, b"")
    assert isinstance(response, HttpResponse)
    return response


def test_attributes_from_trusted_proxies_only(worker: Worker) -> None:
    headers = ((b"x-crestgate-attr-org", b" umbrella	"), (b"x-crestgate-attr-model", b"large"))
    statuses = [authorize(worker, True, *headers).status for _ in range(4)]
    assert statuses == [200, 200, 200, 429]
    assert handled(worker, "/api/v1/quota", BOTH)["remaining"] == 0, "white space makes no other subject"
    assert authorize(worker, False, *headers).status == 200, "a client can write any header"


@pytest.mark.parametrize(
    ("name", "value"), [(b"user", b"x"), (b"_x", b"y"), (b"org", b"x" * 1025), (b"a" * 33, b"x")], ids=len
)
def test_invalid_attribute_headers(worker: Worker, name: bytes, value: bytes) -> None:
    with pytest.raises(ApiError) as caught:
        authorize(worker, True, (b"x-crestgate-attr-" + name, value))
    assert caught.value.status == 400


def test_attribute_headers_that_contradict(worker: Worker) -> None:
    twice = [(b"x-crestgate-attr-org", b"a"), (b"x-crestgate-attr-org", b"b")]
    spellings = [(b"x-crestgate-attr-cost-center", b"a"), (b"x-crestgate-attr-cost_center", b"a")]
    for headers in (twice, spellings):
        with pytest.raises(InvalidRequestError):
            authorize(worker, True, *headers)


def test_order_of_attributes_is_no_other_request(worker: Worker) -> None:
    checks = [
        CheckBody(context=ContextBody(attributes=attributes))
        for attributes in ({"org": "a", "model": "b"}, {"model": "b", "org": "a"}, {"model": "a", "org": "b"})
    ]
    prints = []
    for check in checks:
        call = CallContext({"headers": []}, {}, "id")
        pending = [prepare_check(worker.parts.limiter, Op.TAKE, check)]
        prints.append(build_record(b"k", call, [check], False, pending, 0).fingerprint)
    assert prints[0] == prints[1] != prints[2]
