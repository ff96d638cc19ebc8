"""Forward authentication over HTTP, and settings that change responses: headers, deprecations, metric names."""

from __future__ import annotations

import time
from collections.abc import Iterator
from datetime import UTC, datetime
from email.utils import parsedate_to_datetime
from uuid import uuid4

import httpx
import pytest

from integration.service.api_helpers import problem
from integration.service.service_process import Service

CONFIG = """
server:
  trusted_proxies: [127.0.0.0/8]
  checks: key
rules:
  - {rule_id: per-user, dimension: user, endpoint_pattern: /pay/*, limit: 2, window_seconds: 3600}
  - {rule_id: per-ip, dimension: ip, endpoint_pattern: /ip, limit: 1, window_seconds: 3600}
  - {rule_id: per-key, dimension: apikey, endpoint_pattern: /key, limit: 1, window_seconds: 3600}
  - {rule_id: per-client, dimension: client, endpoint_pattern: /client, limit: 1, window_seconds: 3600}
  - {rule_id: posts, dimension: ip, endpoint_pattern: /posts, method: POST, limit: 1, window_seconds: 3600}
  - {rule_id: chain-a, dimension: user, endpoint_pattern: /chain, limit: 10, window_seconds: 60}
  - {rule_id: 'chain "b"', dimension: user, endpoint_pattern: /chain, limit: 3, window_seconds: 3600}
deprecated:
  - {path: /ratelimiter/*, since: 2026-01-01, sunset: 2027-01-01, link: 'https://example.org/moving'}
  - {path: /api/v1/quota, since: 2026-02-03, sunset: 2026-12-24}
metrics: {prefix: throttlex}
default_client_limits: off
"""
PLAIN = """
headers: {ratelimit: false, x_ratelimit: false, retry_after: false}
rules:
  - {rule_id: per-ip, dimension: ip, limit: 1, window_seconds: 3600}
"""
EPOCH = """
headers: {ratelimit: false, reset: epoch}
server: {trusted_proxies: 1}
rules:
  - {rule_id: per-ip, dimension: ip, limit: 1, window_seconds: 3600, algorithm: fixed_window}
"""


@pytest.fixture(scope="module")
def configured(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Service]:
    with Service(tmp_path_factory.mktemp("configured"), config=CONFIG) as started:
        yield started
        assert "Traceback" not in started.logged


@pytest.fixture(scope="module")
def proxy(configured: Service) -> Iterator[httpx.Client]:
    """A proxy that the service trusts, with its own key."""
    with httpx.Client(base_url=configured.url, headers={"x-crestgate-key": configured.key}) as client:
        yield client


@pytest.fixture
def user() -> str:
    return uuid4().hex


def authorize(proxy: httpx.Client, path: str, query: str = "", verb: str = "GET", **headers: str) -> httpx.Response:
    extra = {name.replace("_", "-"): value for name, value in headers.items()}
    return proxy.request(verb, f"/api/v1/authorize{query}", headers={"x-original-uri": path, **extra})


def test_user_is_allowed_until_the_limit(proxy: httpx.Client, user: str) -> None:
    responses = [authorize(proxy, f"/pay/{number}?a=b", x_user_id=user) for number in range(3)]
    assert [response.status_code for response in responses] == [200, 200, 429]
    first, _, denied = responses
    assert first.content == b""
    assert first.headers["ratelimit-policy"] == '"per-user";q=2;w=3600'
    assert first.headers["ratelimit"].startswith('"per-user";r=1;t=')
    assert first.headers["x-ratelimit-limit"] == "2"
    assert first.headers["x-ratelimit-remaining"] == "1"
    assert 0 < int(first.headers["x-ratelimit-reset"]) <= 7200
    assert "retry-after" not in first.headers
    members = problem(denied, 429, "rate limit exceeded")
    assert members["type"].endswith("#quota-exceeded")
    assert members["violated-policies"] == ["per-user"]
    assert 0 < int(denied.headers["retry-after"]) <= 7200
    assert denied.headers["x-ratelimit-remaining"] == "0"
    assert denied.headers["x-ratelimit-state"] == "throttled"
    assert denied.headers["ratelimit"] == f'"per-user";r=0;t={denied.headers["retry-after"]}'
    assert not any(user in value for response in responses for value in response.headers.values())
    assert user not in denied.text


@pytest.mark.parametrize("status", [401, 403, 404, 499, 503, 599])
def test_denial_has_the_requested_status(proxy: httpx.Client, user: str, status: int) -> None:
    assert authorize(proxy, "/key", f"?deny_status={status}", x_api_key=user).status_code == 200
    denied = authorize(proxy, "/key", f"?deny_status={status}", x_api_key=user)
    members = problem(denied, status, "rate limit exceeded")
    assert members["type"].endswith("#quota-exceeded")
    assert int(denied.headers["retry-after"]) > 0


@pytest.mark.parametrize(
    "query", ["deny_status=200", "deny_status=x", "deny_status=", "deny_status=403&deny_status=404", "nonsense=1"]
)
def test_invalid_query_is_refused(proxy: httpx.Client, query: str) -> None:
    problem(proxy.get(f"/api/v1/authorize?{query}", headers={"x-original-uri": "/pay/1"}), 400, query.partition("=")[0])


@pytest.mark.parametrize("method", ["GET", "HEAD", "POST", "PUT", "PATCH", "DELETE", "OPTIONS"])
def test_all_methods_work(proxy: httpx.Client, user: str, method: str) -> None:
    response = authorize(proxy, "/pay/1", verb=method, x_user_id=user)
    assert response.status_code == 200
    assert response.headers["x-ratelimit-limit"] == "2"


def test_header_names_of_proxies(proxy: httpx.Client, user: str) -> None:
    for number, (path, method) in enumerate(
        [("x-original-uri", "x-original-method"), ("x-forwarded-uri", "x-forwarded-method")]
    ):
        address = f"203.0.113.{number + 1}"
        headers = {path: "/posts", "x-forwarded-for": address}
        statuses = [
            proxy.get("/api/v1/authorize", headers={**headers, method: verb}).status_code
            for verb in ("GET", "POST", "GET", "POST", "post")
        ]
        assert statuses == [200, 200, 200, 429, 429]


@pytest.mark.parametrize("spelling", ["/pay/../pay/1", "//pay//1", "/%70ay/1", "/pay/./1", "/x/../pay/1?q=/other"])
def test_spelling_does_not_evade_a_rule(proxy: httpx.Client, user: str, spelling: str) -> None:
    statuses = [authorize(proxy, path, x_user_id=user).status_code for path in ("/pay/1", "/pay/2", spelling)]
    assert statuses == [200, 200, 429]


def test_address_is_the_last_untrusted_one(proxy: httpx.Client) -> None:
    def statuses(**headers: str) -> list[int]:
        return [authorize(proxy, "/ip", **headers).status_code for _ in range(2)]

    assert statuses(x_forwarded_for="192.0.2.1") == [200, 429]
    assert statuses(x_forwarded_for="10.9.9.9, 192.0.2.1") == [429, 429]  # earlier entries can be forged
    assert statuses(x_forwarded_for="192.0.2.1, 127.0.0.9") == [429, 429]
    assert statuses(forwarded="for=192.0.2.2;proto=https") == [200, 429]
    assert statuses(x_forwarded_for="::ffff:192.0.2.1") == [429, 429]
    assert statuses(x_forwarded_for="2001:db8::1") == [200, 429]
    assert statuses(x_forwarded_for="2001:db8::2") == [429, 429]  # the same /64
    assert statuses(x_forwarded_for="2001:db8:1::1") == [200, 429]


def test_client_is_the_header_then_the_key_then_the_address(proxy: httpx.Client, user: str) -> None:
    key, address = f"key {user}", "192.0.2.77"
    rows = [{"x_client_id": user}, {"x_api_key": key}, {"x_forwarded_for": address}]
    assert [authorize(proxy, "/client", **row).status_code for row in rows] == [200, 200, 200]
    assert [authorize(proxy, "/client", **row).status_code for row in rows] == [429, 429, 429]
    combined = {"x_client_id": f"new {user}", "x_api_key": key, "x_forwarded_for": address}
    assert authorize(proxy, "/client", **combined).status_code == 200


def test_each_limit_has_one_header_item(proxy: httpx.Client, user: str) -> None:
    response = authorize(proxy, "/chain", x_user_id=user)
    items = response.headers["ratelimit-policy"].split(", ")
    assert sorted(items) == ['"chain \\"b\\"";q=3;w=3600', '"chain-a";q=10;w=60']
    assert [item.split(";")[1] for item in response.headers["ratelimit"].split(", ")] == [
        "r=9" if "chain-a" in item else "r=2" for item in items
    ]
    assert (response.headers["x-ratelimit-limit"], response.headers["x-ratelimit-remaining"]) == ("3", "2")


def test_no_rule_adds_no_headers(proxy: httpx.Client, user: str) -> None:
    response = authorize(proxy, "/nowhere", x_user_id=user)
    assert response.status_code == 200
    assert [name for name in response.headers if "ratelimit" in name] == []


def test_idempotency_keys_of_end_users_are_ignored(proxy: httpx.Client, user: str) -> None:
    responses = [authorize(proxy, "/pay/1", x_user_id=user, idempotency_key="same") for _ in range(3)]
    assert [response.status_code for response in responses] == [200, 200, 429]


def test_proxy_needs_its_own_key(configured: Service, user: str) -> None:
    with configured.client() as client:
        problem(client.get("/api/v1/authorize"), 401, "X-Crestgate-Key")
        assert client.get("/api/v1/authorize").headers["www-authenticate"].startswith("Bearer")
        for headers in ({"x-api-key": configured.key}, configured.admin):
            problem(client.get("/api/v1/authorize", headers=headers), 401, "X-Crestgate-Key")
        problem(client.get("/api/v1/authorize", headers={"x-crestgate-key": "cg_0123456789ab_nonsense"}), 401)
        own = {"x-crestgate-key": configured.key, "authorization": "Bearer somebody-else", "x-api-key": user}
        assert client.get("/api/v1/authorize", headers=own).status_code == 200


def test_checks_need_a_key_if_configured(configured: Service) -> None:
    with configured.client() as client:
        for path in ("check", "check/batch", "quota"):
            problem(client.post(f"/api/v1/{path}", json={"key": "a"}), 401, "key")
        problem(client.post("/ratelimiter/verify-api-limit", json={"clientId": "a"}), 401)
        assert client.post("/api/v1/check", json={"key": "a"}, headers=configured.admin).status_code == 200
        problem(client.get("/metrics"), 401)
        assert client.get("/metrics", headers=configured.admin).status_code == 200
        for path in ("/healthz", "/readyz", "/docs", "/openapi.json"):
            assert client.get(path).status_code == 200


def test_file_rules_are_read_only(configured: Service) -> None:
    with configured.client(configured.key) as admin:
        rule = admin.get("/api/v1/rules/per-user").json()
        assert rule["limit"] == 2
        problem(admin.delete("/api/v1/rules/per-user"), 409, "file")
        problem(admin.put("/api/v1/rules/per-user", json={**rule, "limit": 3}), 409, "file")
        problem(admin.post("/api/v1/rules", json={**rule, "limit": 3}), 409)


def test_deprecated_paths_have_headers(configured: Service) -> None:
    with configured.client(configured.key) as admin:
        responses = [
            admin.get("/ratelimiter/configured-limits"),
            admin.post("/ratelimiter/verify-api-limit", json={"clientId": "a"}),
            admin.post("/ratelimiter/verify-api-limit", content=b"nonsense"),
            admin.get("/ratelimiter/nothing"),
        ]
        assert [response.status_code for response in responses] == [200, 200, 400, 404]
        for response in responses:
            since = datetime.fromtimestamp(int(response.headers["deprecation"].removeprefix("@")), UTC)
            assert since == datetime(2026, 1, 1, tzinfo=UTC)
            assert parsedate_to_datetime(response.headers["sunset"]) == datetime(2027, 1, 1, tzinfo=UTC)
            assert '<https://example.org/moving>; rel="deprecation"' in response.headers["link"]
        quota = admin.post("/api/v1/quota", json={"key": "a"})
        assert quota.headers["sunset"] == "Thu, 24 Dec 2026 00:00:00 GMT"
        assert "link" not in quota.headers
        assert "deprecation" not in admin.post("/api/v1/check", json={"key": "a"}).headers
        assert "sunset" not in admin.get("/api/v1/rules").headers


def test_metrics_prefix(configured: Service) -> None:
    with configured.client(configured.key) as admin:
        admin.post("/api/v1/check", json={"key": "a"})
        text = admin.get("/metrics").text
        assert "throttlex_allowed_total{" in text
        assert "crestgate_" not in text


def test_disabled_header_families(tmp_path_factory: pytest.TempPathFactory) -> None:
    with Service(tmp_path_factory.mktemp("plain"), config=PLAIN) as plain, plain.client() as client:
        responses = [client.get("/api/v1/authorize", headers={"x-original-uri": "/"}) for _ in range(2)]
        assert [response.status_code for response in responses] == [200, 429]
        for response in responses:
            limit_headers = [name for name in response.headers if "ratelimit" in name or name == "retry-after"]
            assert limit_headers == []
        checks = [client.post("/api/v1/check", json={"context": {"ip": "192.0.2.7"}}) for _ in range(2)]
        assert [check.json()["state"] for check in checks] == ["throttled"] * 2
        assert not any("x-ratelimit-state" in check.headers for check in checks)
        # No proxy is trusted there, so identity headers of clients are ignored.
        spoofed = {"x-original-uri": "/", "x-forwarded-for": "192.0.2.9", "x-user-id": "somebody"}
        assert client.get("/api/v1/authorize", headers=spoofed).status_code == 429


def test_epoch_resets_and_hop_count(tmp_path_factory: pytest.TempPathFactory) -> None:
    with Service(tmp_path_factory.mktemp("epoch"), config=EPOCH) as service, service.client() as client:
        headers = {"x-original-uri": "/", "x-forwarded-for": "10.0.0.1, 192.0.2.1"}
        responses = [client.get("/api/v1/authorize", headers=headers) for _ in range(2)]
        assert [response.status_code for response in responses] == [200, 429]
        assert abs(int(responses[0].headers["x-ratelimit-reset"]) - time.time()) <= 3700
        assert "ratelimit" not in responses[0].headers
        assert "retry-after" in responses[1].headers
        other_headers = {**headers, "x-forwarded-for": "192.0.2.1, 10.0.0.1"}  # one hop: the last one is the client
        assert client.get("/api/v1/authorize", headers=other_headers).status_code == 200


@pytest.mark.parametrize(
    ("trusted", "forged"),
    [("x-forwarded-uri", "x-original-uri"), ("x-original-uri", "x-forwarded-uri")],
)
def test_client_cannot_choose_the_checked_path(proxy: httpx.Client, user: str, trusted: str, forged: str) -> None:
    """A proxy sets one header and forwards the other from its client."""
    headers = {trusted: "/pay/1", "x-user-id": user}
    assert [proxy.get("/api/v1/authorize", headers=headers).status_code for _ in range(3)] == [200, 200, 429]
    problem(proxy.get("/api/v1/authorize", headers={**headers, forged: "/free"}), 400, "conflicting values")
    assert proxy.get("/api/v1/authorize", headers={**headers, forged: "/pay/1"}).status_code == 429
    methods = {"x-original-method": "GET", "x-forwarded-method": "PUT"}
    problem(proxy.get("/api/v1/authorize", headers={**headers, **methods}), 400, "conflicting values")


@pytest.mark.parametrize("name", ["x-api-key", "x-user-id", "x-client-id", "x-original-uri", "x-forwarded-method"])
def test_conflicting_headers_are_refused(proxy: httpx.Client, name: str) -> None:
    """The application may use the first value and the limiter the last."""
    both = [(name, f"/{uuid4()}"), (name, f"/{uuid4()}")]
    problem(proxy.get("/api/v1/authorize", headers=both), 400, "appears more than once")
    assert proxy.get("/api/v1/authorize", headers=[both[0], both[0]]).status_code == 200


def test_query_with_too_many_fields_is_refused(proxy: httpx.Client) -> None:
    problem(authorize(proxy, "/key", "?" + "&".join(f"a{n}=1" for n in range(500))), 400, "too many query parameters")
