"""The OpenAPI document and its page."""

from __future__ import annotations

import asyncio
import json
import re
import threading
from typing import Any, get_args

import pytest

from crestgate.cli import main
from crestgate.core.algorithms import ALGORITHMS
from crestgate.core.dimensions import DIMENSION_NAMES
from crestgate.core.failure_policies import FAILURE_POLICIES
from crestgate.rules.compat import clients, policies
from crestgate.rules.rule import ALIASES, MODES
from crestgate.service.admin import compat_models, models
from crestgate.service.admin.api import RenderedPage
from unit.service.admin.admin_client import Control

DATA_PLANE = {
    "/api/v1/check", "/api/v1/check/batch", "/api/v1/quota", "/api/v1/explain", "/api/v1/reset", "/api/v1/authorize",
    "/api/v1/reservations", "/api/v1/reservations/{id}/settle", "/api/v1/reservations/{id}/release",
    "/api/v1/reservations/{id}/extend", "/json", "/ratelimiter/verify-api-limit", "/healthz", "/readyz", "/metrics",
}  # fmt: skip
CONTROL_PLANE = {
    "/api/v1/rules": {"get", "post"},
    "/api/v1/rules/{rule_id}": {"get", "put", "delete"},
    "/api/v1/simulate": {"post"},
    "/api/v1/plans": {"get", "post"},
    "/api/v1/plans/{name}": {"get", "put", "delete"},
    "/api/v1/users/{user_id}/limits": {"get"},
    "/api/v1/users/{user_id}/tier": {"put"},
    "/api/v1/users/{user_id}/override": {"post", "delete"},
    "/api/v1/keys": {"get", "post"},
    "/api/v1/keys/{key_id}": {"delete"},
    "/api/v1/keys/{key_id}/rotate": {"post"},
    "/api/v1/audit": {"get"},
    "/api/v1/stats": {"get"},
    "/api/v1/status": {"get"},
    "/api/v1/migration": {"get"},
    "/admin/status": {"get"},
    "/admin/metrics": {"get"},
    "/admin/metrics/{key}": {"get"},
    "/admin/reset/{key}": {"post"},
    "/admin/policies": {"get", "post"},
    "/admin/policies/{key}": {"get", "put", "delete"},
    "/ratelimiter/configure-client": {"post"},
    "/ratelimiter/client-limits": {"get"},
    "/ratelimiter/configured-limits": {"get"},
    "/ratelimiter/delete-limits": {"delete"},
    "/ratelimiter/delete-client": {"delete"},
}


def schema(control: Control) -> dict[str, Any]:
    data: dict[str, Any] = control.get("/openapi.json").json()
    return data


def test_all_paths_are_documented(control: Control) -> None:
    paths = schema(control)["paths"]
    assert {path: set(item) for path, item in paths.items() if path not in DATA_PLANE} == CONTROL_PLANE
    assert set(paths) >= DATA_PLANE


def test_command_prints_the_document(control: Control, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["openapi"]) == 0
    assert json.loads(capsys.readouterr().out) == schema(control)


def test_every_operation_has_summary_and_responses(control: Control) -> None:
    data = schema(control)
    tags = {tag["name"] for tag in data["tags"]}
    ids = []
    for item in data["paths"].values():
        for operation in item.values():
            assert operation["summary"]
            assert operation["description"]
            assert set(operation["tags"]) <= tags
            ids.append(operation["operationId"])
            for status, response in operation["responses"].items():
                if status >= "4" and "application/problem+json" not in response["content"]:
                    assert set(response["content"]) == {"application/json"}, "of readiness"
    assert len(set(ids)) == len(ids)


def test_control_plane_needs_a_key(control: Control) -> None:
    data = schema(control)
    assert set(data["components"]["securitySchemes"]) >= {"bearer", "apiKey"}
    for path in CONTROL_PLANE:
        for method, operation in data["paths"][path].items():
            scope = "read" if method == "get" or path == "/api/v1/simulate" else "write"
            assert operation["description"].endswith(f"Needs scope `{scope}`.")
            assert operation["security"] == [{"bearer": []}, {"apiKey": []}]
            assert {"401", "403", "429", "503"} <= set(operation["responses"])
            assert "422" not in operation["responses"]
            if "requestBody" in operation:
                assert {"400", "413", "415"} <= set(operation["responses"])


def test_parameters_are_never_null(control: Control) -> None:
    for path in CONTROL_PLANE:
        for operation in schema(control)["paths"][path].values():
            for parameter in operation.get("parameters", ()):
                assert parameter["schema"]["type"] in ("string", "integer", "boolean")
    put = schema(control)["paths"]["/api/v1/rules/{rule_id}"]["put"]
    assert [parameter["name"] for parameter in put["parameters"]] == ["rule_id", "If-Match"]


def test_enums_match_the_rules() -> None:
    written = models.RuleBody.model_json_schema()["properties"]
    assert [one["type"] for one in written["dimension"]["anyOf"]] == ["string", "array"]
    assert all(name in written["dimension"]["description"] for name in DIMENSION_NAMES)
    assert written["mode"]["anyOf"][0]["enum"] == [*MODES]
    assert written["on_store_error"]["anyOf"][0]["enum"] == [*FAILURE_POLICIES]
    assert written["algorithm"]["anyOf"][0]["enum"] == [*ALGORITHMS, *ALIASES]
    assert get_args(compat_models.PolicyType) == policies.TYPES
    assert get_args(compat_models.LimitType) == clients.TYPES
    assert get_args(compat_models.TimeUnit) == tuple(clients.UNITS)


def test_every_referenced_schema_exists(control: Control) -> None:
    text = control.get("/openapi.json").text
    shapes = schema(control)["components"]["schemas"]
    assert set(re.findall(r'"#/components/schemas/(\w+)"', text)) == set(shapes), "no unused schemas"


def test_page_lists_all_operations_and_loads_no_external_files(control: Control) -> None:
    page = control.get("/docs/reference")
    assert page.headers["content-type"] == "text/html; charset=utf-8"
    assert "default-src 'none'" in page.headers["content-security-policy"]
    for path in (*CONTROL_PLANE, *DATA_PLANE):
        assert f"<code>{path}</code>" in page.text
    assert "<script" not in page.text
    assert not re.search(r'(?:src|href)="(?!#|/openapi\.json)', page.text), "no external files"
    for link in re.findall(r'href="#([^"]+)"', page.text):
        assert f'id="{link}"' in page.text


def test_interactive_page_loads_its_own_files_only(control: Control) -> None:
    page = control.get("/docs")
    policy = page.headers["content-security-policy"]
    assert "script-src 'self';" in policy
    assert "//" not in policy
    loaded = re.findall(r'(?:src|href)="(/docs/[^"]+\.(?:js|css))"', page.text)
    assert sorted(loaded) == ["/docs/start.js", "/docs/swagger-ui-bundle.js", "/docs/swagger-ui.css"]
    for path in loaded:
        response = control.get(path)
        assert response.status_code == 200
        assert int(response.headers["content-length"]) == len(response.content)
    assert not re.search(r'(?:src|href)="(?!/|data:)', page.text), "no external files"


def test_pages_are_rendered_once_for_many_clients() -> None:
    started = threading.Event()
    release = threading.Event()
    rendered = []

    def render() -> bytes:
        rendered.append(threading.current_thread())
        started.set()
        assert release.wait(30)
        return b"page"

    async def ask_at_once() -> None:
        page = RenderedPage(render)
        clients = [asyncio.ensure_future(page.body()) for _ in range(50)]
        while not started.is_set():
            await asyncio.sleep(0)
        clients[0].cancel()  # the one that asked first hangs up
        release.set()
        assert await asyncio.gather(*clients[1:]) == [b"page"] * 49
        assert await page.body() == b"page"

    asyncio.run(ask_at_once())
    assert len(rendered) == 1
    assert rendered[0] is not threading.main_thread()
