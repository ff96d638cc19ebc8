"""The application of contract.py in FastAPI: routes have limits by the decorator, above the route's."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from integration.frameworks.apps import fastapi_app
from integration.frameworks.contract import Setup

__all__ = ["HAS_ROUTES", "serve"]

HAS_ROUTES = True


@contextmanager
def serve(setup: Setup) -> Iterator[str]:
    with fastapi_app.serve(setup, fastapi_app.decorator_above) as url:
        yield url
