"""OpenAPI of the endpoints that FastAPI does not serve: checks, health and metrics."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from crestgate.http.headers import HEADERS
from crestgate.service.admin.responses import describe_problem, ref

__all__ = ["DATA_PATHS"]

OPEN: list[dict[str, list[str]]] = [{}, {"bearer": []}, {"apiKey": []}]
EITHER: list[dict[str, list[str]]] = [{"bearer": []}, {"apiKey": []}]
_CHECK = {"oneOf": [ref("SubjectCheck"), ref("ContextCheck"), ref("KeyCheck")]}
_LIMIT_HEADERS = {name: text for name, text in HEADERS.items() if name != "Retry-After"}
_PENDING = {
    **describe_problem(409),
    "description": "The first request with this idempotency key is still being decided.",
}
_NO_DESCRIPTORS = {
    **describe_problem(412),
    "description": "No descriptors are configured: `envoy.config` is not set.",
}
_SETTLED = {**describe_problem(409), "description": "It was settled or released before, or has ended."}
_RESERVATION = [
    {
        "name": "id",
        "in": "path",
        "required": True,
        "description": "As the reservation has it.",
        "schema": {"type": "string", "pattern": "^[A-Za-z0-9_-]{21,22}$"},
    }
]
_IDEMPOTENCY = [
    {
        "name": name,
        "in": "header",
        "required": False,
        "description": "A repeat with the same key within 5 minutes gets the first response, and consumes nothing.",
        "schema": {"type": "string", "minLength": 1, "maxLength": 255},
    }
    for name in ("Idempotency-Key", "X-Idempotency-Key")
]


def _json(schema: Mapping[str, Any], description: str = "Success.") -> dict[str, Any]:
    return {"description": description, "content": {"application/json": {"schema": dict(schema)}}}


def _with_headers(response: dict[str, Any], headers: Mapping[str, str]) -> dict[str, Any]:
    described = {name: {"description": text, "schema": {"type": "string"}} for name, text in headers.items()}
    return {**response, "headers": {**response.get("headers", {}), **described}}


def _operation(
    summary: str,
    description: str,
    responses: Mapping[int | str, dict[str, Any]],
    problems: Sequence[int],
    *,
    tag: str = "checks",
    security: list[dict[str, list[str]]] = OPEN,
    body: Mapping[str, Any] | None = None,
    parameters: Sequence[Mapping[str, Any]] = (),
) -> dict[str, Any]:
    described: dict[int | str, dict[str, Any]] = {
        **{code: describe_problem(code) for code in (*problems, 421)},
        **responses,
    }
    operation: dict[str, Any] = {
        "tags": [tag],
        "summary": summary,
        "description": description,
        "operationId": summary.lower().replace(" ", "_").replace(",", "").replace("'", ""),
        "responses": {str(code): described[code] for code in sorted(described, key=str)},
        "security": security,
    }
    if parameters:
        operation["parameters"] = list(parameters)
    if body is not None:
        operation["requestBody"] = {"required": True, "content": {"application/json": {"schema": dict(body)}}}
    return operation


def _authorize() -> dict[str, Any]:
    described = {
        "X-Original-URI": "The requested path, as nginx sends it; or X-Forwarded-Uri.",
        "X-Forwarded-Uri": "The requested path, as Traefik and Caddy send it.",
        "X-Original-Method": "Its method; or X-Forwarded-Method.",
        "X-Forwarded-Method": "Its method.",
        "X-API-Key": "The end user's API key.",
        "X-User-Id": "The end user, from trusted proxies only.",
        "X-Client-Id": "The client, from trusted proxies only; the API key or the address by default.",
    }
    headers: list[dict[str, Any]] = [
        {"name": name, "in": "header", "required": False, "description": text, "schema": {"type": "string"}}
        for name, text in described.items()
    ]
    deny = {
        "name": "deny_status",
        "in": "query",
        "required": False,
        "description": "The status of a denial. nginx only supports 401 and 403.",
        "schema": {"type": "integer", "default": 429, "minimum": 400, "maximum": 599},
    }
    problem_content = describe_problem(429)["content"]
    responses: dict[int | str, dict[str, Any]] = {
        200: _with_headers({"description": "Allowed."}, _LIMIT_HEADERS),
        429: _with_headers(describe_problem(429), _LIMIT_HEADERS),
        "4XX": {"description": "Denied, with the status of `deny_status`.", "content": problem_content},
        "5XX": {"description": "Denied, with the status of `deny_status`.", "content": problem_content},
    }
    return _operation(
        "Authorize a request",
        "Forward authentication for nginx `auth_request`, Traefik and Caddy: all rules that apply to the request in "
        "the headers. Any method may be used. 200 or 429 (403 with `?deny_status=403`).",
        responses,
        (400, 401, 403, 500, 503),
        security=[{}, {"crestgateKey": []}],
        parameters=[deny, *headers],
    )


DATA_PATHS: dict[str, Any] = {
    "/api/v1/check": {
        "post": _operation(
            "Check",
            "One decision; it consumes quota if it is allowed. Always 200, with `allowed` true or false; 429 means "
            "that this node has too many requests.",
            {200: _json(ref("DecisionResponse")), 409: _PENDING},
            (400, 401, 403, 413, 422, 429, 500, 503),
            body=_CHECK,
            parameters=_IDEMPOTENCY,
        )
    },
    "/api/v1/check/batch": {
        "post": _operation(
            "Check many",
            "Up to 1,000 independent decisions, in one round trip to the store, in order. A check may also peek or "
            "reset (`op`), and list its counters; with `exact` the numbers are whole numbers. An idempotency key is "
            "only for plain checks.",
            {200: _json(ref("BatchResponse")), 409: _PENDING},
            (400, 401, 403, 413, 422, 429, 500, 503),
            body=ref("BatchBody"),
            parameters=_IDEMPOTENCY,
        )
    },
    "/api/v1/quota": {
        "post": _operation(
            "Look at a quota",
            "The decision that a check would get; consumes nothing.",
            {200: _json(ref("DecisionResponse"))},
            (400, 401, 403, 413, 429, 500, 503),
            body=_CHECK,
        )
    },
    "/api/v1/explain": {
        "post": _operation(
            "Explain a check",
            "The decision that a check would get, and why: every rule that was considered, those that apply with their "
            "counters, those that lost and to which, those that do not match; and what would change the decision. "
            "Consumes nothing.\n\nNeeds scope `read`.",
            {200: _json(ref("ExplainResponse"))},
            (400, 401, 403, 413, 429, 500, 503),
            security=EITHER,
            body=_CHECK,
        )
    },
    "/api/v1/reset": {
        "post": _operation(
            "Reset counters",
            "Resets the counters that a check with this body would use, or those of Envoy's descriptors. It is "
            "recorded in the audit log.",
            {200: _json(ref("ResetResponse")), 412: _NO_DESCRIPTORS},
            (400, 401, 403, 413, 429, 500, 503),
            security=EITHER,
            body={"oneOf": [*_CHECK["oneOf"], ref("DescriptorsReset")]},
        )
    },
    "/api/v1/reservations": {
        "post": _operation(
            "Reserve",
            "Takes all limits of a check in one step, with a cost each, under an id: 201, or 200 with `allowed` false. "
            "What was really used is settled later. Without that it stays charged at its end, or is given back with "
            "`on_expiry: release`.",
            {200: _json(ref("ReservationResponse"), "Denied."), 201: _json(ref("ReservationResponse"), "Reserved.")},
            (400, 401, 403, 413, 429, 500, 503),
            body={"oneOf": [ref(f"{form}Reservation") for form in ("Subject", "Context", "Key", "Counters")]},
        )
    },
    "/api/v1/reservations/{id}/settle": {
        "post": _operation(
            "Settle a reservation",
            "Gives back, or charges, the difference between what was reserved and what was used. Once: the first "
            "settlement counts. Only the key that reserved, or one with scope `write`, may do it.",
            {200: _json(ref("SettlementResponse")), 409: _SETTLED},
            (400, 401, 403, 404, 413, 429, 500, 503),
            body=ref("SettleBody"),
            parameters=_RESERVATION,
        )
    },
    "/api/v1/reservations/{id}/release": {
        "post": _operation(
            "Release a reservation",
            "Gives everything back: instead of settling it, and once.",
            {200: _json(ref("SettlementResponse")), 409: _SETTLED},
            (400, 401, 403, 404, 413, 429, 500, 503),
            parameters=_RESERVATION,
        )
    },
    "/api/v1/reservations/{id}/extend": {
        "post": _operation(
            "Extend a reservation",
            "Moves its end to `ttl` seconds from now, and renews its slots of in-flight limits. One that has ended, or "
            "has lost a slot, cannot be extended.",
            {200: _json(ref("ExtensionResponse")), 409: _SETTLED},
            (400, 401, 403, 404, 413, 429, 500, 503),
            body=ref("ExtendBody"),
            parameters=_RESERVATION,
        )
    },
    "/json": {
        "post": _operation(
            "Ask by descriptors",
            "`ShouldRateLimit` of gRPC, in JSON: all limits that the descriptors match, all or nothing.",
            {
                200: _json(ref("RateLimitResponseBody"), "Allowed."),
                412: _NO_DESCRIPTORS,
                429: {
                    **describe_problem(429),
                    "description": "Over a limit; or, as a problem, this node has too many requests.",
                    "content": {
                        "application/json": {"schema": ref("RateLimitResponseBody")},
                        "application/problem+json": {"schema": ref("Problem")},
                    },
                },
            },
            (400, 401, 403, 413, 500, 503),
            body=ref("RateLimitRequestBody"),
        )
    },
    "/api/v1/authorize": {"get": _authorize()},
    "/ratelimiter/verify-api-limit": {
        "post": _operation(
            "Verify a client's call",
            "A check in the format of the client API.",
            {
                200: _json(ref("VerifyResponse"), "Allowed."),
                429: {
                    **describe_problem(429),
                    "description": "Rate limit exceeded; or, as a problem, this node has too many requests.",
                    "content": {
                        "application/json": {"schema": ref("VerifyResponse")},
                        "application/problem+json": {"schema": ref("Problem")},
                    },
                },
            },
            (400, 401, 403, 413, 500, 503),
            tag="clients",
            body=ref("VerifyBody"),
        )
    },
    "/healthz": {
        "get": _operation(
            "Liveness",
            "Whether this process responds.",
            {200: _json(ref("Liveness"), "Alive.")},
            (500,),
            tag="service",
            security=[],
        )
    },
    "/readyz": {
        "get": _operation(
            "Ready",
            "Whether the stores can be reached and decide: runs the real script or statement.",
            {200: _json(ref("Readiness"), "Ready.")},
            (500, 503),
            tag="service",
            security=[],
        )
    },
    "/metrics": {
        "get": _operation(
            "Prometheus metrics",
            "Metrics of all workers of this node.",
            {
                200: {
                    "description": "In the format of Prometheus, or of OpenMetrics if the client accepts it.",
                    "content": {
                        "text/plain": {"schema": {"type": "string"}},
                        "application/openmetrics-text": {"schema": {"type": "string"}},
                    },
                }
            },
            (401, 403, 429, 500),
            tag="service",
            security=OPEN,
        )
    },
}
