"""A worker that is told to end says so before it does."""

from __future__ import annotations

import signal

import uvicorn

from crestgate.service.grpc.transport.listener import Listener
from crestgate.service.worker import Server


async def nobody(scope: object, receive: object, send: object) -> None:
    """An application that is never called."""


def test_readiness_reports_the_shutdown_at_once() -> None:
    told: list[str] = []
    server = Server(uvicorn.Config(nobody), Listener({}), 10, lambda: told.append("stopping"))
    server.handle_exit(signal.SIGTERM, None)
    assert told == ["stopping"]
    assert server.should_exit
    assert not server.force_exit
    server.handle_exit(signal.SIGINT, None)
    assert server.force_exit
