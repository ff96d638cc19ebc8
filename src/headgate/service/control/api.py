"""The control plane as one ASGI application. Who may call it has been decided before it is reached."""

from __future__ import annotations

import time
from collections.abc import Callable
from functools import cache
from typing import TYPE_CHECKING

from fastapi import Depends, FastAPI
from starlette.responses import HTMLResponse, RedirectResponse, Response

import headgate
from headgate.service.control import audit, clients, plans, policies, rules, stats, users
from headgate.service.control.asking import check_path
from headgate.service.control.desk import Desk
from headgate.service.control.docs_page import POLICY, docs_page
from headgate.service.control.errors import LastResort, add_error_handlers
from headgate.service.control.head import HeadAsGet
from headgate.service.control.openapi import Description
from headgate.service.control.saying import answer
from headgate.service.parts import Parts

if TYPE_CHECKING:
    from fastapi.telemetry import TelemetryConfig

__all__ = ["make_control"]

UNTOLD: TelemetryConfig = {
    "tracing": False,
    "metrics": False,
    "logs": False,
    "operation_spans": False,
    "auto_configure": False,
}
"""The framework would tell OpenTelemetry whole paths and bodies, with keys and names in them, where a provider is set
up. What the service tells is its own, and only where that is switched on: see observe/tracing.py."""


def make_control(parts: Parts, now_us: Callable[[], int] = lambda: time.time_ns() // 1000) -> FastAPI:
    """The application. Behind it are threads: whatever waits for a database does so in one of them."""
    app = FastAPI(
        title="Headgate",
        version=headgate.__version__,
        docs_url=None,  # the framework's own page loads scripts from elsewhere, which a closed network does not have
        redoc_url=None,
        openapi_url=None,
        redirect_slashes=False,
        dependencies=[Depends(check_path)],
        telemetry=UNTOLD,
        generate_unique_id_function=lambda route: route.name,  # the names of functions differ, and are for people
    )
    app.state.desk = Desk(parts, now_us)
    for family in (rules, plans, users, audit, stats, policies, clients):
        app.include_router(family.router)
    _add_pages(app)
    add_error_handlers(app)
    app.add_middleware(LastResort)
    app.add_middleware(HeadAsGet)
    return app


def _add_pages(app: FastAPI) -> None:
    """The description of all that can be called, for programs and for people."""
    description = Description(app)
    app.openapi = description.data  # type: ignore[method-assign]  # which is how the framework lets it be replaced

    @cache
    def encoded() -> bytes:  # once: anybody may ask for it, as often as they like
        return bytes(answer(description.data()).body)

    @cache
    def page() -> bytes:
        return docs_page(description.data()).encode()

    @app.get("/openapi.json", include_in_schema=False)
    def openapi() -> Response:
        return Response(encoded(), media_type="application/json")

    @app.get("/docs", include_in_schema=False)
    def docs() -> Response:
        return HTMLResponse(page(), headers={"Content-Security-Policy": POLICY})

    @app.get("/", include_in_schema=False)
    async def start() -> Response:
        return RedirectResponse("/docs")
