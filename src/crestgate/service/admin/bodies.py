"""Strict JSON parser for request bodies.

The readers of rules, policies and clients validate the fields, and report all errors together. Here a body is only
parsed to plain data: duplicate fields, NaN and lone surrogates, which could not be encoded again, are errors.
"""

from __future__ import annotations

import json
from typing import Annotated, Any

from fastapi import Depends, Request
from starlette.exceptions import HTTPException

from crestgate.errors import Problem, ValidationError

__all__ = ["JsonBody", "read_json"]

CHARSETS = ("utf-8", "utf8", "us-ascii")


async def _body(request: Request) -> Any:
    _check_type(request.headers.get("content-type"))
    return read_json(await request.body())


JsonBody = Annotated[Any, Depends(_body)]
"""The body as plain data."""


def read_json(body: bytes) -> Any:
    """A body as plain data; ValidationError if it is not JSON.

    >>> read_json(b'{"limit": }')
    Traceback (most recent call last):
    crestgate.errors.ValidationError: the body is not JSON: Expecting value (line 1, column 11)
    """
    if not body.strip():
        raise _error("the body is empty: send JSON")
    try:
        text = body.decode("utf-8")
    except UnicodeDecodeError as error:
        raise _error(f"the body is not JSON: it is not UTF-8 (byte {error.start})") from None
    try:
        data = json.loads(text, object_pairs_hook=_object, parse_constant=_constant)
        # A lone surrogate cannot be encoded in a response.
        json.dumps(data, ensure_ascii=False).encode("utf-8")
    except json.JSONDecodeError as error:
        raise _error(f"the body is not JSON: {error.msg} (line {error.lineno}, column {error.colno})") from None
    except UnicodeEncodeError:
        raise _error("the body is not valid text: it has a lone surrogate, such as \\ud800") from None
    except RecursionError:
        raise _error("the body is nested too deeply") from None
    except ValidationError:
        raise
    except ValueError:  # a number of more digits than Python reads
        raise _error("the body has a number of too many digits") from None
    return data


def _object(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    values: dict[str, Any] = {}
    for name, value in pairs:
        if name in values:
            raise ValidationError([Problem(name[:100], "is written twice: write it once")])
        values[name] = value
    return values


def _constant(name: str) -> Any:
    raise _error(f"the body is not JSON: {name} is not a JSON number")


def _error(message: str) -> ValidationError:
    return ValidationError([Problem("", message)])


def _check_type(header: str | None) -> None:
    """A body without a Content-Type is read as JSON, and so is a form, since curl's `-d` sends that type; any other
    type is refused."""
    if header is None:
        return
    kind, _, rest = header.partition(";")
    kind = kind.strip().lower()
    if kind == "application/x-www-form-urlencoded":
        return
    charset = next((p.partition("=")[2] for p in rest.lower().split(";") if p.strip().startswith("charset=")), "utf-8")
    if (kind == "application/json" or (kind.startswith("application/") and kind.endswith("+json"))) and (
        charset.strip().strip('"') in CHARSETS
    ):
        return
    raise HTTPException(415, "the body must be JSON, in UTF-8: send it with Content-Type: application/json")
