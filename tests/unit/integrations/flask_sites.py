"""Flask applications with limits on virtual time, and how many requests pass them."""

from __future__ import annotations

from typing import Any

from flask import Flask
from werkzeug.test import TestResponse

from crestgate.integrations.flask import Crestgate
from unit.integrations.wsgi_calls import CLIENT, limiter_on

__all__ = ["get", "passes", "site", "statuses"]


def site(**options: Any) -> tuple[Flask, Crestgate]:
    """An application, and the extension with its own limiter."""
    app = Flask("site", root_path="/nowhere", static_folder=None)
    options.setdefault("limiter", limiter_on())
    return app, Crestgate(app, **options)


def get(app: Flask, path: str, method: str = "GET", peer: str = CLIENT, **more: Any) -> TestResponse:
    return app.test_client().open(path, method=method, environ_base={"REMOTE_ADDR": peer}, **more)


def statuses(app: Flask, path: str, times: int, method: str = "GET", peer: str = CLIENT, **more: Any) -> list[int]:
    return [get(app, path, method, peer, **more).status_code for _ in range(times)]


def passes(app: Flask, path: str, times: int = 10, **more: Any) -> int:
    """How many of `times` requests are not denied."""
    return sum(status != 429 for status in statuses(app, path, times, **more))
