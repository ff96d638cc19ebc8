"""A client of a worker without sockets: its commands go through the parser, its replies through a Redis client's."""

from __future__ import annotations

from typing import Any

import hiredis

from crestgate.config.settings import Logs
from crestgate.service.auth.guard import required_check_scope
from crestgate.service.observability.request_log import RequestLog
from crestgate.service.resp.parser import Parser
from crestgate.service.resp.turn import MAX_TURN_COMMANDS, WAITS, RespService, Turn
from unit.service.worker import PEER, Worker

__all__ = ["Client", "ReplyError", "encode", "service_of"]


class ReplyError(Exception):
    """An error as a reply."""


def service_of(worker: Worker, logs: Logs | None = None) -> RespService:
    server = worker.parts.settings.server
    address = server.resp or server.http
    return RespService(worker.checks, worker.guard, required_check_scope(server, address), RequestLog(logs or Logs()))


def encode(*arguments: object) -> bytes:
    """A command as clients send it."""
    data = [one if isinstance(one, bytes) else str(one).encode() for one in arguments]
    return b"*%d\r\n" % len(data) + b"".join(b"$%d\r\n%b\r\n" % (len(one), one) for one in data)


class Client:
    """One connection."""

    def __init__(self, worker: Worker, service: RespService | None = None) -> None:
        self.worker = worker
        self.service = service_of(worker) if service is None else service
        self.session = self.service.open_session(PEER)
        self._reader = hiredis.Reader(replyError=ReplyError, encoding="utf-8")

    def call(self, *arguments: object) -> Any:
        """The reply to a command; ReplyError is raised."""
        (reply,) = self.pipeline([arguments])
        if isinstance(reply, ReplyError):
            raise reply
        return reply

    def error(self, *arguments: object) -> str:
        """The error that a command is answered with."""
        (reply,) = self.pipeline([arguments])
        assert isinstance(reply, ReplyError), reply
        return str(reply)

    def pipeline(self, commands: list[tuple[object, ...]]) -> list[Any]:
        """The replies to commands that come together."""
        parser = Parser()
        parser.feed(b"".join(encode(*command) for command in commands))
        while parser.has_more:
            self._reader.feed(self.worker.runner.run(self._answer(parser.read(MAX_TURN_COMMANDS))))
        replies = []
        while (reply := self._reader.gets()) is not False:
            replies.append(reply)
        return replies

    async def _answer(self, commands: list[list[bytes]]) -> bytes:
        turn = Turn(self.service, self.session, commands)
        while state := turn.advance():
            if state == WAITS:
                await turn.wait()
        return b"".join(turn.replies)
