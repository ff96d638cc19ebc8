"""A fake service: responds as the API is documented, from memory, and records the requests."""

from __future__ import annotations

import json
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from threading import Thread
from typing import Any
from urllib.parse import parse_qsl, unquote, urlsplit

from crestgate.http.problem import problem
from crestgate.rules.rule import Rule

__all__ = ["TOKEN", "FakeService", "fake_service"]

TOKEN = "cg_0123456789ab_" + "k" * 43
CREATED_US = 1_700_000_000_000_000


class FakeService:
    """The state of the service, and the requests it received."""

    def __init__(self) -> None:
        self.url = ""
        self.rules: dict[str, Rule] = {}
        self.plans: dict[str, list[str]] = {}
        self.requests: list[tuple[str, str, Any]] = []
        """Method, path and body of each call."""
        self.headers: list[dict[str, str]] = []
        self.responses: list[tuple[int, Any]] = []
        """Overrides of the next responses: a status, and data or bytes."""
        self.page = 1000

    def put(self, data: dict[str, Any], version: int = 1, created_us: int | None = CREATED_US) -> Rule:
        rule = Rule.stored(data, version, created_us, created_us)
        self.rules[rule.rule_id] = rule
        return rule

    def respond(self, method: str, path: str, query: dict[str, str], body: Any, headers: dict[str, str]) -> Any:
        """A status and data."""
        if self.responses:
            return self.responses.pop(0)
        if headers.get("authorization") != f"Bearer {TOKEN}":
            return refusal(401, "API key required: send it as `Authorization: Bearer …`, or in X-API-Key")
        if path.startswith("/api/v1/rules"):
            return self._rules(method, unquote(path[len("/api/v1/rules") :]).removeprefix("/"), query, body, headers)
        if path == "/admin/policies" and method == "POST":
            return 201, {**body, "policyKey": body["key"], "id": 7}
        if path.startswith("/api/v1/plans"):
            return self._plans(method, unquote(path[len("/api/v1/plans") :]).removeprefix("/"), query, body)
        return refusal(404, f"there is nothing at {path}")

    def _rules(self, method: str, rule_id: str, query: dict[str, str], body: Any, headers: dict[str, str]) -> Any:
        if not rule_id and method == "GET":
            names = [name for name in sorted(self.rules) if name > query.get("after", "")]
            page = names[: min(int(query["limit"]), self.page)]
            more = page[-1] if len(page) < len(names) else None
            return 200, {"rules": [self.rules[name].to_data() for name in page], "next": more}
        if method == "POST":
            made = Rule.read(body)
            if made.rule_id in self.rules:
                return refusal(409, f"rule {made.rule_id!r} already exists: change it, or use another name")
            return 201, self.put(body).to_data()
        rule = self.rules.get(rule_id)
        if rule is None:
            return refusal(404, f"there is no rule {rule_id!r}")
        if headers.get("if-match") not in (None, f'"{rule.version}"'):
            return refusal(412, f"rule {rule_id!r} is at version {rule.version}: read it again")
        if method == "PUT":
            return 200, self.put(body, rule.version + 1).to_data()
        if method == "DELETE":
            del self.rules[rule_id]
            return 204, b""
        return 200, rule.to_data()

    def _plans(self, method: str, name: str, query: dict[str, str], body: Any) -> Any:
        if not name and method == "GET":
            names = [one for one in sorted(self.plans) if one > query.get("after", "")]
            return 200, {"plans": [{"name": one, "limits": self.plans[one]} for one in names], "next": None}
        self.plans[name or body["name"]] = body["limits"]
        return (200 if name else 201), {"name": name or body["name"], "limits": body["limits"]}


def refusal(status: int, detail: str, **more: Any) -> tuple[int, Any]:
    return status, problem(status, detail, **more)


@contextmanager
def fake_service() -> Iterator[FakeService]:
    """On a free port."""
    service = FakeService()

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            parts = urlsplit(self.path)
            text = self.rfile.read(int(self.headers.get("content-length", 0)))
            body = json.loads(text) if text else None
            headers = {name.lower(): value for name, value in self.headers.items()}
            service.requests.append((self.command, self.path, body))
            service.headers.append(headers)
            status, data = service.respond(self.command, parts.path, dict(parse_qsl(parts.query)), body, headers)
            raw = data if isinstance(data, bytes) else json.dumps(data).encode()
            self.send_response(status)
            if 300 <= status < 400:
                self.send_header("Location", "http://127.0.0.1:1/elsewhere")
            if status != 204:
                self.send_header("Content-Length", str(len(raw)))
            self.end_headers()
            self.wfile.write(raw)

        do_POST = do_PUT = do_DELETE = do_GET

        def log_message(self, *_: Any) -> None:
            """Suppressed: requests are recorded."""

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    service.url = f"http://127.0.0.1:{server.server_address[1]}"
    thread = Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01}, daemon=True)
    thread.start()
    try:
        yield service
    finally:
        server.shutdown()
        server.server_close()
        thread.join()
