"""The admin API as one ASGI application. Callers are authorized before they reach it."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable
from functools import partial
from typing import TYPE_CHECKING, Any

from fastapi import Depends, FastAPI
from starlette.responses import Response, StreamingResponse
from starlette.routing import Route

import crestgate
from crestgate.service.admin import (
    audit,
    clients,
    keys,
    migration,
    plans,
    policies,
    rules,
    simulate,
    stats,
    status,
    users,
)
from crestgate.service.admin.context import AdminContext
from crestgate.service.admin.docs_page import POLICY, docs_page
from crestgate.service.admin.errors import UnhandledErrors, add_error_handlers
from crestgate.service.admin.head import HeadAsGet
from crestgate.service.admin.openapi import OpenApiDocument
from crestgate.service.admin.params import check_path
from crestgate.service.admin.responses import json_response
from crestgate.service.admin.swagger import SWAGGER_FILES, in_pieces, swagger_file, swagger_page
from crestgate.service.dependencies import Dependencies

if TYPE_CHECKING:
    from fastapi.telemetry import TelemetryConfig

__all__ = ["ADMIN_PATHS", "RenderedPage", "create_admin_app", "openapi_document"]

FAMILIES = (rules, simulate, plans, users, keys, audit, stats, status, migration, policies, clients)
ROUTERS = tuple(family.router for family in FAMILIES)
ADMIN_PATHS: tuple[str, ...] = tuple(
    {route.path.partition("/{")[0]: None for router in ROUTERS for route in router.routes if isinstance(route, Route)}
)
"""The paths of all endpoints, each up to its first parameter."""

NO_TELEMETRY: TelemetryConfig = {
    "tracing": False,
    "metrics": False,
    "logs": False,
    "operation_spans": False,
    "auto_configure": False,
}
"""FastAPI would export whole paths and bodies, with keys and names in them, to a configured OpenTelemetry provider. The
service exports its own spans, and only where that is enabled: see observability/tracing.py."""


def create_admin_app(dependencies: Dependencies, now_us: Callable[[], int] = lambda: time.time_ns() // 1000) -> FastAPI:
    """The application. Handlers that wait for a database run in threads."""
    app = _create_routes()
    app.state.context = AdminContext(dependencies, now_us)
    _add_pages(app)
    add_error_handlers(app)
    app.add_middleware(UnhandledErrors)
    app.add_middleware(HeadAsGet)
    return app


def openapi_document() -> dict[str, Any]:
    """The OpenAPI document of a service of this version, without one: it depends on no settings."""
    return OpenApiDocument(_create_routes()).data()


def _create_routes() -> FastAPI:
    app = FastAPI(
        title="Crestgate",
        version=crestgate.__version__,
        docs_url=None,  # the page of FastAPI loads scripts from a CDN, which a closed network cannot reach
        redoc_url=None,
        openapi_url=None,
        redirect_slashes=False,
        dependencies=[Depends(check_path)],
        telemetry=NO_TELEMETRY,
        generate_unique_id_function=lambda route: route.name,  # function names are unique and readable
    )
    for router in ROUTERS:
        app.include_router(router)
    return app


def _add_pages(app: FastAPI) -> None:
    """The OpenAPI document, and its HTML pages."""
    description = OpenApiDocument(app)
    app.openapi = description.data  # type: ignore[method-assign]  # as FastAPI documents it

    document = RenderedPage(lambda: bytes(json_response(description.data()).body))
    page = RenderedPage(lambda: docs_page(description.data()).encode())

    @app.get("/openapi.json", include_in_schema=False)
    async def openapi() -> Response:
        return Response(await document.body(), media_type="application/json")

    @app.get("/docs", include_in_schema=False)
    async def docs() -> Response:
        return swagger_page()

    @app.get("/docs/reference", include_in_schema=False)
    async def reference() -> Response:
        body = await page.body()
        headers = {"Content-Security-Policy": POLICY, "Content-Length": str(len(body))}
        return StreamingResponse(in_pieces(body), headers=headers, media_type="text/html")

    for name in SWAGGER_FILES:
        app.add_api_route(f"/docs/{name}", partial(_file, name), include_in_schema=False)


async def _file(name: str) -> Response:
    return swagger_file(name)


class RenderedPage:
    """A public page that is rendered in a thread on its first request, and only once: rendering is slow, and many
    clients may ask for it at the same time."""

    def __init__(self, render: Callable[[], bytes]) -> None:
        self._render = render
        self._rendering: asyncio.Future[bytes] | None = None

    async def body(self) -> bytes:
        if self._rendering is None:
            self._rendering = asyncio.ensure_future(asyncio.to_thread(self._render))
        return await asyncio.shield(self._rendering)  # a client that hangs up must not cancel it for the others
