"""The OpenAPI description of the whole service: what the framework serves, and what is answered before it."""

from __future__ import annotations

from threading import Lock
from typing import Any

from fastapi import FastAPI
from fastapi.openapi.utils import get_openapi
from pydantic import BaseModel
from pydantic.json_schema import models_json_schema

from headgate.service.control import family_models, models
from headgate.service.control.check_models import SHAPES
from headgate.service.control.data_plane import DATA_PATHS
from headgate.service.control.envoy_models import ENVOY_SHAPES

__all__ = ["Description"]

ABOUT = """\
Headgate answers "may this request pass?" and is told the rules by which it does.

**Who may.** Checks are open on loopback unless configured otherwise; all else needs a key, as `Authorization: Bearer …`
or `X-API-Key`. Scope `check` asks for decisions, `read` also looks at rules, counters and the audit log, `write` also
changes them. Keys are made with `headgate keys create`.

**Errors** are `application/problem+json` everywhere. Unknown fields, wrong types and broken JSON are 400, and
`problems` names every field at once.

**Lists** are paged: `limit` (1 to 1,000) and `after`. The families `/admin` and `/ratelimiter` answer plain lists and
say in a `Link` header where they go on.

**Names in paths** may have any characters; a slash is written as `%2F`, or as it is.
"""
TAGS = [
    {"name": "checks", "description": "Decisions: may this request pass?"},
    {"name": "rules", "description": "Limits, and whom and what they are for."},
    {"name": "plans", "description": "Limits under a name, chained on one key."},
    {"name": "users", "description": "What holds for one user: effective limits, tier, overrides."},
    {"name": "audit", "description": "Who changed what."},
    {"name": "statistics", "description": "Usage per minute (30 days) and per hour (a year)."},
    {"name": "policies", "description": "One limit for one opaque key, and how keys stand."},
    {"name": "clients", "description": "Token buckets of clients: for all they do, for an API, for a method."},
    {"name": "service", "description": "Health and metrics."},
]
SCHEMES = {
    "bearer": {"type": "http", "scheme": "bearer", "description": "A key, as `headgate keys create` shows it."},
    "apiKey": {"type": "apiKey", "in": "header", "name": "X-API-Key", "description": "The same key in another header."},
    "headgateKey": {
        "type": "apiKey",
        "in": "header",
        "name": "X-Headgate-Key",
        "description": "The key of a proxy that asks about somebody else's request.",
    },
}
EITHER: list[dict[str, list[str]]] = [{"bearer": []}, {"apiKey": []}]
BODIES: tuple[type[BaseModel], ...] = (
    family_models.Configuration,
    family_models.LimitNames,
    models.Override,
    models.PlanBody,
    models.PlanLimits,
    family_models.PolicyBody,
    family_models.PolicyNumbers,
    models.Problem,
    models.RuleBody,
    models.TierBody,
)


class Description:
    """The description, made when it is first asked for: that takes a moment, and most workers never are."""

    def __init__(self, app: FastAPI) -> None:
        self._app = app
        self._lock = Lock()
        self._data: dict[str, Any] | None = None

    def data(self) -> dict[str, Any]:
        with self._lock:
            if self._data is None:
                self._data = _described(self._app)
            return self._data


def _described(app: FastAPI) -> dict[str, Any]:
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
    for item in data["paths"].values():
        for method, operation in item.items():
            _mend(method, operation)
    data["paths"].update(DATA_PATHS)
    _, shapes = models_json_schema(
        [(model, "validation") for model in (*BODIES, *SHAPES, *ENVOY_SHAPES)],
        ref_template="#/components/schemas/{model}",
    )
    schemas = data["components"]["schemas"]
    schemas.update(shapes["$defs"])
    for unused in ("HTTPValidationError", "ValidationError"):
        schemas.pop(unused, None)
    data["components"]["schemas"] = dict(sorted(schemas.items()))
    data["components"]["securitySchemes"] = SCHEMES
    return data


def _mend(method: str, operation: dict[str, Any]) -> None:
    """What the framework does not know, and what it adds by itself and is not so here: parameters that cannot be used
    are 400, never 422, and none is ever null."""
    operation["description"] += f"\n\nNeeds scope `{'read' if method == 'get' else 'write'}`."
    operation["responses"].pop("422", None)
    operation["responses"] = dict(sorted(operation["responses"].items()))
    operation["security"] = EITHER
    for parameter in operation.get("parameters", ()):
        schema = parameter["schema"]
        given = [one for one in schema.pop("anyOf", ()) if one != {"type": "null"}]
        parameter["schema"] = {**schema, **(given[0] if given else {})}
        for told in ("title", "description"):
            parameter["schema"].pop(told, None)
