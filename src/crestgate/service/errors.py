"""Error responses of the service, the same for HTTP and gRPC."""

from __future__ import annotations

from typing import Any, Final

from crestgate.errors import CrestgateError, InvalidRequestError
from crestgate.http.problem import on_one_line, problem_of
from crestgate.service.context import CallContext, Headers
from crestgate.service.observability.request_log import RequestLog

__all__ = ["INTERNAL_ERROR", "ApiError", "error_response", "invalid_request"]

INTERNAL_ERROR: Final = "internal error: the log has it under this request id"
MAX_FIELD: Final = 200
"""Characters of a field's name in a response: it may be the caller's."""
MAX_MESSAGE: Final = 400
"""Characters of a message about a field: some of them may be the caller's."""


class ApiError(Exception):
    """A request that is answered with an error status. gRPC derives its status from that of HTTP."""

    def __init__(self, status: int, detail: str, headers: Headers = (), **members: Any) -> None:
        """`members` are further members of the problem document."""
        super().__init__(detail)
        self.status = status
        self.detail = detail
        self.headers = headers
        self.members = members


def error_response(call: CallContext, error: Exception, log: RequestLog) -> ApiError:
    """An error as its caller sees it. Failures are logged; of internal errors the caller sees nothing else."""
    if isinstance(error, ApiError):
        return error
    if isinstance(error, InvalidRequestError):
        return invalid_request(error)
    if isinstance(error, CrestgateError):
        status, detail, members = problem_of(error)
        log.failed(call, error)
        return ApiError(status, detail, **members)
    log.internal_error(call, error)
    return ApiError(500, INTERNAL_ERROR)


def invalid_request(error: InvalidRequestError) -> ApiError:
    """The response to a request with a bad field."""
    field = _shortened(error.field, MAX_FIELD)
    message = _shortened(on_one_line(error.message), MAX_MESSAGE)
    return ApiError(400, f"{field}: {message}" if field else message, problems=[{"field": field, "message": message}])


def _shortened(text: str, size: int) -> str:
    """A text of about this size at most, without its middle: the remedy is at its end."""
    return text if len(text) <= size else f"{text[: size // 2]}…{text[-size // 2 :]}"
