"""`/`: what is happening now, and in the last hour."""

from __future__ import annotations

import asyncio

from starlette.requests import Request
from starlette.responses import Response

from crestgate.service.dashboard.site import Site, page, show
from crestgate.service.dashboard.usage import read_hour

__all__ = ["ROUTES"]


async def overview(site: Site, request: Request) -> Response:
    dependencies = site.context.dependencies
    hour = await asyncio.to_thread(read_hour, dependencies.history, site.now_us())
    rules = dependencies.catalog.current
    return await show(
        site,
        request,
        "overview.html",
        hour=hour,
        rules=rules.rules,
        samples=site.feed.samples,
        store_titles=dependencies.store_titles,
    )


ROUTES = [page("/", overview)]
