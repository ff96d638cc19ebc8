"""How an endpoint says in OpenAPI what it takes and answers.

Bodies and answers do not go through the framework's own models: the readers of rules know more than a shape, and what
they made needs no second look. So the models (models.py) describe, and the tests hold every answer against them.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

from pydantic import BaseModel
from starlette.responses import Response

from headgate.http.problem import CONTENT_TYPE

__all__ = ["answer", "empty", "problem_said", "says", "takes"]

REASONS = {
    400: "Something in the request cannot be used; `problems` names each field.",
    401: "A key is needed (`Authorization: Bearer …` or `X-API-Key`), and there is none, or a wrong one.",
    403: "The key, the address it comes from, or a web page of another site, may not do this.",
    404: "There is no such thing.",
    409: "It exists already, another has its place, or it is written in a file.",
    412: "It was changed by somebody else since it was read, or somebody is changing it right now.",
    413: "The body is larger than 1 MiB, or asks for too much at once.",
    415: "The body is not JSON.",
    421: "The service does not answer for the name in `Host`.",
    422: "The idempotency key was used with another body.",
    429: "Too many requests; `Retry-After` says when to come back.",
    500: "Something went wrong; it was logged under the request's id.",
    503: "The database or the store of the counters does not answer.",
}
EVERYWHERE = (401, 403, 421, 429, 500, 503)
"""What any call of the control plane may be answered with."""
WITH_BODY = (400, 413, 415)


def answer(data: Any, status: int = 200, headers: Mapping[str, str] | None = None) -> Response:
    """Data as JSON, in ASCII, so that no name is too strange to be answered with."""
    body = json.dumps(data, separators=(",", ":"), allow_nan=False).encode("ascii")
    return Response(body, status, dict(headers or {}), "application/json")


def empty() -> Response:
    return Response(status_code=204)


def says(
    summary: str,
    model: Any,
    *problems: int,
    status: int = 200,
    body: type[BaseModel] | None = None,
    headers: Mapping[str, str] | None = None,
) -> dict[str, Any]:
    """What an endpoint answers, when all is well with `model` (None: nothing), and else with one of these problems."""
    statuses = {*EVERYWHERE, *problems, *(WITH_BODY if body is not None else ())}
    responses: dict[int | str, dict[str, Any]] = {code: problem_said(code) for code in sorted(statuses)}
    responses[status] = {"description": "Done." if model is None else "As asked."}
    if model is not None:
        responses[status]["model"] = model
    if headers:
        responses[status]["headers"] = {
            name: {"description": text, "schema": {"type": "string"}} for name, text in headers.items()
        }
    said: dict[str, Any] = {
        "summary": summary,
        "response_model": None,
        "status_code": status,
        "responses": responses,
    }
    if body is not None:
        said["openapi_extra"] = takes(body)
    return said


def takes(body: type[BaseModel]) -> dict[str, Any]:
    return {"requestBody": {"required": True, "content": {"application/json": {"schema": ref(body.__name__)}}}}


def problem_said(status: int) -> dict[str, Any]:
    said: dict[str, Any] = {"description": REASONS[status], "content": {CONTENT_TYPE: {"schema": ref("Problem")}}}
    if status == 429:
        said["headers"] = {"Retry-After": {"description": "Whole seconds.", "schema": {"type": "integer"}}}
    return said


def ref(name: str) -> dict[str, str]:
    return {"$ref": f"#/components/schemas/{name}"}
