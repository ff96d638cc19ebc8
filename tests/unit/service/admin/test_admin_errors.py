"""Error responses of the control plane."""

from __future__ import annotations

import logging
import re
from typing import Any

import pytest

from crestgate.service.admin.bodies import read_json
from unit.service.admin.admin_client import Control, problems

RULE = b'{"name": "x", "dimension": "user", "limit": 5, "window_seconds": 60}'


def send(control: Control, body: bytes, kind: str | None = "application/json") -> Any:
    headers = {} if kind is None else {"Content-Type": kind}
    return control.call("POST", "/api/v1/rules", content=body, headers=headers)


@pytest.mark.parametrize(
    ("body", "text"),
    [
        (b"", "the body is empty"),
        (b"  \n", "the body is empty"),
        (b'{"limit": 5,}', "(line 1, column 13)"),
        (b'{\n  "limit" 5}', "(line 2, column 11)"),
        (b'{"limit": NaN}', "NaN is not a JSON number"),
        (b'{"limit": -Infinity}', "-Infinity is not a JSON number"),
        (b'{"limit": 1' + b"0" * 5000 + b"}", "too many digits"),
        (b'{"name": "\xff"}', "not UTF-8 (byte 10)"),
        (b'{"name": "\\ud800"}', "a lone surrogate"),
        (b'{"\\udfff": 1}', "a lone surrogate"),
        (b"[" * 100_000, "nested too deeply"),
        (b'{"a":' * 100_000, "nested too deeply"),
        (RULE + b" x", "not JSON"),
        (b"\xef\xbb\xbf" + RULE, "not JSON"),
        (b"'x'", "not JSON"),
    ],
)
def test_invalid_json_bodies_are_refused(control: Control, body: bytes, text: str) -> None:
    (message,) = problems(send(control, body)).values()
    assert text in message


def test_duplicate_field_is_refused(control: Control) -> None:
    assert problems(send(control, b'{"limit": 5, "limit": 500}')) == {"limit": "is written twice: write it once"}


def test_body_with_maximum_nesting_is_read() -> None:
    assert read_json(b'{"a": [[1.5, null, true, "\\u0000"]]}') == {"a": [[1.5, None, True, "\0"]]}


@pytest.mark.parametrize("body", [b"5", b'"x"', b"null", b"[]", b"true"])
def test_bodies_other_than_objects_are_refused(control: Control, body: bytes) -> None:
    (message,) = problems(send(control, body)).values()
    assert message.startswith("must be a mapping with rule_id, name")


@pytest.mark.parametrize(
    "kind",
    [
        None,
        "application/json",
        "Application/JSON; charset=UTF-8",
        "application/merge-patch+json",
        "application/x-www-form-urlencoded",  # the default of curl -d
    ],
)
def test_json_content_types_are_accepted(control: Control, kind: str | None) -> None:
    assert send(control, RULE, kind).status_code == 201


@pytest.mark.parametrize("kind", ["text/plain", "multipart/form-data", "", "json", "application/json; charset=latin-1"])
def test_other_content_types_are_refused(control: Control, kind: str) -> None:
    answer = send(control, RULE, kind)
    assert answer.status_code == 415
    assert "Content-Type: application/json" in answer.json()["detail"]


@pytest.mark.parametrize("path", ["/nothing", "/api/v1", "/api/v1/rules/", "/api/v1/users/bob", "/admin", "/docs/"])
def test_unknown_paths_are_not_found(control: Control, path: str) -> None:
    answer = control.get(path)
    assert answer.status_code == 404
    assert answer.json()["detail"] == f"no such path: {path}; see /docs for all paths"


@pytest.mark.parametrize(
    ("method", "path", "allowed"),
    [
        ("PATCH", "/api/v1/rules", "GET, HEAD, POST"),
        ("POST", "/api/v1/rules/x", "GET, HEAD, PUT, DELETE"),
        ("GET", "/admin/reset/x", "POST"),
        ("DELETE", "/api/v1/users/bob/tier", "PUT"),
        ("OPTIONS", "/api/v1/audit", "GET, HEAD"),
        ("BREW", "/admin/status", "GET, HEAD"),
        ("GET", "/ratelimiter/delete-client", "DELETE"),
    ],
)
def test_unknown_methods_are_not_allowed(control: Control, method: str, path: str, allowed: str) -> None:
    answer = control.call(method, path)
    assert (answer.status_code, answer.headers["allow"]) == (405, allowed)


@pytest.mark.parametrize("path", ["/api/v1/rules", "/admin/status", "/docs", "/openapi.json", "/api/v1/rules/nothing"])
def test_head_is_get_without_a_body(control: Control, path: str) -> None:
    whole = control.runner.run(control.http.get(path))
    head = control.runner.run(control.http.head(path))
    assert (head.status_code, head.content) == (whole.status_code, b"")
    assert head.headers["content-type"] == whole.headers["content-type"]
    assert abs(int(head.headers["content-length"]) - len(whole.content)) < 10  # the time of a problem may be shorter


def test_head_does_nothing_where_there_is_no_get(control: Control) -> None:
    answer = control.runner.run(control.http.head("/admin/reset/x"))
    assert (answer.status_code, answer.content, answer.headers["allow"]) == (405, b"", "POST")
    assert control.actions() == []


HUGE = ["1" + "0" * 400, "-1" + "0" * 400, "1" + "0" * 59, "1e308", "-1e308", "1" + "0" * 20]


@pytest.mark.parametrize("number", HUGE, ids=lambda number: f"{number[:3]} {len(number)}")
@pytest.mark.parametrize("field", ["window_seconds", "limit", "burst", "expires_at"])
def test_huge_numbers_in_a_rule_are_refused(control: Control, number: str, field: str) -> None:
    body = RULE.replace(b'"limit": 5', b'"limit": 5, "burst": 5, "expires_at": 4102444800')
    body = re.sub(f'"{field}": \\d+'.encode(), f'"{field}": {number}'.encode(), body)
    assert set(problems(send(control, body))) == {field}


@pytest.mark.parametrize("number", HUGE, ids=lambda number: f"{number[:3]} {len(number)}")
@pytest.mark.parametrize("field", ["window_seconds", "limit", "duration_seconds"])
def test_huge_numbers_in_an_override_are_refused(control: Control, number: str, field: str) -> None:
    body = '{"endpoint_pattern": "/x", "window_seconds": 60, "limit": 5, "duration_seconds": 60}'
    body = re.sub(f'"{field}": \\d+', f'"{field}": {number}', body)
    headers = {"Content-Type": "application/json"}
    answer = control.call("POST", "/api/v1/users/u/override", content=body.encode(), headers=headers)
    assert answer.status_code in (400, 404, 422), answer.text


@pytest.mark.parametrize("name", ["%FF", "a%C3", "%ED%A0%80"])
def test_names_that_are_not_text_are_refused(control: Control, name: str) -> None:
    assert set(problems(control.get(f"/admin/policies/{name}"))) == {"path"}


def test_long_names_are_refused(control: Control) -> None:
    assert set(problems(control.get("/api/v1/rules/" + "x" * 1025))) == {"rule_id"}
    assert set(problems(control.get("/api/v1/users/" + "%C3%BC" * 513 + "/limits"))) == {"user_id"}
    assert control.get("/api/v1/users/" + "%C3%BC" * 512 + "/limits").status_code == 200


def test_unhandled_error_is_logged_and_not_revealed(
    control: Control, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    def broken() -> None:
        raise ValueError("the password is hunter2")

    monkeypatch.setattr(control.parts.catalog, "refresh", broken)
    with caplog.at_level(logging.ERROR, "crestgate"):
        answer = control.get("/api/v1/rules/secret-name")
    assert answer.status_code == 500
    assert "secret-name" not in "".join(record.getMessage() for record in caplog.records)
    assert "GET /api/v1/rules/{rule_id" in caplog.text
    assert "hunter2" not in answer.text
    assert "request-1" in caplog.text
    assert "hunter2" in caplog.text


def test_unreachable_database(control: Control, caplog: pytest.LogCaptureFixture) -> None:
    control.repository.close()
    with caplog.at_level(logging.ERROR, "crestgate"):
        for answer in (
            control.get("/api/v1/audit"),
            control.post("/api/v1/plans", {"name": "gold", "limits": "1/s"}),
            control.put("/api/v1/users/bob/tier", {"tier": "gold"}),
        ):
            assert answer.status_code == 503
    assert "request-1" in caplog.text
    assert control.get("/api/v1/rules").status_code == 200, "the cached rules stay in force"


def test_calls_without_the_guard_are_refused(control: Control) -> None:
    import httpx

    unguarded = httpx.AsyncClient(transport=httpx.ASGITransport(control.app), base_url="http://crestgate")
    answer = control.runner.run(unguarded.post("/api/v1/plans", json={"name": "gold", "limits": "1/s"}))
    assert answer.status_code == 500
    assert control.get("/api/v1/plans/gold").status_code == 404


def test_framework_exports_no_spans(control: Control, monkeypatch: pytest.MonkeyPatch) -> None:
    from opentelemetry.sdk.trace import TracerProvider
    from opentelemetry.sdk.trace.export import SimpleSpanProcessor
    from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter

    exporter = InMemorySpanExporter()
    provider = TracerProvider()
    provider.add_span_processor(SimpleSpanProcessor(exporter))
    monkeypatch.setattr("opentelemetry.trace._TRACER_PROVIDER", provider)
    assert control.get("/admin/metrics/somebody").status_code == 200
    assert exporter.get_finished_spans() == ()
