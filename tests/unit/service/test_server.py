"""A stopping worker reports the shutdown before it ends."""

from __future__ import annotations

import signal

import uvicorn

from crestgate.service.grpc.transport.listener import GrpcListener
from crestgate.service.worker import UvicornServer


async def unused_app(scope: object, receive: object, send: object) -> None:
    """An ASGI application that is never called."""


def test_readiness_reports_the_shutdown_immediately() -> None:
    events: list[str] = []
    server = UvicornServer(uvicorn.Config(unused_app), GrpcListener({}), 10, lambda: events.append("stopping"))
    server.handle_exit(signal.SIGTERM, None)
    assert events == ["stopping"]
    assert server.should_exit
    assert not server.force_exit
    server.handle_exit(signal.SIGINT, None)
    assert server.force_exit
