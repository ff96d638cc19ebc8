"""Forward authentication over HTTP, and what else the settings change about answers: headers, deprecations, names."""

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
    """A proxy that the service trusts, with a key of its own."""
    with httpx.Client(base_url=configured.url, headers={"x-crestgate-key": configured.key}) as client:
        yield client


@pytest.fixture
def somebody() -> str:
    return uuid4().hex


def ask(proxy: httpx.Client, path: str, query: str = "", verb: str = "GET", **headers: str) -> httpx.Response:
    named = {name.replace("_", "-"): value for name, value in headers.items()}
    return proxy.request(verb, f"/api/v1/authorize{query}", headers={"x-original-uri": path, **named})


def test_a_user_is_allowed_and_then_not(proxy: httpx.Client, somebody: str) -> None:
    told = [ask(proxy, f"/pay/{number}?a=b", x_user_id=somebody) for number in range(3)]
    assert [response.status_code for response in told] == [200, 200, 429]
    first, _, denied = told
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
    assert not any(somebody in value for response in told for value in response.headers.values())
    assert somebody not in denied.text


@pytest.mark.parametrize("status", [401, 403, 404, 499, 503, 599])
def test_a_denial_has_the_status_that_is_asked_for(proxy: httpx.Client, somebody: str, status: int) -> None:
    assert ask(proxy, "/key", f"?deny_status={status}", x_api_key=somebody).status_code == 200
    denied = ask(proxy, "/key", f"?deny_status={status}", x_api_key=somebody)
    members = problem(denied, status, "rate limit exceeded")
    assert members["type"].endswith("#quota-exceeded")
    assert int(denied.headers["retry-after"]) > 0


@pytest.mark.parametrize(
    "query", ["deny_status=200", "deny_status=x", "deny_status=", "deny_status=403&deny_status=404", "nonsense=1"]
)
def test_a_query_that_cannot_be_used(proxy: httpx.Client, query: str) -> None:
    problem(proxy.get(f"/api/v1/authorize?{query}", headers={"x-original-uri": "/pay/1"}), 400, query.partition("=")[0])


@pytest.mark.parametrize("method", ["GET", "HEAD", "POST", "PUT", "PATCH", "DELETE", "OPTIONS"])
def test_any_method_may_be_used(proxy: httpx.Client, somebody: str, method: str) -> None:
    response = ask(proxy, "/pay/1", verb=method, x_user_id=somebody)
    assert response.status_code == 200
    assert response.headers["x-ratelimit-limit"] == "2"


def test_the_names_that_proxies_use(proxy: httpx.Client, somebody: str) -> None:
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
def test_spelling_does_not_evade_a_rule(proxy: httpx.Client, somebody: str, spelling: str) -> None:
    statuses = [ask(proxy, path, x_user_id=somebody).status_code for path in ("/pay/1", "/pay/2", spelling)]
    assert statuses == [200, 200, 429]


def test_the_address_is_the_last_that_no_proxy_of_ours_has(proxy: httpx.Client) -> None:
    def statuses(**headers: str) -> list[int]:
        return [ask(proxy, "/ip", **headers).status_code for _ in range(2)]

    assert statuses(x_forwarded_for="192.0.2.1") == [200, 429]
    assert statuses(x_forwarded_for="10.9.9.9, 192.0.2.1") == [429, 429]  # what stands before it anybody may write
    assert statuses(x_forwarded_for="192.0.2.1, 127.0.0.9") == [429, 429]
    assert statuses(forwarded="for=192.0.2.2;proto=https") == [200, 429]
    assert statuses(x_forwarded_for="::ffff:192.0.2.1") == [429, 429]
    assert statuses(x_forwarded_for="2001:db8::1") == [200, 429]
    assert statuses(x_forwarded_for="2001:db8::2") == [429, 429]  # the same /64
    assert statuses(x_forwarded_for="2001:db8:1::1") == [200, 429]


def test_the_client_is_the_key_else_the_address_unless_a_proxy_says(proxy: httpx.Client, somebody: str) -> None:
    key, address = f"key {somebody}", "192.0.2.77"
    rows = [{"x_client_id": somebody}, {"x_api_key": key}, {"x_forwarded_for": address}]
    assert [ask(proxy, "/client", **row).status_code for row in rows] == [200, 200, 200]
    assert [ask(proxy, "/client", **row).status_code for row in rows] == [429, 429, 429]
    together = {"x_client_id": f"new {somebody}", "x_api_key": key, "x_forwarded_for": address}
    assert ask(proxy, "/client", **together).status_code == 200


def test_several_limits_have_one_item_each(proxy: httpx.Client, somebody: str) -> None:
    told = ask(proxy, "/chain", x_user_id=somebody)
    items = told.headers["ratelimit-policy"].split(", ")
    assert sorted(items) == ['"chain \\"b\\"";q=3;w=3600', '"chain-a";q=10;w=60']
    assert [item.split(";")[1] for item in told.headers["ratelimit"].split(", ")] == [
        "r=9" if "chain-a" in item else "r=2" for item in items
    ]
    assert (told.headers["x-ratelimit-limit"], told.headers["x-ratelimit-remaining"]) == ("3", "2")


def test_without_a_rule_nothing_is_said(proxy: httpx.Client, somebody: str) -> None:
    told = ask(proxy, "/nowhere", x_user_id=somebody)
    assert told.status_code == 200
    assert [name for name in told.headers if "ratelimit" in name] == []


def test_keys_of_end_users_are_not_honoured_for_repeats(proxy: httpx.Client, somebody: str) -> None:
    told = [ask(proxy, "/pay/1", x_user_id=somebody, idempotency_key="same") for _ in range(3)]
    assert [response.status_code for response in told] == [200, 200, 429]


def test_a_proxy_has_a_key_of_its_own(configured: Service, somebody: str) -> None:
    with configured.client() as client:
        problem(client.get("/api/v1/authorize"), 401, "X-Crestgate-Key")
        assert client.get("/api/v1/authorize").headers["www-authenticate"].startswith("Bearer")
        for headers in ({"x-api-key": configured.key}, configured.admin):
            problem(client.get("/api/v1/authorize", headers=headers), 401, "X-Crestgate-Key")
        problem(client.get("/api/v1/authorize", headers={"x-crestgate-key": "cg_0123456789ab_nonsense"}), 401)
        own = {"x-crestgate-key": configured.key, "authorization": "Bearer somebody-else", "x-api-key": somebody}
        assert client.get("/api/v1/authorize", headers=own).status_code == 200


def test_checks_need_a_key_where_that_is_said(configured: Service) -> None:
    with configured.client() as client:
        for path in ("check", "check/batch", "quota"):
            problem(client.post(f"/api/v1/{path}", json={"key": "a"}), 401, "key")
        problem(client.post("/ratelimiter/verify-api-limit", json={"clientId": "a"}), 401)
        assert client.post("/api/v1/check", json={"key": "a"}, headers=configured.admin).status_code == 200
        problem(client.get("/metrics"), 401)
        assert client.get("/metrics", headers=configured.admin).status_code == 200
        for path in ("/healthz", "/readyz", "/docs", "/openapi.json"):
            assert client.get(path).status_code == 200


def test_rules_of_a_file_are_shown_and_not_changed(configured: Service) -> None:
    with configured.client(configured.key) as admin:
        rule = admin.get("/api/v1/rules/per-user").json()
        assert rule["limit"] == 2
        problem(admin.delete("/api/v1/rules/per-user"), 409, "file")
        problem(admin.put("/api/v1/rules/per-user", json={**rule, "limit": 3}), 409, "file")
        problem(admin.post("/api/v1/rules", json={**rule, "limit": 3}), 409)


def test_deprecated_paths_say_so(configured: Service) -> None:
    with configured.client(configured.key) as admin:
        told = [
            admin.get("/ratelimiter/configured-limits"),
            admin.post("/ratelimiter/verify-api-limit", json={"clientId": "a"}),
            admin.post("/ratelimiter/verify-api-limit", content=b"nonsense"),
            admin.get("/ratelimiter/nothing"),
        ]
        assert [response.status_code for response in told] == [200, 200, 400, 404]
        for response in told:
            since = datetime.fromtimestamp(int(response.headers["deprecation"].removeprefix("@")), UTC)
            assert since == datetime(2026, 1, 1, tzinfo=UTC)
            assert parsedate_to_datetime(response.headers["sunset"]) == datetime(2027, 1, 1, tzinfo=UTC)
            assert '<https://example.org/moving>; rel="deprecation"' in response.headers["link"]
        quota = admin.post("/api/v1/quota", json={"key": "a"})
        assert quota.headers["sunset"] == "Thu, 24 Dec 2026 00:00:00 GMT"
        assert "link" not in quota.headers
        assert "deprecation" not in admin.post("/api/v1/check", json={"key": "a"}).headers
        assert "sunset" not in admin.get("/api/v1/rules").headers


def test_metrics_by_another_prefix(configured: Service) -> None:
    with configured.client(configured.key) as admin:
        admin.post("/api/v1/check", json={"key": "a"})
        text = admin.get("/metrics").text
        assert "throttlex_allowed_total{" in text
        assert "crestgate_" not in text


def test_header_families_that_are_switched_off(tmp_path_factory: pytest.TempPathFactory) -> None:
    with Service(tmp_path_factory.mktemp("plain"), config=PLAIN) as plain, plain.client() as client:
        told = [client.get("/api/v1/authorize", headers={"x-original-uri": "/"}) for _ in range(2)]
        assert [response.status_code for response in told] == [200, 429]
        for response in told:
            said = [name for name in response.headers if "ratelimit" in name or name == "retry-after"]
            assert said == []
        checks = [client.post("/api/v1/check", json={"context": {"ip": "192.0.2.7"}}) for _ in range(2)]
        assert [check.json()["state"] for check in checks] == ["throttled"] * 2
        assert not any("x-ratelimit-state" in check.headers for check in checks)
        # Nobody is trusted there, so what a client says about itself counts for nothing.
        spoofed = {"x-original-uri": "/", "x-forwarded-for": "192.0.2.9", "x-user-id": "somebody"}
        assert client.get("/api/v1/authorize", headers=spoofed).status_code == 429


def test_resets_by_the_epoch_and_a_count_of_hops(tmp_path_factory: pytest.TempPathFactory) -> None:
    with Service(tmp_path_factory.mktemp("epoch"), config=EPOCH) as service, service.client() as client:
        headers = {"x-original-uri": "/", "x-forwarded-for": "10.0.0.1, 192.0.2.1"}
        told = [client.get("/api/v1/authorize", headers=headers) for _ in range(2)]
        assert [response.status_code for response in told] == [200, 429]
        assert abs(int(told[0].headers["x-ratelimit-reset"]) - time.time()) <= 3700
        assert "ratelimit" not in told[0].headers
        assert "retry-after" in told[1].headers
        others = {**headers, "x-forwarded-for": "192.0.2.1, 10.0.0.1"}  # one hop: the last one is the client
        assert client.get("/api/v1/authorize", headers=others).status_code == 200


@pytest.mark.parametrize(
    ("ours", "theirs"),
    [("x-forwarded-uri", "x-original-uri"), ("x-original-uri", "x-forwarded-uri")],
)
def test_a_client_cannot_choose_what_is_checked(proxy: httpx.Client, somebody: str, ours: str, theirs: str) -> None:
    """A proxy sets one header, and passes the other on as its client sent it."""
    asked = {ours: "/pay/1", "x-user-id": somebody}
    assert [proxy.get("/api/v1/authorize", headers=asked).status_code for _ in range(3)] == [200, 200, 429]
    problem(proxy.get("/api/v1/authorize", headers={**asked, theirs: "/free"}), 400, "different")
    assert proxy.get("/api/v1/authorize", headers={**asked, theirs: "/pay/1"}).status_code == 429
    methods = {"x-original-method": "GET", "x-forwarded-method": "PUT"}
    problem(proxy.get("/api/v1/authorize", headers={**asked, **methods}), 400, "different")


@pytest.mark.parametrize("name", ["x-api-key", "x-user-id", "x-client-id", "x-original-uri", "x-forwarded-method"])
def test_a_header_that_says_two_things_is_refused(proxy: httpx.Client, name: str) -> None:
    """What stands behind the proxy may go by the first of them, and we by the last."""
    both = [(name, f"/{uuid4()}"), (name, f"/{uuid4()}")]
    problem(proxy.get("/api/v1/authorize", headers=both), 400, "several times")
    assert proxy.get("/api/v1/authorize", headers=[both[0], both[0]]).status_code == 200


def test_a_query_of_many_fields_is_refused(proxy: httpx.Client) -> None:
    problem(ask(proxy, "/key", "?" + "&".join(f"a{n}=1" for n in range(500))), 400, "too many fields")
