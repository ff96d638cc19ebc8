"""The application of contract.py in FastAPI: limits of routes are dependencies."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from integration.frameworks.apps import fastapi_app
from integration.frameworks.contract import Setup

__all__ = ["HAS_ROUTES", "serve"]

HAS_ROUTES = True


@contextmanager
def serve(setup: Setup) -> Iterator[str]:
    with fastapi_app.serve(setup, fastapi_app.as_dependency) as url:
        yield url
