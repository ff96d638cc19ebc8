"""Access over HTTP: API keys and their scopes, addresses, and the limits of the admin API itself."""

from __future__ import annotations

import time
from collections.abc import Callable

import httpx
import pytest

from integration.child_process import wait_until
from integration.service.api_helpers import make_key, problem, revoke_key
from integration.service.service_process import Service

READS = [
    "/api/v1/rules",
    "/api/v1/rules/nobody",
    "/api/v1/plans",
    "/api/v1/plans/nobody",
    "/api/v1/users/nobody/limits",
    "/api/v1/audit",
    "/api/v1/stats",
    "/api/v1/migration",
    "/admin/status",
    "/admin/metrics",
    "/admin/metrics/nobody",
    "/admin/policies",
    "/admin/policies/nobody",
    "/ratelimiter/client-limits?clientId=nobody",
    "/ratelimiter/configured-limits",
    "/api/v1/rules/that/is/not/there",
]
WRITES = [
    ("POST", "/api/v1/rules"),
    ("PUT", "/api/v1/rules/nobody"),
    ("DELETE", "/api/v1/rules/nobody"),
    ("POST", "/api/v1/plans"),
    ("PUT", "/api/v1/plans/nobody"),
    ("DELETE", "/api/v1/plans/nobody"),
    ("PUT", "/api/v1/users/nobody/tier"),
    ("POST", "/api/v1/users/nobody/override"),
    ("POST", "/api/v1/reset"),
    ("POST", "/admin/reset/nobody"),
    ("POST", "/admin/policies"),
    ("PUT", "/admin/policies/nobody"),
    ("DELETE", "/admin/policies/nobody"),
    ("POST", "/ratelimiter/configure-client"),
    ("DELETE", "/ratelimiter/delete-limits"),
    ("DELETE", "/ratelimiter/delete-client?clientId=nobody"),
    ("PATCH", "/api/v1/rules/that/is/not/there"),
]
OPEN = ["/healthz", "/readyz", "/metrics", "/docs", "/openapi.json"]
INVALID_TOKENS = ["nonsense", "cg_", "cg_0123456789ab_" + "x" * 43, "x" * 10_000, "cg_\xff_\xfe"]


@pytest.fixture(scope="module")
def keys(service: Service) -> dict[str, str]:
    """A key of each scope, known to the service."""
    made = {scope: make_key(service, f"for {scope}", "--scope", scope)[1] for scope in ("check", "read", "write")}
    for token in made.values():
        wait_until("it is known", lambda token=token: is_known_key(service, token))
    return made


def is_known_key(service: Service, token: str) -> bool:
    """Whether a token is a known key: open endpoints check it too."""
    response = httpx.post(f"{service.url}/api/v1/quota", json={"key": "a"}, headers={"x-api-key": token})
    return response.status_code != 401


@pytest.mark.parametrize("path", READS)
def test_reads_need_the_read_scope(anyone: httpx.Client, keys: dict[str, str], path: str) -> None:
    response = anyone.get(path)
    problem(response, 401, "key")
    assert response.headers["www-authenticate"].startswith("Bearer")
    problem(anyone.get(path, headers={"x-api-key": keys["check"]}), 403, "scope", "read")
    for scope in ("read", "write"):
        for headers in ({"x-api-key": keys[scope]}, {"authorization": f"bearer {keys[scope]}"}):
            assert anyone.get(path, headers=headers).status_code in (200, 404)
    assert anyone.head(path).status_code == 401


@pytest.mark.parametrize(("method", "path"), WRITES)
def test_writes_need_the_write_scope(anyone: httpx.Client, keys: dict[str, str], method: str, path: str) -> None:
    problem(anyone.request(method, path, json={}), 401, "key")
    for scope in ("check", "read"):
        problem(anyone.request(method, path, json={}, headers={"x-api-key": keys[scope]}), 403, "scope", "write")
    response = anyone.request(method, path, json={}, headers={"x-api-key": keys["write"]})
    assert response.status_code in (200, 400, 404, 405)


@pytest.mark.parametrize("path", OPEN)
def test_open_endpoints(anyone: httpx.Client, path: str) -> None:
    assert anyone.get(path).status_code == 200


@pytest.mark.parametrize("token", INVALID_TOKENS)
def test_unknown_key_is_refused(anyone: httpx.Client, token: str) -> None:
    for headers in ({"x-api-key": token}, {"authorization": f"Bearer {token}"}):
        encoded = {name.encode(): value.encode("latin-1") for name, value in headers.items()}
        response = anyone.get("/api/v1/rules", headers=encoded)
        problem(response, 401, "unknown API key")
        assert "invalid_token" in response.headers["www-authenticate"]
        # A key is checked even where none is required.
        problem(anyone.post("/api/v1/check", json={"key": "a"}, headers=encoded), 401)


@pytest.mark.parametrize("header", ["Basic dXNlcjpwYXNz", "Bearer", "", "Token x"])
def test_other_credentials_count_as_no_key(anyone: httpx.Client, header: str) -> None:
    problem(anyone.get("/api/v1/rules", headers={"authorization": header}), 401, "API key required")
    assert anyone.post("/api/v1/check", json={"key": "a"}, headers={"authorization": header}).status_code == 200


def test_modified_key_is_refused(anyone: httpx.Client, keys: dict[str, str]) -> None:
    token = keys["write"]
    for changed in (token[:-1] + ("a" if token[-1] != "a" else "b"), token + "a", token[:-1], token.upper()):
        problem(anyone.get("/api/v1/rules", headers={"x-api-key": changed}), 401)


def test_revoked_key_is_refused(service: Service, anyone: httpx.Client) -> None:
    key_id, token = make_key(service, "to be revoked", "--scope", "read")
    headers = {"x-api-key": token}
    wait_until("it is accepted", lambda: anyone.get("/api/v1/rules", headers=headers).status_code == 200)
    revoke_key(service, key_id)
    wait_until("it is refused", lambda: anyone.get("/api/v1/rules", headers=headers).status_code == 401)
    problem(anyone.get("/api/v1/rules", headers=headers), 401, "revoked")


def test_expired_key_is_refused(service: Service, anyone: httpx.Client) -> None:
    _, token = make_key(service, "for seconds", "--scope", "read", "--expires", "5s")
    headers = {"x-api-key": token}
    expiry = time.monotonic() + 5  # a busy machine may miss the time before expiry
    wait_until(
        "it is accepted", lambda: anyone.get("/api/v1/rules", headers=headers).is_success or time.monotonic() > expiry
    )
    wait_until("it has expired", lambda: anyone.get("/api/v1/rules", headers=headers).status_code == 401)
    problem(anyone.get("/api/v1/rules", headers=headers), 401, "expired")


def test_keys_are_in_the_audit_log_without_their_tokens(
    service: Service, admin: httpx.Client, keys: dict[str, str]
) -> None:
    response = admin.get("/api/v1/audit", params={"limit": 1000})
    assert [entry for entry in response.json()["entries"] if entry["subject"].startswith("key:")]
    for token in (*keys.values(), service.key):
        assert token not in response.text
        assert token.split("_", 2)[2] not in response.text
        assert token not in service.logged


def test_first_key_from_the_environment(serve: Callable[..., Service]) -> None:
    service = serve(environment={"CRESTGATE_ADMIN_KEY": "a-first-key-of-my-own"})
    assert service.key == "a-first-key-of-my-own"
    assert "a-first-key-of-my-own" not in service.output
    with service.client(service.key) as client:
        body = {"rule_id": "r", "name": "r", "dimension": "user", "limit": 1, "window_seconds": 1}
        assert client.post("/api/v1/rules", json=body).status_code == 201
    assert "a-first-key-of-my-own" not in service.logged


def test_admin_api_is_rate_limited(serve: Callable[..., Service]) -> None:
    service = serve(
        environment={
            "CRESTGATE_SERVER__LIMITS__READS": "5/minute",
            "CRESTGATE_SERVER__LIMITS__WRITES": "3/minute",
            "CRESTGATE_SERVER__LIMITS__FAILED_LOGINS": "4/minute",
            "CRESTGATE_SERVER__LIMITS__CHECKS": "10/minute",
        }
    )
    with service.client(service.key) as admin, service.client() as anyone:
        reads = [admin.get("/api/v1/rules") for _ in range(6)]
        assert [response.status_code for response in reads] == [200] * 5 + [429]
        problem(reads[-1], 429, "reads")
        assert 0 < int(reads[-1].headers["retry-after"]) <= 60
        writes = [admin.delete("/api/v1/rules/nobody") for _ in range(4)]
        assert [response.status_code for response in writes] == [404] * 3 + [429]
        problem(writes[-1], 429, "writes")
        assert 0 < int(writes[-1].headers["retry-after"]) <= 60

        failed = [anyone.get("/api/v1/rules", headers={"x-api-key": f"wrong {n}"}) for n in range(5)]
        assert [response.status_code for response in failed] == [401] * 4 + [429]
        problem(failed[-1], 429)
        assert int(failed[-1].headers["retry-after"]) > 0
        problem(admin.get("/api/v1/rules"), 429, "reads")  # not locked out by failed logins: its reads are used up

        checks = [anyone.post("/api/v1/check", json={"key": "a"}) for _ in range(11)]
        assert [response.status_code for response in checks] == [200] * 10 + [429]
        problem(checks[-1], 429, "checks")
        assert int(checks[-1].headers["retry-after"]) > 0
        problem(anyone.post("/api/v1/check/batch", json={"checks": [{"key": "a"}] * 20}), 429, "smaller batches")
        assert anyone.get("/healthz").status_code == 200


def test_admin_calls_from_allowed_networks_only(serve: Callable[..., Service]) -> None:
    service = serve(config="server: {admin_from: [10.1.0.0/16], trusted_proxies: [127.0.0.1]}\n")
    with service.client(service.key) as admin:
        problem(admin.get("/api/v1/rules"), 403, "address")
        problem(admin.post("/api/v1/reset", json={"key": "a"}), 403, "address")
        inside, outside = {"x-forwarded-for": "10.1.2.3"}, {"x-forwarded-for": "10.2.2.3"}
        assert admin.get("/api/v1/rules", headers=inside).status_code == 200
        problem(admin.get("/api/v1/rules", headers=outside), 403, "address")
        assert admin.post("/api/v1/check", json={"key": "a"}).status_code == 200
        assert admin.get("/healthz").status_code == 200
