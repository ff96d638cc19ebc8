"""A Flask request and response as limits see them, and the denial as Flask's error handlers see it."""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING, Any

import flask
from werkzeug.exceptions import TooManyRequests

from crestgate.core.decision import Decision
from crestgate.errors import RateLimitExceeded
from crestgate.http.problem import exceeded
from crestgate.integrations.denial import default_denial
from crestgate.integrations.request import Response
from crestgate.integrations.wsgi import WsgiRequest

if TYPE_CHECKING:
    from _typeshed.wsgi import WSGIEnvironment

__all__ = ["Denied", "FlaskRequest", "FlaskResponse", "RateLimited", "template_of"]


class FlaskRequest(WsgiRequest):
    """A request of Flask's, `native`. All that limits do not ask for is `flask.request`'s own: `request.args`…"""

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
        """Who is logged in by Flask-Login, where that is in use. Others say `user=`: a name that a request only claims
        to be (HTTP authentication that nobody has checked) is nobody's."""
        module = sys.modules.get("flask_login")
        if module is None or not hasattr(flask.current_app, "login_manager"):
            return None
        user = module.current_user
        if not user or not user.is_authenticated:
            return None
        name = user.get_id()
        return None if name is None else str(name)


class FlaskResponse(Response):
    """A response of Flask's; `native` is that response itself."""

    __slots__ = ("native",)

    def __init__(self, native: flask.Response) -> None:
        raw = [(name.lower().encode("latin-1"), value.encode("latin-1", "replace")) for name, value in native.headers]
        super().__init__(native.status_code, raw)
        self.native = native


class Denied(TooManyRequests):
    """A denial as an HTTP error, for `@app.errorhandler(429)`; as a response it is the problem as JSON."""

    def __init__(self, decision: Decision) -> None:
        TooManyRequests.__init__(self, exceeded(decision)["detail"])  # which people show: it names no key
        self.decision = decision

    def get_body(self, environ: WSGIEnvironment | None = None, scope: dict[str, Any] | None = None) -> str:
        return default_denial(self.decision).body.decode()

    def get_headers(
        self, environ: WSGIEnvironment | None = None, scope: dict[str, Any] | None = None
    ) -> list[tuple[str, str]]:
        return [("Content-Type", default_denial(self.decision).content_type)]


class RateLimited(RateLimitExceeded, Denied):
    """A denial as the extension raises it: handlers of 429, of HTTPException and of RateLimitExceeded all know it."""

    def __init__(self, decision: Decision) -> None:
        Denied.__init__(self, decision)
        self.args = (decision,)


def template_of(request: flask.Request) -> str | None:
    """The rule that the request has matched, below what its blueprint and the whole application stand under."""
    rule = request.url_rule
    if rule is None:
        return None
    host = rule.host or rule.subdomain
    path = request.environ.get("SCRIPT_NAME", "").rstrip("/") + rule.rule
    return f"//{host}{path}" if host else path
