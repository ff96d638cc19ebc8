"""Envoy's limits over HTTP: `/json`, resets, authorization and validation errors."""

from __future__ import annotations

import asyncio
import json
import threading
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, cast

import httpx
import pytest

from crestgate import AsyncLimiter, Limiter, StoreError
from crestgate.config.server import ServerSettings
from crestgate.config.settings import Settings
from crestgate.envoy.evaluator import MAX_VALUE_LABELS
from crestgate.protobuf import messages
from crestgate.rules.catalog import Catalog
from crestgate.rules.port import Actor, AuditQuery
from crestgate.rules.records import edit_of
from crestgate.rules.rule import Rule
from crestgate.service.auth.guard import CheckCeiling, Guard
from crestgate.service.auth.keys import ApiKeys
from crestgate.service.checks.envoy import EnvoyService
from crestgate.service.checks.service import CheckService
from crestgate.service.dependencies import Dependencies
from crestgate.service.grpc.services.registry import build_methods
from crestgate.service.grpc.transport.call import RpcCall, RpcError, RpcStatus
from crestgate.service.http.router import Router
from crestgate.service.observability.health import Health
from crestgate.service.observability.request_log import RequestLog
from crestgate.service.observability.worker_metrics import WorkerMetrics
from crestgate.stores.memory import MemoryStore
from crestgate.testing import FakeClock
from flaky_store import Flaky
from unit.rules.memory_repository import MemoryRepository
from unit.service.checks.proxy import START, Current, descriptor, domains_of
from unit.service.worker import unary

YAML = """
domain: edge
descriptors:
  - key: user
    rate_limit: {unit: minute, requests_per_unit: 2, name: per-user}
  - key: free
    rate_limit: {unlimited: true}
  - key: plan
    value: gold
    rate_limit: {unit: hour, requests_per_unit: 9}
    metadata: {tier: gold}
  - key: path
    detailed_metric: true
    rate_limit: {unit: hour, requests_per_unit: 9}
"""
ADMIN = "correct-horse-battery"
WRITE = {"authorization": f"Bearer {ADMIN}"}
REQUEST = {"domain": "edge", "descriptors": [{"entries": [{"key": "user", "value": "a"}]}]}


class Worker:
    """HTTP and gRPC of one worker, over the same counters in memory."""

    def __init__(self, domains: Any, checks: str = "open", store: Any = None) -> None:
        self.runner = asyncio.Runner()
        self.clock = FakeClock(START)
        self.repository = MemoryRepository(self.clock)
        self.catalog = Catalog([self.repository], 3600)
        settings = Settings(server=ServerSettings(checks=cast(Any, checks)))
        limiter = AsyncLimiter(store or MemoryStore(clock=self.clock), catalog=self.catalog)
        nothing: Any = None
        descriptors: Any = None if domains is None else Current(domains)
        parts = Dependencies(
            settings, limiter, self.repository, nothing, nothing, WorkerMetrics(), nothing, nothing, (), 0, descriptors
        )
        node = Limiter("memory://", clock=self.clock)
        guard = Guard(ApiKeys(dict, ADMIN), settings.server, node, self.clock.ticks)
        service = CheckService(parts, CheckCeiling(settings.server.limits.checks, node), None)
        log = RequestLog(settings.logs)
        need = "check" if checks == "key" else None
        self.envoy = EnvoyService(service, descriptors)
        self.app = Router(parts, guard, service, self.envoy, nothing, {}, cast(Any, need), log)
        self.methods = build_methods(parts, guard, service, self.envoy, Health(limiter, self.repository), log)
        self.http = httpx.AsyncClient(transport=httpx.ASGITransport(cast(Any, self.app)), base_url="http://localhost")

    def post(self, path: str, body: Any, headers: Mapping[str, str] | None = None) -> httpx.Response:
        content = body if isinstance(body, bytes) else json.dumps(body).encode()
        return self.runner.run(self.http.post(path, content=content, headers=dict(headers or {})))

    def rpc(self, path: str, message: Any, metadata: Mapping[str, str] | None = None) -> bytes:
        headers = [(name.encode(), value.encode()) for name, value in (metadata or {}).items()]
        call = RpcCall(path.encode(), headers, "192.0.2.1", None)
        return self.runner.run(unary(self.methods[path.encode()], call, message.SerializeToString()))

    def close(self) -> None:
        self.runner.run(self.http.aclose())
        self.runner.close()
        self.catalog.close()


@pytest.fixture(scope="module")
def domains(tmp_path_factory: pytest.TempPathFactory) -> Any:
    return domains_of(Path(tmp_path_factory.mktemp("envoy")), YAML)


@pytest.fixture
def worker(domains: Any) -> Iterator[Worker]:
    made = Worker(domains)
    yield made
    made.close()


def test_json_request_is_counted_and_answered_as_over_grpc(worker: Worker) -> None:
    answer = worker.post("/json", REQUEST)
    assert (answer.status_code, answer.headers["content-type"]) == (200, "application/json")
    body = answer.json()
    headers = {header["key"]: header["value"] for header in body.pop("responseHeadersToAdd")}
    assert headers["ratelimit"] == '"edge.user";r=1;t=60'
    assert body == {
        "overallCode": "OK",
        "statuses": [
            {
                "code": "OK",
                "currentLimit": {"requestsPerUnit": 2, "unit": "MINUTE", "name": "per-user"},
                "limitRemaining": 1,
                "durationUntilReset": "60s",
            }
        ],
    }
    message = messages.RateLimitRequest(domain="edge", descriptors=[descriptor("user=a")])
    data = worker.rpc("/envoy.service.ratelimit.v3.RateLimitService/ShouldRateLimit", message)
    assert messages.RateLimitResponse.FromString(data).statuses[0].limit_remaining == 0
    denied = worker.post("/json", REQUEST)
    assert denied.status_code == 429
    assert denied.json()["overallCode"] == "OVER_LIMIT"
    assert denied.headers["retry-after"] == "60"


def test_both_spellings_and_numbers_as_text_are_accepted(worker: Worker) -> None:
    entries = [{"key": "user", "value": "a"}]
    for one in (
        {"entries": entries, "hitsAddend": "1", "limit": {"requestsPerUnit": 5, "unit": "MINUTE"}},
        {"entries": entries, "hits_addend": 1, "limit": {"requests_per_unit": "5", "unit": 2}},
        {"entries": entries, "hitsAddend": None, "isNegativeHits": None, "limit": {"requestsPerUnit": 5, "unit": 2}},
    ):
        assert worker.post("/json", {"domain": "edge", "descriptors": [one], "hitsAddend": None}).status_code == 200
    back = {"entries": entries, "is_negative_hits": True}
    request = {"domain": "edge", "descriptors": [back], "hits_addend": 2}
    assert worker.post("/json", request, WRITE).json()["statuses"][0]["limitRemaining"] == 1


def test_negative_hits_need_scope_write(worker: Worker) -> None:
    exhaust(worker)
    request = {**REQUEST, "descriptors": [{**REQUEST["descriptors"][0], "is_negative_hits": True}]}  # type: ignore[dict-item]
    answer = worker.post("/json", request)
    assert answer.status_code == 403
    assert "envoy.negative_hits" in answer.json()["detail"]
    back = descriptor("user=a")
    back.is_negative_hits = True
    message = messages.RateLimitRequest(domain="edge", descriptors=[back])
    with pytest.raises(RpcError) as refused:
        worker.rpc("/envoy.service.ratelimit.v3.RateLimitService/ShouldRateLimit", message)
    assert refused.value.status is RpcStatus.PERMISSION_DENIED
    assert worker.post("/json", REQUEST).status_code == 429, "nothing was given back"
    assert worker.post("/json", request, WRITE).status_code == 200
    assert worker.post("/json", REQUEST).status_code == 200


def test_dynamic_metadata_is_json(worker: Worker) -> None:
    request = {"domain": "edge", "descriptors": [{"entries": [{"key": "plan", "value": "gold"}]}]}
    assert worker.post("/json", request).json()["dynamicMetadata"]["metadata"] == {"tier": "gold"}


def test_json_and_grpc_share_the_bound_of_value_labels(worker: Worker) -> None:
    assert worker.envoy.evaluator is not None
    worker.envoy.evaluator.value_labels |= {str(number) for number in range(MAX_VALUE_LABELS - 2)}
    for name in ("a", "b", "c", "d"):
        request = {"domain": "edge", "descriptors": [{"entries": [{"key": "path", "value": name}]}]}
        assert worker.post("/json", request).status_code == 200
        message = messages.RateLimitRequest(domain="edge", descriptors=[descriptor(f"path={name}")])
        worker.rpc("/envoy.service.ratelimit.v3.RateLimitService/ShouldRateLimit", message)
    labels = {rule for rule, _ in worker.envoy.metrics._rules}
    assert labels == {"edge.path_a", "edge.path_b", "edge.path"}


def invalid(**more: Any) -> dict[str, Any]:
    return {"domain": "edge", "descriptors": [{"entries": [{"key": "user", "value": "a"}], **more}]}


@pytest.mark.parametrize(
    ("body", "field"),
    [
        ({**REQUEST, "hits": 1}, "hits"),
        (invalid(weight=1), "descriptors[0].weight"),
        (invalid(entries=[{"name": "user"}]), "descriptors[0].entries[0].name"),
        (invalid(limit={"per": 1}), "descriptors[0].limit.per"),
        ({**REQUEST, "domain": 1}, "domain"),
        ({"descriptors": REQUEST["descriptors"]}, "domain"),
        ({"domain": "edge"}, "descriptors"),
        ({**REQUEST, "hitsAddend": -1}, "hitsAddend"),
        ({**REQUEST, "hits_addend": "many"}, "hits_addend"),
        ({**REQUEST, "hitsAddend": 2**31}, "hits_addend"),
        ({**REQUEST, "hitsAddend": 1, "hits_addend": 1}, "hits_addend"),
        (invalid(entries=[{}] * 10_001), "descriptors[0].entries"),
        ({"domain": "edge", "descriptors": [{}] * 251}, "descriptors"),
        (invalid(hitsAddend=2**64), "descriptors[0].hitsAddend"),
        (invalid(isNegativeHits="yes"), "descriptors[0].isNegativeHits"),
        (invalid(limit={"requestsPerUnit": 2**32, "unit": "DAY"}), "descriptors[0].limit.requestsPerUnit"),
        (invalid(limit={"requestsPerUnit": 1, "unit": "FORTNIGHT"}), "descriptors[0].limit.unit"),
        (invalid(limit={"requestsPerUnit": 1}), "descriptors[0].limit.unit"),
        (b'{"domain": "\\ud800"}', ""),
        (b"[]", ""),
        (b"{", ""),
        (b"", ""),
        (b"[" * 100_000, ""),
    ],
    ids=lambda value: str(value)[:80],
)
def test_invalid_json_names_the_field(worker: Worker, body: Any, field: str) -> None:
    answer = worker.post("/json", body)
    assert (answer.status_code, answer.headers["content-type"]) == (400, "application/problem+json")
    assert [problem["field"] for problem in answer.json()["problems"]] == [field]


def test_json_needs_post_and_the_scope_of_checks(domains: Any) -> None:
    worker = Worker(domains, checks="key")
    assert worker.runner.run(worker.http.get("/json")).status_code == 405
    assert worker.post("/json", REQUEST).status_code == 401
    assert worker.post("/json", REQUEST, WRITE).status_code == 200
    message = messages.RateLimitRequest(domain="edge", descriptors=[descriptor("user=a")])
    with pytest.raises(RpcError) as refused:
        worker.rpc("/envoy.service.ratelimit.v3.RateLimitService/ShouldRateLimit", message)
    assert refused.value.status is RpcStatus.UNAUTHENTICATED
    worker.close()


def test_missing_configuration_names_the_setting() -> None:
    worker = Worker(None)
    for path, headers in (("/json", {}), ("/api/v1/reset", WRITE)):
        answer = worker.post(path, REQUEST, headers)
        assert answer.status_code == 412
        assert "envoy.config" in answer.json()["detail"]
    message = messages.RateLimitRequest(domain="edge", descriptors=[descriptor("user=a")])
    with pytest.raises(RpcError) as refused:
        worker.rpc("/envoy.service.ratelimit.v3.RateLimitService/ShouldRateLimit", message)
    assert refused.value.status is RpcStatus.FAILED_PRECONDITION
    assert "envoy.config" in refused.value.message
    worker.close()


# -- resets -----------------------------------------------------------------------------------------------------------


def audit_entries(worker: Worker) -> list[tuple[str, str]]:
    """Entries of the audit log, oldest first."""
    return [(entry.action, entry.subject) for entry in reversed(worker.repository.audit(AuditQuery()))]


def exhaust(worker: Worker) -> None:
    while worker.post("/json", REQUEST).status_code == 200:
        pass


def test_reset_by_descriptor_is_audited(worker: Worker) -> None:
    exhaust(worker)
    others = [{"entries": [{"key": "free"}]}, {"entries": [{"key": "nobody", "value": "x"}]}]
    request = {"domain": "edge", "descriptors": [*REQUEST["descriptors"], *others, *REQUEST["descriptors"]]}
    answer = worker.post("/api/v1/reset", request, WRITE)
    assert (answer.status_code, answer.json()) == (200, {"reset": [{"key": "edge|user=a", "rule": "edge.user"}]})
    assert worker.post("/json", REQUEST).status_code == 200
    assert audit_entries(worker) == [("reset requested", "edge|user=a"), ("reset", "edge|user=a")]


def test_reset_by_descriptor_over_grpc(worker: Worker) -> None:
    exhaust(worker)
    message = messages.ResetRequest(domain="edge")
    message.descriptors.add().entries.add(key="user", value="a")
    data = worker.rpc("/crestgate.v1.RateLimiter/ResetLimit", message, WRITE)
    answer = messages.ResetResponse.FromString(data)
    assert (answer.reset_count, answer.reset[0].key, answer.reset[0].rule) == (1, "edge|user=a", "edge.user")
    assert worker.post("/json", REQUEST).status_code == 200
    assert audit_entries(worker) == [("reset requested", "edge|user=a"), ("reset", "edge|user=a")]


def test_cancelled_reset_completes_and_is_audited_once(worker: Worker) -> None:
    exhaust(worker)
    message = messages.ResetRequest(domain="edge")
    for name in ("a", "b", "c"):
        message.descriptors.add().entries.add(key="user", value=name)
    method = worker.methods[b"/crestgate.v1.RateLimiter/ResetLimit"]
    call = RpcCall(b"/", [(b"authorization", WRITE["authorization"].encode())], "192.0.2.1", None)
    noted, may_note = threading.Event(), threading.Event()
    note = worker.repository.note

    def slowly(*arguments: Any) -> None:
        note(*arguments)
        noted.set()
        may_note.wait(20)

    worker.repository.note = slowly  # type: ignore[method-assign, assignment]

    async def cancel_reset() -> None:
        waits = asyncio.ensure_future(unary(method, call, message.SerializeToString()))
        await asyncio.to_thread(noted.wait, 20)
        waits.cancel()
        with pytest.raises((asyncio.CancelledError, RpcError)):
            await waits
        may_note.set()
        async with asyncio.timeout(20):
            while len(asyncio.all_tasks()) > 1:
                await asyncio.sleep(0.001)

    worker.runner.run(cancel_reset())
    assert worker.post("/json", REQUEST).status_code == 200
    subjects = [f"edge|user={name}" for name in ("a", "b", "c")]
    assert audit_entries(worker) == [
        (action, subject) for action in ("reset requested", "reset") for subject in subjects
    ]


@pytest.mark.parametrize(
    ("body", "field"),
    [
        ({**REQUEST, "domain": "elsewhere"}, "domain"),
        ({"domain": "edge"}, "descriptors"),
        ({"domain": "edge", "descriptors": []}, "descriptors"),
        ({"domain": "edge", "descriptors": [{"entries": []}] * 101}, "descriptors"),
        (invalid(entries=[{"key": "user"}] * 10_001), "descriptors[0].entries"),
        ({"descriptors": REQUEST["descriptors"]}, "domain"),
        ({**REQUEST, "key": "user:42"}, "key"),
        (invalid(hits=1), "descriptors[0].hits"),
        ({"op": "take", "key": "a"}, "op"),
        ({"counters": [], "key": "a"}, "counters"),
    ],
    ids=lambda value: str(value)[:80],
)
def test_invalid_reset_names_the_field(worker: Worker, body: Any, field: str) -> None:
    answer = worker.post("/api/v1/reset", body, WRITE)
    assert answer.status_code == 400
    assert [problem["field"] for problem in answer.json()["problems"]] == [field]


@pytest.mark.parametrize("body", [REQUEST, {"key": "k"}, {"dimension": "USER", "identifier": "42"}], ids=str)
def test_failed_reset_is_audited_as_failed(domains: Any, body: dict[str, Any]) -> None:
    store = Flaky()
    worker = Worker(domains, store=store)
    rule = Rule.read({"name": "users", "dimension": "user", "limit": 5, "window_seconds": 60})
    worker.repository.write([edit_of(rule)], Actor("test"))
    worker.catalog.refresh()
    written = len(audit_entries(worker))
    store.broken = True
    assert worker.post("/api/v1/reset", body, WRITE).status_code == 503
    batch = {"checks": [{"op": "reset", "key": "k"}], "exact": True}
    (decision,) = worker.post("/api/v1/check/batch", batch, WRITE).json()["decisions"]
    assert decision["error"]["status"] == 503
    message = messages.ResetRequest(key="k")
    with pytest.raises(RpcError):
        worker.rpc("/crestgate.v1.RateLimiter/ResetLimit", message, WRITE)
    entries = audit_entries(worker)[written:]
    assert [action for action, _ in entries] == ["reset requested", "reset failed"] * 3
    store.broken = False
    assert worker.post("/api/v1/reset", body, WRITE).status_code == 200
    assert [action for action, _ in audit_entries(worker)[-2:]] == ["reset requested", "reset"]
    worker.close()


def test_reset_without_audit_log_is_not_done(worker: Worker, monkeypatch: pytest.MonkeyPatch) -> None:
    exhaust(worker)

    def fails(*_: Any) -> None:
        raise StoreError("the rule database does not answer")

    monkeypatch.setattr(worker.repository, "note", fails)
    assert worker.post("/api/v1/reset", REQUEST, WRITE).status_code == 503
    assert worker.post("/json", REQUEST).status_code == 429


def test_reset_needs_scope_write(worker: Worker) -> None:
    assert worker.post("/api/v1/reset", REQUEST).status_code == 401
