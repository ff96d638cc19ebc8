"""JSON responses, and the OpenAPI description of endpoints.

Bodies and responses are not validated by FastAPI's models: the readers of rules validate more than a schema can. So the
models (models.py) are only documentation, and the tests validate every response against them.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

from pydantic import BaseModel
from starlette.responses import Response

from crestgate.http.problem import CONTENT_TYPE

__all__ = ["describe", "describe_body", "describe_problem", "json_response", "no_content", "ref"]

REASONS = {
    400: "The request is invalid; `problems` lists each field.",
    401: "The key (`Authorization: Bearer …` or `X-API-Key`) is missing or invalid.",
    403: "The key, the client address or a cross-site web page is not allowed to do this.",
    404: "It does not exist.",
    409: "It already exists, conflicts with another, or is defined in a file.",
    412: "It was changed since it was read, or there is a concurrent write.",
    413: "The body is larger than 1 MiB, or has too many items.",
    415: "The body is not JSON.",
    421: "The name in `Host` is not served here.",
    422: "The idempotency key was used with another body.",
    429: "Too many requests; retry after `Retry-After`.",
    500: "Unhandled error; it was logged with the request's id.",
    503: "The database or the store of the counters is unavailable.",
}
EVERYWHERE = (401, 403, 421, 429, 500, 503)
"""Statuses that any endpoint of the admin API may return."""
WITH_BODY = (400, 413, 415)


def json_response(data: Any, status: int = 200, headers: Mapping[str, str] | None = None) -> Response:
    """Data as JSON, in ASCII, so that any name can be encoded."""
    body = json.dumps(data, separators=(",", ":"), allow_nan=False).encode("ascii")
    return Response(body, status, dict(headers or {}), "application/json")


def no_content() -> Response:
    return Response(status_code=204)


def describe(
    summary: str,
    model: Any,
    *problems: int,
    status: int = 200,
    body: type[BaseModel] | None = None,
    headers: Mapping[str, str] | None = None,
) -> dict[str, Any]:
    """The OpenAPI of an endpoint: `model` on success (None: no content), otherwise one of these problems."""
    statuses = {*EVERYWHERE, *problems, *(WITH_BODY if body is not None else ())}
    responses: dict[int | str, dict[str, Any]] = {code: describe_problem(code) for code in sorted(statuses)}
    responses[status] = {"description": "Done." if model is None else "Success."}
    if model is not None:
        responses[status]["model"] = model
    if headers:
        responses[status]["headers"] = {
            name: {"description": text, "schema": {"type": "string"}} for name, text in headers.items()
        }
    described: dict[str, Any] = {
        "summary": summary,
        "response_model": None,
        "status_code": status,
        "responses": responses,
    }
    if body is not None:
        described["openapi_extra"] = describe_body(body)
    return described


def describe_body(body: type[BaseModel]) -> dict[str, Any]:
    return {"requestBody": {"required": True, "content": {"application/json": {"schema": ref(body.__name__)}}}}


def describe_problem(status: int) -> dict[str, Any]:
    described: dict[str, Any] = {"description": REASONS[status], "content": {CONTENT_TYPE: {"schema": ref("Problem")}}}
    if status == 429:
        described["headers"] = {"Retry-After": {"description": "Whole seconds.", "schema": {"type": "integer"}}}
    return described


def ref(name: str) -> dict[str, str]:
    return {"$ref": f"#/components/schemas/{name}"}
