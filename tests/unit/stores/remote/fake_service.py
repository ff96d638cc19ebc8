"""A fake service that answers batches with the responses of a test, valid or not."""

from __future__ import annotations

import json
import socket
from collections.abc import Callable
from contextlib import suppress
from threading import Thread
from typing import Any

from crestgate.core.algorithms import build
from crestgate.core.limit import Limit
from crestgate.stores.port import Member, Op, Request
from crestgate.stores.remote.http_connection import ServiceAddress
from crestgate.stores.remote.store import ServiceStore

__all__ = ["FakeService", "good", "http", "take"]

Responder = Callable[[dict[str, Any], int], bytes | None]
"""The response to a request, from its body and number; None closes the connection."""


class FakeService:
    """Answers requests in order; `bodies` are those of the requests, `connections` counts accepted connections."""

    def __init__(self, respond: Responder) -> None:
        self.respond = respond
        self.bodies: list[dict[str, Any]] = []
        self.connections = 0
        self.callers: list[socket.socket] = []
        self.listening = socket.create_server(("127.0.0.1", 0))
        Thread(target=self.accept, daemon=True).start()

    def store(self, timeout_ms: int = 5000, pool_size: int = 1) -> ServiceStore:
        port = self.listening.getsockname()[1]
        return ServiceStore(ServiceAddress("127.0.0.1", port, "cg_secret"), timeout_ms=timeout_ms, pool_size=pool_size)

    def accept(self) -> None:
        with suppress(OSError):
            while True:
                caller, _ = self.listening.accept()
                self.connections += 1
                self.callers.append(caller)
                Thread(target=self.answer, args=(caller,), daemon=True).start()

    def answer(self, caller: socket.socket) -> None:
        with suppress(OSError), caller, caller.makefile("rb") as lines:
            while line := lines.readline():
                assert line == b"POST /api/v1/check/batch HTTP/1.1\r\n"
                headers = dict(header.lower().split(b": ", 1) for header in iter(lines.readline, b"\r\n"))
                assert headers[b"authorization"] == b"bearer cg_secret\r\n"
                self.bodies.append(json.loads(lines.read(int(headers[b"content-length"]))))
                response = self.respond(self.bodies[-1], len(self.bodies))
                if response is None:
                    return
                caller.sendall(response)

    def hang_up(self) -> None:
        """Close all connections, as a stopping service does."""
        for caller in self.callers:
            with suppress(OSError):
                caller.shutdown(socket.SHUT_RDWR)

    def close(self) -> None:
        self.listening.close()
        self.hang_up()


def http(status: int, body: bytes, *headers: str) -> bytes:
    lines = [f"HTTP/1.1 {status} Whatever", f"content-length: {len(body)}", *headers, "", ""]
    return "\r\n".join(lines).encode() + body


def numbers(**changed: Any) -> dict[str, Any]:
    return {"allowed": True, "remaining": 7, "wait": 0, "reset": 5, "reason": "ok", "tick": 3, "at": 0, **changed}


def good(body: dict[str, Any], *_: object) -> bytes:
    """The same numbers for every counter."""
    decisions = [{"counters": [numbers(at=at) for at in range(len(check["counters"]))]} for check in body["checks"]]
    return http(200, json.dumps({"decisions": decisions}).encode())


def take(key: str = "user:42", *names: str, op: Op = Op.TAKE) -> Request:
    return Request(op, [Member(key, build(Limit(10, 60), name), 1) for name in names or ("api",)])
