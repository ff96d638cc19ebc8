"""The dashboard in one process, behind the router: rules in SQLite, counters in memory on virtual time."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any
from urllib.parse import urlencode

import httpx

from crestgate import Limiter
from crestgate.rules.port import Actor
from crestgate.service.admin.api import ADMIN_PATHS, create_admin_app
from crestgate.service.auth.guard import CheckCeiling, Guard
from crestgate.service.auth.keys import ApiKeys, Scope, create_key, revoke_key
from crestgate.service.auth.log_outs import LogOuts
from crestgate.service.auth.sessions import COOKIE, Sessions
from crestgate.service.checks.envoy import EnvoyService
from crestgate.service.checks.service import CheckService
from crestgate.service.dashboard.app import DASHBOARD_PATHS, create_dashboard
from crestgate.service.http.router import Router
from crestgate.service.observability.health import Health
from crestgate.service.observability.request_log import RequestLog
from crestgate.stores.store_group import StoreGroup
from unit.service.admin.admin_client import Control

__all__ = ["ADMIN_KEY", "COOKIE", "Dashboard"]

ADMIN_KEY = "correct-horse-battery-staple"
HTML = {"accept": "text/html", "host": "localhost"}


class Dashboard:
    """A worker's dashboard, and a browser without script."""

    def __init__(self, folder: Path, files: tuple[str, ...] = (), group: StoreGroup | None = None) -> None:
        self.control = Control(folder, files, group=group)
        parts, clock = self.control.parts, self.control.clock
        self.node = Limiter("memory://", clock=clock)
        self.keys = ApiKeys(lambda: parts.catalog.keys, ADMIN_KEY)
        self.guard = Guard(self.keys, parts.settings.server, self.node, clock.ticks)
        self.log_outs = LogOuts(parts.repository, lambda: parts.catalog.keys, parts.announce_write)
        self.sessions = Sessions(parts.token_key, self.keys, self.node, self.log_outs, clock.ticks)
        self.checks = CheckService(parts, CheckCeiling(parts.settings.server.limits.checks, self.node), None)
        self.health = Health(parts.limiter, parts.repository)
        self.app = create_dashboard(parts, self.guard, self.sessions, self.checks, self.health, clock.ticks)
        self.router = Router(
            parts,
            self.guard,
            self.checks,
            EnvoyService(self.checks, None),
            create_admin_app(parts, clock.ticks),
            {},
            None,
            RequestLog(parts.settings.logs),
            ADMIN_PATHS,
            self.app,
            DASHBOARD_PATHS,
        )
        transport = httpx.ASGITransport(self.router, client=("192.0.2.1", 1))
        self.http = httpx.AsyncClient(transport=transport, base_url="http://localhost", headers=HTML)

    def request(self, method: str, path: str, **options: Any) -> httpx.Response:
        return self.control.runner.run(self.http.request(method, path, **options))

    def get(self, path: str, **options: Any) -> httpx.Response:
        return self.request("GET", path, **options)

    def post(self, path: str, fields: dict[str, str] | None = None, *, token: bool = True, **headers: str) -> Any:
        """Send a form, with the token of the session unless told otherwise."""
        sent = dict(fields or {})
        if token:
            sent["form_token"] = self.form_token()
        content = {"content-type": "application/x-www-form-urlencoded", "origin": "http://localhost"}
        named = {name.replace("_", "-"): value for name, value in headers.items()}
        return self.request("POST", path, content=urlencode(sent), headers={**content, **named})

    def form_token(self) -> str:
        session = self.sessions.find(self.http.cookies.get(COOKIE) or "")
        return "" if session is None else session.form_token

    def log_in(self, key: str = ADMIN_KEY) -> httpx.Response:
        response: httpx.Response = self.post("/login", {"key": key}, token=False)
        return response

    def key(self, scope: Scope) -> str:
        """The token of a new key."""
        token = create_key(self.control.repository, Actor("test"), f"{scope} key", scope)[1]
        self.control.parts.catalog.refresh()
        return token

    def revoke(self, token: str) -> None:
        revoke_key(self.control.repository, Actor("test"), token.split("_")[1])
        self.control.parts.catalog.refresh()

    def rule(self, **fields: Any) -> None:
        body = {"dimension": "user", "limit": 3, "window_seconds": 60, **fields}
        assert self.control.post("/api/v1/rules", body).status_code == 201

    def close(self) -> None:
        self.control.runner.run(self.http.aclose())
        self.node.close()
        self.control.close()


def text_of(response: httpx.Response) -> str:
    """The text of a page, without its tags."""
    return re.sub(r"\s+", " ", re.sub(r"<[^>]+>", " ", response.text))
