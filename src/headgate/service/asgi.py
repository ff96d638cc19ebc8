"""The few lines of ASGI that the service speaks itself: reading a body that is not too large, and answering."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping, MutableMapping, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple, TypeAlias

from headgate.http.problem import CONTENT_TYPE, encode_problem, problem

if TYPE_CHECKING:
    from headgate.service.parts import Visit

__all__ = [
    "GONE",
    "MOST_BODY_BYTES",
    "PROBLEM",
    "App",
    "BadRequest",
    "Call",
    "ClientGone",
    "Fields",
    "Headers",
    "Receive",
    "Reply",
    "Scope",
    "Send",
    "check_length",
    "messages_of",
    "read_rest",
    "refused",
]

Scope: TypeAlias = MutableMapping[str, Any]
Receive: TypeAlias = Callable[[], Awaitable[MutableMapping[str, Any]]]
Send: TypeAlias = Callable[[MutableMapping[str, Any]], Awaitable[None]]
App: TypeAlias = Callable[[Scope, Receive, Send], Awaitable[None]]
Headers: TypeAlias = Sequence[tuple[bytes, bytes]]
Fields: TypeAlias = Mapping[bytes, bytes]
"""The headers of a request by their lower-case names; of several with one name, the last."""

MOST_BODY_BYTES = 1024 * 1024
JSON = (b"content-type", b"application/json")
PROBLEM = (b"content-type", CONTENT_TYPE.encode())


class BadRequest(Exception):  # noqa: N818 - says what it is
    """A request that cannot be answered, and what to tell its sender."""

    def __init__(self, status: int, detail: str, headers: Headers = (), **more: Any) -> None:
        super().__init__(detail)
        self.status = status
        self.detail = detail
        self.headers = headers
        self.more = more


class ClientGone(Exception):  # noqa: N818 - no error: nobody is there to be answered
    """The client went away before its request was complete."""


class Reply(NamedTuple):
    """What is answered."""

    status: int
    body: bytes
    headers: Headers = ()
    kind: tuple[bytes, bytes] = JSON


GONE = Reply(499, b"")
"""Nothing is answered, since nobody is there; the status that logs and metrics have for it."""


class Call:
    """One request: its scope, its headers by their lower-case names, and who makes it once that is known.

    Of one check also whom it was about and what came of it, for the log.
    """

    __slots__ = ("allowed", "fields", "request_id", "scope", "subject", "visit")

    def __init__(self, scope: Scope, fields: Fields, request_id: str) -> None:
        self.scope = scope
        self.fields = fields
        self.request_id = request_id
        self.visit: Visit | None = None
        self.subject: str | None = None
        self.allowed: bool | None = None


def check_length(fields: Fields) -> None:
    """BadRequest for a body that says it is too large, before any of it is read."""
    told = fields.get(b"content-length")
    if told is not None and (len(told) > 7 or int(told) > MOST_BODY_BYTES):  # the server has seen that it is a number
        raise too_large()


async def read_rest(message: MutableMapping[str, Any], receive: Receive) -> bytes:
    """All of a body whose first message has come; BadRequest when it is too large, ClientGone when it stays away."""
    chunks: list[bytes] = []
    size = 0
    while True:
        if message["type"] != "http.request":
            raise ClientGone
        body: bytes = message.get("body", b"")
        size += len(body)
        if size > MOST_BODY_BYTES:
            raise too_large()
        chunks.append(body)
        if not message.get("more_body", False):
            return b"".join(chunks)
        message = await receive()


def too_large() -> BadRequest:
    # The connection stays: many clients read no answer before they have sent everything, and would only find it broken.
    # What they send on is read and dropped, for as long as a request may take.
    return BadRequest(413, f"the body is larger than {MOST_BODY_BYTES:,} bytes: send less at once")


def refused(status: int, detail: str, headers: Headers = (), **more: Any) -> Reply:
    """An error, as everywhere: problem+json."""
    return Reply(status, encode_problem(problem(status, detail, **more)), headers, PROBLEM)


def messages_of(reply: Reply, said: Headers, method: str) -> list[dict[str, Any]]:
    """A whole response; to a HEAD without its body."""
    headers = [reply.kind, (b"content-length", b"%d" % len(reply.body)), *reply.headers, *said]
    return [
        {"type": "http.response.start", "status": reply.status, "headers": headers},
        {"type": "http.response.body", "body": b"" if method == "HEAD" else reply.body},
    ]
