"""Health, metrics, OpenAPI, unknown paths over HTTP, and headers of every response."""

from __future__ import annotations

import re
from uuid import uuid4

import httpx
import pytest
from prometheus_client.openmetrics.parser import text_string_to_metric_families as openmetrics
from prometheus_client.parser import text_string_to_metric_families

from integration.child_process import wait_until
from integration.service.api_helpers import problem
from integration.service.service_process import Service

METRICS = {
    "crestgate_allowed": {"rule", "dimension"},
    "crestgate_blocked": {"rule", "dimension"},
    "crestgate_shadow_blocked": {"rule", "dimension"},
    "crestgate_check_duration_seconds": set(),
    "crestgate_batch_size": set(),
    "crestgate_clock_skew_seconds": set(),
    "crestgate_store_errors": set(),
    "crestgate_store_resets": set(),
    "crestgate_store_logs_full": set(),
    "crestgate_fail_open": set(),
    "crestgate_rules_reload_failures": set(),
    "crestgate_envoy_reload_failures": set(),
    "crestgate_certificate_reload_failures": set(),
    "crestgate_breaker_state": {"store"},
    "crestgate_cache_hits": {"cache"},
    "crestgate_cache_misses": {"cache"},
    "crestgate_pressure_transitions": {"state"},
    "crestgate_requests": {"plane", "status"},
    "crestgate_rules": set(),
    "crestgate_rules_unreadable": set(),
}


def test_alive_and_ready(anyone: httpx.Client) -> None:
    alive = anyone.get("/healthz")
    assert (alive.status_code, alive.json()["status"]) == (200, "alive")
    assert alive.headers["cache-control"] == "no-store"
    ready = anyone.get("/readyz")
    assert (ready.status_code, ready.json()["status"]) == (200, "ready")
    assert ready.json()["checks"] == {"counters": "ok", "rule_database": "ok", "rules": "ok"}


def test_metrics_have_documented_names(anyone: httpx.Client, admin: httpx.Client) -> None:
    name = uuid4().hex
    rule = {
        "rule_id": name,
        "name": name,
        "dimension": "user",
        "endpoint_pattern": f"/{name}",
        "limit": 1,
        "window_seconds": 60,
    }
    shadow = {**rule, "rule_id": f"{name}-shadow", "mode": "shadow", "window_seconds": 120}
    for body in (rule, shadow):
        assert admin.post("/api/v1/rules", json=body).status_code == 201
    check = {"dimension": "user", "identifier": name, "endpoint": f"/{name}", "timestamp": 1_700_000_000}
    for _ in range(3):
        anyone.post("/api/v1/check", json=check)
    anyone.post("/api/v1/check/batch", json={"checks": [check] * 2})
    response = anyone.get("/metrics")
    assert response.headers["content-type"].startswith("text/plain; version=")
    families = {family.name: family for family in text_string_to_metric_families(response.text)}
    assert set(METRICS) - set(families) == set()
    for family, labels in METRICS.items():
        for sample in families[family].samples:
            assert set(sample.labels) - {"le"} == labels, sample

    def of(family: str, rule_id: str) -> float:
        return sum(sample.value for sample in families[family].samples if sample.labels["rule"] == rule_id)

    assert (of("crestgate_allowed", name), of("crestgate_blocked", name)) == (1, 4)
    assert of("crestgate_shadow_blocked", f"{name}-shadow") == 4
    assert not any(name in str(sample.labels) for sample in families["crestgate_requests"].samples)
    assert f'identifier="{name}"' not in response.text
    for body in (rule, shadow):
        admin.delete(f"/api/v1/rules/{body['rule_id']}")


def test_metrics_in_openmetrics_format(anyone: httpx.Client) -> None:
    response = anyone.get("/metrics", headers={"accept": "application/openmetrics-text; version=1.0.0"})
    assert response.headers["content-type"].startswith("application/openmetrics-text")
    assert response.text.endswith("# EOF\n")
    families = openmetrics(response.text)  # type: ignore[no-untyped-call]  # untyped
    assert {family.name for family in families} >= set(METRICS)


def test_labels_are_bounded_whatever_clients_send(anyone: httpx.Client, admin: httpx.Client) -> None:
    before = len(anyone.get("/metrics").text.splitlines())
    for start in range(0, 3000, 1000):
        checks = [
            {"dimension": "user", "identifier": f"{uuid4()}", "endpoint": f"/{n}"} for n in range(start, start + 1000)
        ]
        assert anyone.post("/api/v1/check/batch", json={"checks": checks}).status_code == 200
        anyone.post("/ratelimiter/verify-api-limit", json={"clientId": f"{uuid4()}", "apiName": f"{uuid4()}"})
        anyone.get(f"/{uuid4()}")
    assert len(anyone.get("/metrics").text.splitlines()) < before + 20


def test_metrics_do_not_go_backwards(anyone: httpx.Client) -> None:
    def allowed() -> float:
        families = text_string_to_metric_families(anyone.get("/metrics").text)
        return sum(
            sample.value for family in families if family.name == "crestgate_requests" for sample in family.samples
        )

    counts = [allowed() for _ in range(5)]
    assert counts == sorted(counts)
    assert counts[-1] > counts[0]


def test_openapi_documents_every_call(anyone: httpx.Client) -> None:
    response = anyone.get("/openapi.json")
    assert response.headers["content-type"] == "application/json"
    schema = response.json()
    assert schema["openapi"].startswith("3.1")
    documented = {(method.upper(), path) for path, item in schema["paths"].items() for method in item}
    expected = """
        POST /api/v1/check, POST /api/v1/check/batch, POST /api/v1/quota, POST /api/v1/reset, GET /api/v1/authorize,
        POST /api/v1/explain,
        GET /api/v1/rules, POST /api/v1/rules, GET /api/v1/rules/{rule_id}, PUT /api/v1/rules/{rule_id},
        DELETE /api/v1/rules/{rule_id}, POST /api/v1/simulate,
        GET /api/v1/plans, POST /api/v1/plans, GET /api/v1/plans/{name},
        PUT /api/v1/plans/{name}, DELETE /api/v1/plans/{name}, GET /api/v1/users/{user_id}/limits,
        PUT /api/v1/users/{user_id}/tier, POST /api/v1/users/{user_id}/override, GET /api/v1/audit, GET /api/v1/stats,
        GET /api/v1/keys, POST /api/v1/keys, DELETE /api/v1/keys/{key_id}, POST /api/v1/keys/{key_id}/rotate,
        GET /admin/status, GET /admin/metrics, GET /admin/metrics/{key}, POST /admin/reset/{key}, GET /admin/policies,
        GET /admin/policies/{key}, POST /admin/policies, PUT /admin/policies/{key}, DELETE /admin/policies/{key},
        POST /ratelimiter/verify-api-limit, POST /ratelimiter/configure-client, GET /ratelimiter/client-limits,
        GET /ratelimiter/configured-limits, DELETE /ratelimiter/delete-limits, DELETE /ratelimiter/delete-client,
        GET /healthz, GET /readyz, GET /metrics
    """
    expected_calls = {(method, path) for method, path in re.findall(r"([A-Z]+) (/[^,\s]+)", expected)}
    assert expected_calls - documented == set()


def test_docs_page(anyone: httpx.Client) -> None:
    interactive = anyone.get("/docs")
    assert "default-src 'none'" in interactive.headers["content-security-policy"]
    assert not re.search(r"""(src|href)=["']https?://""", interactive.text)
    response = anyone.get("/docs/reference")
    assert response.headers["content-type"].startswith("text/html")
    assert "content-security-policy" in response.headers
    assert "/api/v1/check" in response.text
    assert not re.search(r"""(src|href)=["']https?://""", response.text)
    home = anyone.get("/", follow_redirects=True)
    assert home.status_code == 200
    assert home.headers["content-type"].startswith("text/html")


@pytest.mark.parametrize(
    "path", ["/nothing", "/api/v1", "/api/v1/check/", "/api/v2/rules", "/docs2", "/favicon.ico", "/.env"]
)
def test_unknown_path_is_404(admin: httpx.Client, anyone: httpx.Client, path: str) -> None:
    for client in (admin, anyone):  # a mistyped path is not reported as a missing key
        problem(client.get(path), 404, "/docs")
        problem(client.post(path, json={}), 404)


@pytest.mark.parametrize(
    ("method", "path", "allowed"),
    [
        ("GET", "/api/v1/check", {"POST"}),
        ("PUT", "/api/v1/check/batch", {"POST"}),
        ("DELETE", "/api/v1/quota", {"POST"}),
        ("OPTIONS", "/api/v1/check", {"POST"}),
        ("HEAD", "/api/v1/reset", {"POST"}),
        ("GET", "/ratelimiter/verify-api-limit", {"POST"}),
        ("POST", "/healthz", {"GET", "HEAD"}),
        ("DELETE", "/metrics", {"GET", "HEAD"}),
        ("PATCH", "/api/v1/rules", {"GET", "HEAD", "POST"}),
        ("OPTIONS", "/api/v1/rules", {"GET", "HEAD", "POST"}),
        ("POST", "/api/v1/rules/x", {"GET", "HEAD", "PUT", "DELETE"}),
        ("POST", "/api/v1/audit", {"GET", "HEAD"}),
        ("GET", "/admin/reset/x", {"POST"}),
        ("GET", "/ratelimiter/configure-client", {"POST"}),
        ("POST", "/ratelimiter/delete-client", {"DELETE"}),
        ("TRACE", "/api/v1/rules", {"GET", "HEAD", "POST"}),
    ],
)
def test_wrong_method_is_405_with_allow(admin: httpx.Client, method: str, path: str, allowed: set[str]) -> None:
    response = admin.request(method, path)
    assert set(response.headers["allow"].replace(" ", "").split(",")) == allowed
    if method == "HEAD":
        assert (response.status_code, response.content) == (405, b"")
    else:
        problem(response, 405)


@pytest.mark.parametrize("path", ["/healthz", "/readyz", "/docs", "/openapi.json", "/api/v1/rules", "/admin/status"])
def test_head_is_get_without_its_body(admin: httpx.Client, path: str) -> None:
    head, get = admin.head(path), admin.get(path)
    assert (head.status_code, head.content) == (get.status_code, b"")
    assert head.headers["content-type"] == get.headers["content-type"]
    if path not in ("/admin/status",):
        assert head.headers.get("content-length") == get.headers.get("content-length")


def test_head_of_unknown_rule_is_404(admin: httpx.Client) -> None:
    response = admin.head("/api/v1/rules/nobody")
    assert (response.status_code, response.content) == (404, b"")


@pytest.mark.parametrize(
    ("method", "path"),
    [("GET", "/healthz"), ("POST", "/api/v1/check"), ("GET", "/api/v1/rules"), ("GET", "/nothing"), ("GET", "/docs")],
)
def test_every_response_has_a_request_id(service: Service, admin: httpx.Client, method: str, path: str) -> None:
    request_ids = [admin.request(method, path).headers["x-request-id"] for _ in range(3)]
    assert len(set(request_ids)) == 3
    own_id = f"mine-{uuid4()}"
    response = admin.request(method, path, headers={"x-request-id": own_id})
    assert response.headers["x-request-id"] == own_id
    assert response.headers.get_list("x-request-id") == [own_id]
    if path == "/api/v1/rules":
        wait_until("it is in the log", lambda: own_id in service.logged)


def test_no_response_names_the_server_software(admin: httpx.Client) -> None:
    for path in ("/healthz", "/api/v1/rules", "/nothing"):
        assert "uvicorn" not in admin.get(path).headers.get("server", "")
