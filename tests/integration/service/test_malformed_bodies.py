"""Malformed bodies: each is refused with an error that names the field, and changes nothing."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any
from urllib.parse import quote

import httpx
import pytest

from integration.service.service_process import Service

INVALID_JSON = {
    "nothing": b"",
    "blanks": b" \n ",
    "half of it": b'{"key": "canary"',
    "a comma too many": b'{"key": "canary",}',
    "single quotes": b"{'key': 'canary'}",
    "two of them": b'{"key": "canary"} {"key": "canary"}',
    "a comment": b'{"key": "canary"} // yes',
    "a byte order mark": b'\xef\xbb\xbf{"key": "canary"}',
    "UTF-16": '{"key": "canary"}'.encode("utf-16"),
    "no UTF-8": b'{"key": "\xff\xfe"}',
    "UTF-8 of a surrogate": b'{"key": "\xed\xa0\x80"}',
    "overlong UTF-8": b'{"key": "\xc0\xaf"}',
    "half of a surrogate pair": b'{"key": "\\ud800"}',
    "the wrong half first": b'{"key": "\\udc00\\ud800"}',
    "a control character": b'{"key": "\x01"}',
    "a NUL": b'{"key": "canary"}\0',
    "an unknown escape": b'{"key": "\\x41"}',
    "NaN": b'{"key": "canary", "cost": NaN}',
    "Infinity": b'{"key": "canary", "cost": -Infinity}',
    "hex": b'{"key": "canary", "cost": 0x1}',
    "a leading zero": b'{"key": "canary", "cost": 01}',
    "a form": b"key=canary&cost=1",
    "XML": b'<?xml version="1.0"?><!DOCTYPE a [<!ENTITY b SYSTEM "file:///etc/passwd">]><a>&b;</a>',
    "a hundred thousand lists": b"[" * 100_000,
    "lists that end": b"[" * 10_000 + b"]" * 10_000,
    "objects": b'{"key":' * 50_000,
    "deep in a field": b'{"key": ' + b"[" * 50_000 + b"]" * 50_000 + b"}",
    "deep in an unknown field": b'{"key": "canary", "more": ' + b'{"a":' * 5_000 + b"1" + b"}" * 5_001,
    "null": b"null",
    "a number": b"5",
    "a text": b'"canary"',
    "a list": b'[{"key": "canary"}]',
}
ENDPOINTS_WITH_BODY = [
    ("POST", "/api/v1/check"),
    ("POST", "/api/v1/check/batch"),
    ("POST", "/api/v1/quota"),
    ("POST", "/api/v1/explain"),
    ("POST", "/api/v1/reset"),
    ("POST", "/ratelimiter/verify-api-limit"),
    ("POST", "/api/v1/rules"),
    ("PUT", "/api/v1/rules/canary"),
    ("POST", "/api/v1/plans"),
    ("PUT", "/api/v1/plans/canary"),
    ("PUT", "/api/v1/users/canary/tier"),
    ("POST", "/api/v1/users/canary/override"),
    ("POST", "/api/v1/keys"),
    ("POST", "/api/v1/keys/canary/rotate"),
    ("POST", "/admin/policies"),
    ("PUT", "/admin/policies/canary"),
    ("POST", "/ratelimiter/configure-client"),
    ("DELETE", "/ratelimiter/delete-limits"),
]

CHECK = {"key": "canary", "plans": ["canary"], "cost": 1, "timestamp": 1_700_000_000}
SUBJECT = {"dimension": "user", "identifier": "canary", "endpoint": "/a", "method": "GET", "cost": 1}
CONTEXT = {"ip": "10.0.0.1", "user": "canary", "api_key": "k", "client": "c", "path": "/a", "method": "GET"}
RULE = {
    "rule_id": "new",
    "name": "New",
    "dimension": "user",
    "identifier": "*",
    "endpoint_pattern": "/new/*",
    "method": "GET",
    "tier": "*",
    "algorithm": "gcra",
    "limit": 5,
    "window_seconds": 60,
    "burst": 5,
    "mode": "enforce",
    "on_store_error": "open",
    "expires_at": "2099-01-01T00:00:00Z",
}
CLIENT_LIMIT = {
    "limitType": "API",
    "limitName": "orders",
    "timeIntervalLimit": {"timeUnit": "MIN", "maxRequests": 5},
}
METHOD_LIMIT = {"limitType": "METHOD", "limitName": "GET"}
POLICY = {"key": "new", "type": "TOKEN_BUCKET", "capacity": 5, "refillRate": 1, "windowSeconds": 60}

TEXT: list[Any] = [5, 1.5, True, [], {}, ["a"], {"a": 1}]
WHOLE: list[Any] = ["x", "5 apples", True, [], {}, -1, 1.5, 10**30, "1e400", "-1e400", "9" * 400]
"""Values that are not whole numbers; the last three are sent as numbers, not as strings."""
NUMBER: list[Any] = ["x", True, [], {}, "1e400"]
UNKNOWN: list[Any] = ["nonsense", "\0", "é" * 2000]
NOT_NAMES: list[Any] = [5, 1.5, True, [], {}, {"a": 1}]
"""Values that are neither text nor a list of names."""

FIELDS: list[tuple[str, str, dict[str, Any], dict[str, list[Any]]]] = [
    ("POST", "/api/v1/check", CHECK, {"key": [*TEXT, ""], "plans": [5, "canary", [5], [None], {}, []], "cost": WHOLE}),
    ("POST", "/api/v1/check", CHECK, {"timestamp": ["x", True, [], "1e400", "9" * 400, "9" * 5000]}),
    ("POST", "/api/v1/check", CHECK, {"dimension": [5, "user"], "context": [5, CONTEXT], "nonsense": [1, None]}),
    ("POST", "/api/v1/quota", SUBJECT, {"dimension": [*TEXT, "nobody", ""], "identifier": [*TEXT, ""], "cost": WHOLE}),
    ("POST", "/api/v1/check", SUBJECT, {
        "endpoint": [*TEXT, "/a" * 5000], "method": [*TEXT, ""], "plans": [["canary"]],
    }),
    ("POST", "/api/v1/reset", SUBJECT, {"dimension": [*TEXT, "nobody"], "identifier": TEXT, "nonsense": [1]}),
    ("POST", "/ratelimiter/verify-api-limit", {"clientId": "canary", "apiName": "a", "methodName": "GET"},
     {"clientId": [*TEXT, "", None], "apiName": TEXT, "methodName": TEXT, "nonsense": [1]}),
    ("POST", "/api/v1/rules", RULE, {
        "rule_id": [*TEXT, "é" * 2000], "name": [*TEXT, "n" * 5000],
        "dimension": [*NOT_NAMES, None, "usr", *UNKNOWN[1:]], "identifier": [*NOT_NAMES, ["a", "b"]],
        "headers": [5, "no", []], "endpoint_pattern": [*TEXT, "/a/**/b", "/" + "a" * 10_000], "method": TEXT,
        "tier": TEXT, "algorithm": [*TEXT, *UNKNOWN], "limit": [*WHOLE, None],
        "window_seconds": [*NUMBER, None, 0, -5, "9" * 400], "burst": WHOLE, "mode": [*TEXT, *UNKNOWN],
        "on_store_error": [*TEXT, *UNKNOWN], "expires_at": [True, [], {}, "tomorrow", -5, "1e400"], "nonsense": [1],
    }),
    ("PUT", "/api/v1/rules/canary", {**RULE, "rule_id": "canary"}, {
        "rule_id": ["another"], "limit": WHOLE, "window_seconds": [*NUMBER, 0], "nonsense": [1], "mode": [*UNKNOWN, 5],
    }),
    ("POST", "/api/v1/plans", {"name": "new", "limits": ["5/minute"]}, {
        "name": [*TEXT, "", None, "n" * 5000], "nonsense": [1],
        "limits": [5, None, True, {}, [], [5], "nonsense", ["5/minute", "6"], ""],
    }),
    ("PUT", "/api/v1/plans/canary", {"limits": ["5/minute"]}, {"limits": [5, None, [], ["x"]], "name": [5, "other"]}),
    ("PUT", "/api/v1/users/canary/tier", {"tier": "gold"}, {"tier": [*TEXT, "t" * 5000], "nonsense": [1]}),
    ("POST", "/api/v1/users/canary/override", {"rule_id": "canary", "limit": 5, "duration_seconds": 60}, {
        "rule_id": TEXT, "limit": [*WHOLE, None], "duration_seconds": [*NUMBER, 0, -1, None, 1e300],
        "endpoint_pattern": [5, "/a"], "window_seconds": [60, "x"], "nonsense": [1],
    }),
    ("POST", "/admin/policies", POLICY, {
        "key": [*TEXT, "", None, "k" * 1025], "type": [*TEXT, *UNKNOWN], "capacity": [*WHOLE, 0],
        "refillRate": [*WHOLE, 0], "windowSeconds": [*WHOLE, 0], "nonsense": [1], "policyKey": ["x"],
    }),
    ("PUT", "/admin/policies/canary", {"capacity": 5}, {"capacity": [*WHOLE, 0], "key": [5, "another"], "type": ["x"]}),
    ("POST", "/ratelimiter/configure-client", {"clientId": "canary", "limits": [CLIENT_LIMIT]}, {
        "clientId": [*TEXT, "", None, "c" * 1025],
        "limits": [5, None, "x", {}, [5], [{}], [{**CLIENT_LIMIT, "limitType": "NOBODY"}],
                   [{**CLIENT_LIMIT, "limitName": 5}], [{**CLIENT_LIMIT, "timeIntervalLimit": 5}],
                   [{**CLIENT_LIMIT, "timeIntervalLimit": {"timeUnit": "AGE", "maxRequests": 5}}],
                   [{**CLIENT_LIMIT, "timeIntervalLimit": {"timeUnit": "MIN", "maxRequests": -5}}],
                   [{**CLIENT_LIMIT, "timeIntervalLimit": {"timeUnit": "MIN", "maxRequests": 1.5}}],
                   [{**CLIENT_LIMIT, "nonsense": 1}], [CLIENT_LIMIT, CLIENT_LIMIT]],
        "nonsense": [1],
    }),
    ("DELETE", "/ratelimiter/delete-limits", {"clientId": "canary", "limits": [METHOD_LIMIT]}, {
        "clientId": [*TEXT, "", None], "limits": [5, None, "x", [5], [{}], [{"limitType": "NOBODY"}]], "nonsense": [1],
    }),
]  # fmt: skip
INVALID_FIELDS = [
    pytest.param(method, path, body, name, values, id=f"{method} {path} {name} {index}")
    for index, (method, path, body, fields) in enumerate(FIELDS)
    for name, values in fields.items()
]


def encode_json(value: Any) -> bytes:
    """Like json.dumps, with numbers that Python does not write."""
    return json.dumps(value).encode().replace(b'"1e400"', b"1e400").replace(b'"-1e400"', b"-1e400")


@pytest.fixture(scope="module", autouse=True)
def canaries(admin: httpx.Client) -> Iterator[None]:
    """One object of each kind, which must stay unchanged."""
    rule = {"rule_id": "canary", "name": "Canary", "dimension": "user", "limit": 50, "window_seconds": 86400}
    limit = {"limitType": "DEFAULT", "limitName": "GLOBAL", "timeIntervalLimit": {"timeUnit": "DAY", "maxRequests": 50}}
    created = [
        ("/api/v1/rules", rule),
        ("/api/v1/plans", {"name": "canary", "limits": ["50/day using fixed_window"]}),
        ("/admin/policies", {"key": "canary", "type": "SLIDING_WINDOW", "capacity": 50, "windowSeconds": 86400}),
        ("/ratelimiter/configure-client", {"clientId": "canary", "limits": [limit]}),
    ]
    for path, body in created:
        response = admin.post(path, json=body)
        assert response.status_code in (200, 201), response.text
    assert admin.put("/api/v1/users/canary/tier", json={"tier": "silver"}).status_code == 200
    yield
    for path in ("/api/v1/rules/canary", "/api/v1/plans/canary", "/admin/policies/canary"):
        assert admin.delete(path).status_code == 204
    assert admin.delete("/ratelimiter/delete-client", params={"clientId": "canary"}).status_code in (200, 204)


def read_all_state(admin: httpx.Client) -> list[Any]:
    """The configuration, the audit log, and the counters of the canaries."""
    configuration = [
        admin.get(path).json()
        for path in (
            "/api/v1/rules",
            "/api/v1/plans",
            "/admin/policies",
            "/ratelimiter/configured-limits",
            "/api/v1/audit?limit=5",
        )
    ]
    counted = [
        {"key": "canary"},
        {"key": "canary", "plans": ["canary"]},
        {"dimension": "user", "identifier": "canary"},
        {"dimension": "client", "identifier": "canary"},
    ]
    return [*configuration, *(admin.post("/api/v1/quota", json=body).json()["current_count"] for body in counted)]


@pytest.fixture
def unchanged(admin: httpx.Client) -> Iterator[None]:
    before = read_all_state(admin)
    yield
    assert read_all_state(admin) == before


def assert_bad_request(response: httpx.Response) -> dict[str, Any]:
    assert response.headers["content-type"] == "application/problem+json"
    error: dict[str, Any] = response.json()
    assert error["status"] == response.status_code == 400, (response.request.content[:300], response.text[:300])
    assert error["error"] == error["title"] == "Bad Request"
    assert error["message"] == error["detail"] != ""
    assert "Traceback" not in error["detail"]
    return error


@pytest.mark.parametrize(("method", "path"), ENDPOINTS_WITH_BODY)
def test_invalid_json_is_refused(admin: httpx.Client, unchanged: None, method: str, path: str) -> None:
    for name, body in INVALID_JSON.items():
        response = admin.request(method, path, content=body, headers={"content-type": "application/json"})
        assert response.status_code == 400, name
        assert_bad_request(response)


@pytest.mark.parametrize(("method", "path", "body", "name", "values"), INVALID_FIELDS)
def test_invalid_field_is_named(
    admin: httpx.Client, unchanged: None, method: str, path: str, body: dict[str, Any], name: str, values: list[Any]
) -> None:
    for value in values:
        content = encode_json({**body, name: value})
        error = assert_bad_request(
            admin.request(method, path, content=content, headers={"content-type": "application/json"})
        )
        fields = [problem["field"] for problem in error["problems"]]
        named = name in error["detail"] or any(field.split(".")[0].split("[")[0] == name for field in fields)
        assert named, (value, error)


@pytest.mark.parametrize("name", CONTEXT)
def test_invalid_context_field_is_named(admin: httpx.Client, unchanged: None, name: str) -> None:
    for value in [*TEXT, ""] if name != "path" else TEXT:  # an empty path is none
        error = assert_bad_request(admin.post("/api/v1/check", json={"context": {**CONTEXT, name: value}}))
        assert name in error["detail"]


def test_invalid_check_of_a_batch_is_named_and_nothing_is_counted(admin: httpx.Client, unchanged: None) -> None:
    good = {"key": "canary", "plans": ["canary"]}
    for wrong in ({}, {"key": "canary", "cost": -1}, {"key": 5}, {**good, "plans": ["nobody"]}, {**good, "more": 1}):
        error = assert_bad_request(admin.post("/api/v1/check/batch", json={"checks": [good, good, wrong]}))
        assert "checks[2]" in error["detail"]


@pytest.mark.parametrize("checks", [None, 5, "x", {}, [5], [None], [[]], [{}] * 1001, [{"key": "canary"}] * 1001])
def test_invalid_check_lists_are_refused(admin: httpx.Client, unchanged: None, checks: Any) -> None:
    error = assert_bad_request(admin.post("/api/v1/check/batch", json={"checks": checks}))
    assert "checks" in error["detail"]


@pytest.mark.parametrize(
    ("method", "path", "body"),
    [
        ("POST", "/api/v1/rules", b'{"name": "a", "name": "b", "dimension": "user", "limit": 1, "window_seconds": 1}'),
        ("POST", "/api/v1/plans", b'{"name": "a", "limits": ["1/s"], "limits": ["2/s"]}'),
        ("POST", "/admin/policies", b'{"key": "a", "capacity": 1, "capacity": 2}'),
    ],
)
def test_duplicate_field_is_refused(admin: httpx.Client, unchanged: None, method: str, path: str, body: bytes) -> None:
    assert_bad_request(admin.request(method, path, content=body, headers={"content-type": "application/json"}))


@pytest.mark.parametrize("kind", ["text/plain", "multipart/form-data", "application/json; charset=utf-16"])
def test_other_content_types_are_refused(admin: httpx.Client, unchanged: None, kind: str) -> None:
    response = admin.post("/api/v1/plans", content=b'{"name": "x", "limits": ["1/s"]}', headers={"content-type": kind})
    assert response.status_code == 415
    assert response.headers["content-type"] == "application/problem+json"


@pytest.mark.parametrize(
    "query",
    [
        "/api/v1/rules?limit=0",
        "/api/v1/rules?limit=1001",
        "/api/v1/rules?limit=-1",
        "/api/v1/rules?limit=1e3",
        "/api/v1/rules?limit=" + "9" * 5000,
        "/api/v1/rules?limit=",
        "/api/v1/rules?nonsense=1",
        "/api/v1/plans?limit=x",
        "/api/v1/audit?since=yesterday",
        "/api/v1/audit?since=nan",
        "/api/v1/audit?until=inf",
        "/api/v1/audit?until=1e400",
        "/api/v1/audit?since=-1",
        "/api/v1/audit?before=nonsense",
        "/api/v1/audit?before=%00",
        "/api/v1/audit?limit=x",
        "/api/v1/stats?step=day",
        "/api/v1/stats?since=2026-01-02T00:00:00Z&until=2026-01-01T00:00:00Z",
        "/api/v1/stats?top=101",
        "/api/v1/stats?top=-1",
        "/api/v1/stats?since=1e300",
        "/api/v1/stats?since=0001-01-01T00:00:00Z",
        "/admin/metrics?limit=0",
        "/admin/policies?nonsense=1",
        "/ratelimiter/client-limits",
        "/ratelimiter/client-limits?clientId=",
        "/ratelimiter/configured-limits?limit=0",
    ],
)
def test_invalid_query_is_named(admin: httpx.Client, query: str) -> None:
    name = query.partition("?")[2].partition("=")[0] or "clientId"
    error = assert_bad_request(admin.get(query))
    assert name in error["detail"], error


@pytest.mark.parametrize(
    "name", ["a\0b", "é" * 400, "a/b", "..", "%", "x" * 1024, "\U0001f4a9", "'; DROP TABLE rules; --"]
)
def test_unusual_names_work(admin: httpx.Client, service: Service, name: str) -> None:
    """Names may contain any character: create, read, count and delete."""
    response = admin.post("/admin/policies", json={"key": name, "capacity": 5, "refillRate": 1})
    assert response.status_code == 201, response.text
    encoded = quote(name, safe="").replace(".", "%2E")
    path = f"/admin/policies/{encoded}"
    assert admin.get(path).json()["policyKey"] == name
    assert admin.post("/api/v1/check", json={"key": name}).json()["limit"] == 5
    assert admin.get(f"/admin/metrics/{encoded}").json()["windowRequestCount"] == 1
    assert admin.delete(path).status_code == 204
    assert admin.get(path).status_code == 404
