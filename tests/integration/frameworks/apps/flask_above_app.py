"""The application in Flask, with every limit above its route."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from integration.frameworks.apps.flask_app import HAS_ROUTES, application
from integration.frameworks.contract import Setup
from integration.frameworks.servers import serve_wsgi

__all__ = ["HAS_ROUTES", "serve"]


@contextmanager
def serve(setup: Setup) -> Iterator[str]:
    """The URL of the application."""
    with serve_wsgi(application(setup, above=True)) as url:
        yield url
