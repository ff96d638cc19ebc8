"""The OpenAPI document of the whole service: the admin API, and the endpoints that FastAPI does not serve."""

from __future__ import annotations

from threading import Lock
from typing import Any

from fastapi import FastAPI
from fastapi.openapi.utils import get_openapi
from pydantic import BaseModel
from pydantic.json_schema import models_json_schema

from crestgate.service.admin import compat_models, models
from crestgate.service.admin.check_docs import DATA_PATHS
from crestgate.service.admin.check_models import CHECK_MODELS, check_schemas
from crestgate.service.admin.envoy_models import ENVOY_MODELS
from crestgate.service.admin.explain_models import EXPLAIN_MODELS
from crestgate.service.admin.key_models import KEY_MODELS
from crestgate.service.admin.simulate_models import SimulateBody
from crestgate.service.auth.guard import READ_CALLS

__all__ = ["OpenApiDocument"]

ABOUT = """\
Crestgate decides whether a request is allowed, and manages the rules for these decisions.

**Authorization.** Checks need no key on loopback unless configured otherwise. All other calls need a key, as
`Authorization: Bearer …` or `X-API-Key`. Scope `check` allows checks, `read` also reading rules, counters and the audit
log, `write` also changing them. Create keys with `crestgate keys create`, or
here.

**Errors** are `application/problem+json` everywhere. Unknown fields, wrong types and invalid JSON are 400, and
`problems` lists every invalid field.

**Lists** are paged: `limit` (1 to 1,000) and `after`. `/admin` and `/ratelimiter` return plain lists, with the next
page in a `Link` header.

**Names in paths** may have any characters; a slash is written as `%2F`, or as it is.
"""
TAGS = [
    {"name": "checks", "description": "Decisions: is this request allowed?"},
    {"name": "rules", "description": "Limits, and the subjects and requests they are for."},
    {"name": "plans", "description": "Named lists of limits for a key."},
    {"name": "users", "description": "Effective limits, tier and overrides of a user."},
    {"name": "keys", "description": "API keys of the service: a token is shown once, when its key is created."},
    {"name": "audit", "description": "The log of all changes."},
    {"name": "statistics", "description": "Usage per minute (30 days) and per hour (a year)."},
    {"name": "policies", "description": "One limit for one opaque key, and the metrics of keys."},
    {"name": "clients", "description": "Token buckets of clients: for all requests, for an API, for a method."},
    {"name": "service", "description": "Health and metrics."},
]
SCHEMES = {
    "bearer": {"type": "http", "scheme": "bearer", "description": "A key, as `crestgate keys create` prints it."},
    "apiKey": {"type": "apiKey", "in": "header", "name": "X-API-Key", "description": "The same key in another header."},
    "crestgateKey": {
        "type": "apiKey",
        "in": "header",
        "name": "X-Crestgate-Key",
        "description": "The key of a proxy that checks the request of an end user.",
    },
}
EITHER: list[dict[str, list[str]]] = [{"bearer": []}, {"apiKey": []}]
BODIES: tuple[type[BaseModel], ...] = (
    compat_models.Configuration,
    compat_models.LimitNames,
    models.OverrideBody,
    models.PlanBody,
    models.PlanLimits,
    compat_models.PolicyBody,
    compat_models.PolicyNumbers,
    models.Problem,
    SimulateBody,
    models.RuleBody,
    models.TierBody,
)


class OpenApiDocument:
    """The document, generated on the first request: that is slow, and most workers never need it."""

    def __init__(self, app: FastAPI) -> None:
        self._app = app
        self._lock = Lock()
        self._data: dict[str, Any] | None = None

    def data(self) -> dict[str, Any]:
        with self._lock:
            if self._data is None:
                self._data = _generate(self._app)
            return self._data


def _generate(app: FastAPI) -> dict[str, Any]:
    data = get_openapi(
        title=app.title,
        version=app.version,
        openapi_version="3.1.0",
        summary="Rate limiting for programs in any language.",
        description=ABOUT,
        routes=app.routes,
        tags=TAGS,
        license_info={"name": "Apache-2.0", "identifier": "Apache-2.0"},
    )
    for path, item in data["paths"].items():
        for method, operation in item.items():
            _correct_operation("read" if method == "get" or path in READ_CALLS else "write", operation)
    data["paths"].update(DATA_PATHS)
    _, models_schema = models_json_schema(
        [(model, "validation") for model in (*BODIES, *CHECK_MODELS, *ENVOY_MODELS, *EXPLAIN_MODELS, *KEY_MODELS)],
        ref_template="#/components/schemas/{model}",
    )
    schemas = data["components"]["schemas"]
    schemas.update(models_schema["$defs"])
    schemas.update(check_schemas())
    for unused in ("HTTPValidationError", "ValidationError"):
        schemas.pop(unused, None)
    data["components"]["schemas"] = dict(sorted(schemas.items()))
    data["components"]["securitySchemes"] = SCHEMES
    return data


def _correct_operation(scope: str, operation: dict[str, Any]) -> None:
    """Add scope and security, and correct FastAPI's assumptions: invalid parameters are 400, never 422, and none is
    ever null."""
    operation["description"] += f"\n\nNeeds scope `{scope}`."
    operation["responses"].pop("422", None)
    operation["responses"] = dict(sorted(operation["responses"].items()))
    operation["security"] = EITHER
    for parameter in operation.get("parameters", ()):
        schema = parameter["schema"]
        given = [one for one in schema.pop("anyOf", ()) if one != {"type": "null"}]
        parameter["schema"] = {**schema, **(given[0] if given else {})}
        for redundant in ("title", "description"):
            parameter["schema"].pop(redundant, None)
