"""The control plane in one process, called as over HTTP: real rules in SQLite, counters in memory on virtual time.

Every answer of every test is held against the OpenAPI: its status must be described, and its body must be as it says.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, MutableMapping, Sequence
from functools import cache
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import httpx
import schemathesis

from flaky_store import Flaky
from headgate import AsyncLimiter, Decision, RequestContext
from headgate.config.settings import Settings
from headgate.history.opening import open_history
from headgate.locks.opening import open_locks
from headgate.rules.catalog import Catalog
from headgate.rules.repositories.files import FileRepository
from headgate.rules.repositories.opening import open_repository
from headgate.service.auth.keys import Caller
from headgate.service.control.api import make_control
from headgate.service.neighbours import Neighbours
from headgate.service.observe.board import Board
from headgate.service.observe.tally import Tally
from headgate.service.parts import Parts, Visit

__all__ = ["Control", "problems"]

NEVER = 3600.0


class Control:
    """A worker's control plane, and a client of it."""

    def __init__(self, folder: Path, files: Sequence[str] = ()) -> None:
        self.runner = asyncio.Runner()
        self.store = Flaky()
        self.clock = self.store.clock
        self.clock.advance(time.time() - self.clock.now())  # from the database's time on
        url = f"sqlite:///{folder / 'rules.db'}"
        (folder / "rules.db").write_bytes(_empty_database())
        paths = []
        for number, text in enumerate(files):
            path = folder / f"{number}.yaml"
            path.write_text(text)
            paths.append(str(path))
        self.repository = open_repository(url)
        catalog = Catalog([FileRepository(paths), self.repository], NEVER)
        self.board_folder = folder / "boards"
        self.parts = Parts(
            settings=Settings(rules_store=url),
            limiter=AsyncLimiter(self.store, catalog=catalog),
            repository=self.repository,
            locks=open_locks(url),
            history=open_history(url),
            tally=Tally(),
            board=Board(self.board_folder, 0),
            neighbours=Neighbours(str(folder), 0),
            store_titles=("memory", "SQLite"),
            started_us=self.clock.ticks(),
        )
        self.app = make_control(self.parts, self.clock.ticks)
        self.described = _described(self.app.openapi)
        self.http = httpx.AsyncClient(transport=httpx.ASGITransport(self._behind_guard), base_url="http://headgate")

    async def _behind_guard(self, scope: MutableMapping[str, Any], receive: Any, send: Any) -> None:
        scope["headgate"] = Visit(Caller("ops", "write", "0" * 12), "10.1.2.3", "request-1")
        await self.app(scope, receive, send)

    def call(self, method: str, path: str, body: Any = None, **options: Any) -> httpx.Response:
        if body is not None:
            options["json"] = body
        response = self.runner.run(self.http.request(method, path, **options))
        self.hold_against_openapi(response)
        return response

    def get(self, path: str, **options: Any) -> httpx.Response:
        return self.call("GET", path, **options)

    def post(self, path: str, body: Any = None, **options: Any) -> httpx.Response:
        return self.call("POST", path, body, **options)

    def put(self, path: str, body: Any = None, **options: Any) -> httpx.Response:
        return self.call("PUT", path, body, **options)

    def delete(self, path: str, body: Any = None, **options: Any) -> httpx.Response:
        return self.call("DELETE", path, body, **options)

    def check(self, **context: Any) -> Decision:
        """Consume, as a check does."""
        return self.runner.run(self.parts.limiter.check_request(RequestContext(**context)))

    def actions(self) -> list[str]:
        """What the audit log has, the oldest first."""
        entries = self.get("/api/v1/audit").json()["entries"]
        return [f"{entry['action']} {entry['subject']}" for entry in reversed(entries)]

    def close(self) -> None:
        self.runner.run(self.http.aclose())
        self.runner.run(self.parts.limiter.aclose())
        self.parts.catalog.close()
        self.parts.locks.close()
        self.parts.history.close()
        self.runner.close()

    def hold_against_openapi(self, response: httpx.Response) -> None:
        if response.status_code >= 400:
            assert response.headers["content-type"] == "application/problem+json"
            told = response.json()
            assert told["status"] == response.status_code
            assert told["error"] == told["title"]
            assert told["message"] == told["detail"] != ""
        operation = self.described.find_operation_by_path(response.request.method, response.request.url.path)
        if operation is None:
            return
        assert str(response.status_code) in operation.definition.raw["responses"], "an answer that is not described"
        operation.validate_response(response)


@cache
def _empty_database() -> bytes:
    """A database with all its tables, made once for all tests."""
    with TemporaryDirectory() as folder:
        path = Path(folder, "rules.db")
        open_repository(f"sqlite:///{path}").close()
        return path.read_bytes()


def _described(openapi: Callable[[], dict[str, Any]], made: list[Any] = []) -> Any:  # noqa: B006 - to remember it
    """The description, made once for all tests: it is the same in every worker."""
    if not made:
        made.append(schemathesis.openapi.from_dict(openapi()))
    return made[0]


def problems(response: httpx.Response) -> dict[str, str]:
    """The mistakes that an answer tells, by field."""
    assert response.status_code == 400, response.text
    return {entry["field"]: entry["message"] for entry in response.json()["problems"]}
