# mypyc: compile
"""ASGI helpers: reading a body of limited size, and sending a response."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, MutableMapping
from typing import Any, TypeAlias, final

from crestgate.http.problem import CONTENT_TYPE, encode_problem, problem
from crestgate.service.context import Fields, Headers, Scope
from crestgate.service.errors import ApiError

__all__ = [
    "GONE",
    "MAX_BODY_BYTES",
    "PROBLEM",
    "App",
    "ClientGoneError",
    "HttpResponse",
    "Receive",
    "Send",
    "check_length",
    "problem_response",
    "read_rest",
    "response_messages",
]

Receive: TypeAlias = Callable[[], Awaitable[MutableMapping[str, Any]]]
Send: TypeAlias = Callable[[MutableMapping[str, Any]], Awaitable[None]]
App: TypeAlias = Callable[[Scope, Receive, Send], Awaitable[None]]

MAX_BODY_BYTES = 1024 * 1024
JSON = (b"content-type", b"application/json")
PROBLEM = (b"content-type", CONTENT_TYPE.encode())


class ClientGoneError(Exception):
    """The client went away before its request was complete."""


@final
class HttpResponse:
    """An HTTP response."""

    __slots__ = ("body", "content_type", "headers", "status")

    def __init__(
        self, status: int, body: bytes, headers: Headers = (), content_type: tuple[bytes, bytes] = JSON
    ) -> None:
        self.status = status
        self.body = body
        self.headers = headers
        self.content_type = content_type


GONE = HttpResponse(499, b"")
"""No response, since the client is gone; the status that logs and metrics have for it."""


def check_length(fields: Fields) -> None:
    """ApiError for a body that is announced as too large, before any of it is read."""
    length = fields.get(b"content-length")
    if length is not None and (len(length) > 7 or int(length) > MAX_BODY_BYTES):  # the parser has validated it
        raise too_large()


async def read_rest(message: MutableMapping[str, Any], receive: Receive) -> bytes:
    """All of a body whose first message is there; ApiError if it is too large, ClientGoneError if it is cut off."""
    chunks: list[bytes] = []
    size = 0
    while True:
        if message["type"] != "http.request":
            raise ClientGoneError
        body: bytes = message.get("body", b"")
        size += len(body)
        if size > MAX_BODY_BYTES:
            raise too_large()
        chunks.append(body)
        if not message.get("more_body", False):
            return b"".join(chunks)
        message = await receive()


def too_large() -> ApiError:
    # The connection stays open: many clients read no response before they have sent everything, and would only see it
    # broken. What they send on is read and dropped, for as long as a request may take.
    return ApiError(413, f"the body is larger than {MAX_BODY_BYTES:,} bytes: send less at once")


def problem_response(status: int, detail: str, headers: Headers = (), **more: Any) -> HttpResponse:
    """An error response: problem+json."""
    return HttpResponse(status, encode_problem(problem(status, detail, **more)), headers, PROBLEM)


def response_messages(response: HttpResponse, headers: Headers, method: str) -> list[dict[str, Any]]:
    """The ASGI messages of a response with further headers; to a HEAD without its body."""
    length = (b"content-length", b"%d" % len(response.body))
    return [
        {
            "type": "http.response.start",
            "status": response.status,
            "headers": [response.content_type, length, *response.headers, *headers],
        },
        {"type": "http.response.body", "body": b"" if method == "HEAD" else response.body},
    ]
