"""What a caller is told when something came up, over HTTP and gRPC alike, and what the log then has."""

from __future__ import annotations

from typing import Final

from headgate.errors import HeadgateError
from headgate.http.problem import problem_of
from headgate.service.asgi import BadRequest, Call
from headgate.service.request_log import RequestLog

__all__ = ["WRONG_HERE", "told_of"]

WRONG_HERE: Final = "something went wrong here: the log says what, under this request id"


def told_of(call: Call, error: Exception, log: RequestLog) -> BadRequest:
    """An error as its caller is told it; a mistake of ours is told as one, and nothing of its inside."""
    if isinstance(error, BadRequest):
        return error
    if isinstance(error, HeadgateError):
        status, detail, more = problem_of(error)
        log.failed(call, error)
        return BadRequest(status, detail, **more)
    log.unforeseen(call, error)
    return BadRequest(500, WRONG_HERE)
