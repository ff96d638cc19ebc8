"""The Request and Response over those of Flask, and the errors for Flask's error handlers."""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING, Any

import flask
from werkzeug.exceptions import TooManyRequests

from crestgate.core.decision import Decision
from crestgate.errors import RateLimitExceeded
from crestgate.http.problem import exceeded
from crestgate.integrations.denial import default_denial
from crestgate.integrations.request import Response, encode_headers
from crestgate.integrations.wsgi import WsgiRequest

if TYPE_CHECKING:
    from _typeshed.wsgi import WSGIEnvironment

__all__ = ["Denied", "FlaskRequest", "FlaskResponse", "RateLimited", "template_of"]


class FlaskRequest(WsgiRequest):
    """A Flask request. All other attributes are those of `flask.request`: `request.args`…"""

    __slots__ = ()

    @property
    def environ(self) -> WSGIEnvironment:
        environ: WSGIEnvironment = self.native.environ
        return environ

    @property
    def route(self) -> str | None:
        return template_of(self.native)

    @property
    def principal(self) -> str | None:
        """The user of Flask-Login, if it is used; otherwise use `user=`. A name that was not verified (in an HTTP
        Authorization header) is not used."""
        module = sys.modules.get("flask_login")
        if module is None or not hasattr(flask.current_app, "login_manager"):
            return None
        user = module.current_user
        if not user or not user.is_authenticated:
            return None
        name = user.get_id()
        return None if name is None else str(name)


class FlaskResponse(Response):
    """A Flask response, which is its `native`."""

    __slots__ = ("native",)

    def __init__(self, native: flask.Response) -> None:
        super().__init__(native.status_code, encode_headers(native.headers))
        self.native = native


class Denied(TooManyRequests):
    """A denial as an HTTP error, for `@app.errorhandler(429)`. Its response is a JSON problem document."""

    def __init__(self, decision: Decision) -> None:
        TooManyRequests.__init__(self, exceeded(decision)["detail"])  # may be shown to clients: it contains no key
        self.decision = decision

    def get_body(self, environ: WSGIEnvironment | None = None, scope: dict[str, Any] | None = None) -> str:
        return default_denial(self.decision).body.decode()

    def get_headers(
        self, environ: WSGIEnvironment | None = None, scope: dict[str, Any] | None = None
    ) -> list[tuple[str, str]]:
        return [("Content-Type", default_denial(self.decision).content_type)]


class RateLimited(RateLimitExceeded, Denied):
    """The extension's denial: handlers of 429, of HTTPException and of RateLimitExceeded catch it."""

    def __init__(self, decision: Decision) -> None:
        Denied.__init__(self, decision)
        self.args = (decision,)


def template_of(request: flask.Request) -> str | None:
    """The rule of the request, with the prefixes of its blueprint and of the application."""
    rule = request.url_rule
    if rule is None:
        return None
    host = rule.host or rule.subdomain
    path = request.environ.get("SCRIPT_NAME", "").rstrip("/") + rule.rule
    return f"//{host}{path}" if host else path
