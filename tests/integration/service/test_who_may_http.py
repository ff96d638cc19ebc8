"""Who may call over HTTP: keys and their scopes, addresses, and the limits of the admin API itself."""

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
WRONG = ["nonsense", "cg_", "cg_0123456789ab_" + "x" * 43, "x" * 10_000, "cg_\xff_\xfe"]


@pytest.fixture(scope="module")
def keys(service: Service) -> dict[str, str]:
    """A key of each scope, known to the service."""
    made = {scope: make_key(service, f"for {scope}", "--scope", scope)[1] for scope in ("check", "read", "write")}
    for token in made.values():
        wait_until("it is known", lambda token=token: reaches(service, token))
    return made


def reaches(service: Service, token: str) -> bool:
    """Whether a token is a key there: it is told so by an open call, which looks at it all the same."""
    response = httpx.post(f"{service.url}/api/v1/quota", json={"key": "a"}, headers={"x-api-key": token})
    return response.status_code != 401


@pytest.mark.parametrize("path", READS)
def test_reads_need_a_key_that_may_read(anyone: httpx.Client, keys: dict[str, str], path: str) -> None:
    told = anyone.get(path)
    problem(told, 401, "key")
    assert told.headers["www-authenticate"].startswith("Bearer")
    problem(anyone.get(path, headers={"x-api-key": keys["check"]}), 403, "scope", "read")
    for scope in ("read", "write"):
        for headers in ({"x-api-key": keys[scope]}, {"authorization": f"bearer {keys[scope]}"}):
            assert anyone.get(path, headers=headers).status_code in (200, 404)
    assert anyone.head(path).status_code == 401


@pytest.mark.parametrize(("method", "path"), WRITES)
def test_writes_need_a_key_that_may_write(anyone: httpx.Client, keys: dict[str, str], method: str, path: str) -> None:
    problem(anyone.request(method, path, json={}), 401, "key")
    for scope in ("check", "read"):
        problem(anyone.request(method, path, json={}, headers={"x-api-key": keys[scope]}), 403, "scope", "write")
    told = anyone.request(method, path, json={}, headers={"x-api-key": keys["write"]})
    assert told.status_code in (200, 400, 404, 405)


@pytest.mark.parametrize("path", OPEN)
def test_what_is_open(anyone: httpx.Client, path: str) -> None:
    assert anyone.get(path).status_code == 200


@pytest.mark.parametrize("token", WRONG)
def test_a_wrong_key_opens_nothing(anyone: httpx.Client, token: str) -> None:
    for headers in ({"x-api-key": token}, {"authorization": f"Bearer {token}"}):
        sent = {name.encode(): value.encode("latin-1") for name, value in headers.items()}
        told = anyone.get("/api/v1/rules", headers=sent)
        problem(told, 401, "unknown API key")
        assert "invalid_token" in told.headers["www-authenticate"]
        # Who sends a key means to be known, also where none is needed.
        problem(anyone.post("/api/v1/check", json={"key": "a"}, headers=sent), 401)


@pytest.mark.parametrize("header", ["Basic dXNlcjpwYXNz", "Bearer", "", "Token x"])
def test_what_is_no_key_is_none(anyone: httpx.Client, header: str) -> None:
    problem(anyone.get("/api/v1/rules", headers={"authorization": header}), 401, "API key required")
    assert anyone.post("/api/v1/check", json={"key": "a"}, headers={"authorization": header}).status_code == 200


def test_a_key_that_was_changed_by_one_letter(anyone: httpx.Client, keys: dict[str, str]) -> None:
    token = keys["write"]
    for changed in (token[:-1] + ("a" if token[-1] != "a" else "b"), token + "a", token[:-1], token.upper()):
        problem(anyone.get("/api/v1/rules", headers={"x-api-key": changed}), 401)


def test_a_key_that_is_revoked(service: Service, anyone: httpx.Client) -> None:
    key_id, token = make_key(service, "to be revoked", "--scope", "read")
    headers = {"x-api-key": token}
    wait_until("it opens", lambda: anyone.get("/api/v1/rules", headers=headers).status_code == 200)
    revoke_key(service, key_id)
    wait_until("it does not", lambda: anyone.get("/api/v1/rules", headers=headers).status_code == 401)
    problem(anyone.get("/api/v1/rules", headers=headers), 401, "revoked")


def test_a_key_that_expires(service: Service, anyone: httpx.Client) -> None:
    _, token = make_key(service, "for seconds", "--scope", "read", "--expires", "5s")
    headers = {"x-api-key": token}
    late = time.monotonic() + 5  # on a machine so busy that it is not seen before
    wait_until("it opens", lambda: anyone.get("/api/v1/rules", headers=headers).is_success or time.monotonic() > late)
    wait_until("it has expired", lambda: anyone.get("/api/v1/rules", headers=headers).status_code == 401)
    problem(anyone.get("/api/v1/rules", headers=headers), 401, "expired")


def test_keys_are_in_the_audit_log_without_their_tokens(
    service: Service, admin: httpx.Client, keys: dict[str, str]
) -> None:
    told = admin.get("/api/v1/audit", params={"limit": 1000})
    assert [entry for entry in told.json()["entries"] if entry["subject"].startswith("key:")]
    for token in (*keys.values(), service.key):
        assert token not in told.text
        assert token.split("_", 2)[2] not in told.text
        assert token not in service.logged


def test_a_first_key_from_the_environment(serve: Callable[..., Service]) -> None:
    service = serve(environment={"CRESTGATE_ADMIN_KEY": "a-first-key-of-my-own"})
    assert service.key == "a-first-key-of-my-own"
    assert "a-first-key-of-my-own" not in service.output
    with service.client(service.key) as client:
        body = {"rule_id": "r", "name": "r", "dimension": "user", "limit": 1, "window_seconds": 1}
        assert client.post("/api/v1/rules", json=body).status_code == 201
    assert "a-first-key-of-my-own" not in service.logged


def test_the_admin_api_is_limited_itself(serve: Callable[..., Service]) -> None:
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
        assert [told.status_code for told in reads] == [200] * 5 + [429]
        problem(reads[-1], 429, "reads")
        assert 0 < int(reads[-1].headers["retry-after"]) <= 60
        writes = [admin.delete("/api/v1/rules/nobody") for _ in range(4)]
        assert [told.status_code for told in writes] == [404] * 3 + [429]
        problem(writes[-1], 429, "writes")
        assert 0 < int(writes[-1].headers["retry-after"]) <= 60

        failed = [anyone.get("/api/v1/rules", headers={"x-api-key": f"wrong {n}"}) for n in range(5)]
        assert [told.status_code for told in failed] == [401] * 4 + [429]
        problem(failed[-1], 429)
        assert int(failed[-1].headers["retry-after"]) > 0
        problem(
            admin.get("/api/v1/rules"), 429, "reads"
        )  # a right key is not locked out by that: it has read too often

        checks = [anyone.post("/api/v1/check", json={"key": "a"}) for _ in range(11)]
        assert [told.status_code for told in checks] == [200] * 10 + [429]
        problem(checks[-1], 429, "checks")
        assert int(checks[-1].headers["retry-after"]) > 0
        problem(anyone.post("/api/v1/check/batch", json={"checks": [{"key": "a"}] * 20}), 429, "smaller batches")
        assert anyone.get("/healthz").status_code == 200


def test_admin_calls_from_named_networks_only(serve: Callable[..., Service]) -> None:
    service = serve(config="server: {admin_from: [10.1.0.0/16], trusted_proxies: [127.0.0.1]}\n")
    with service.client(service.key) as admin:
        problem(admin.get("/api/v1/rules"), 403, "address")
        problem(admin.post("/api/v1/reset", json={"key": "a"}), 403, "address")
        inside, outside = {"x-forwarded-for": "10.1.2.3"}, {"x-forwarded-for": "10.2.2.3"}
        assert admin.get("/api/v1/rules", headers=inside).status_code == 200
        problem(admin.get("/api/v1/rules", headers=outside), 403, "address")
        assert admin.post("/api/v1/check", json={"key": "a"}).status_code == 200
        assert admin.get("/healthz").status_code == 200
