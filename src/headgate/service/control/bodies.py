"""JSON bodies: read strictly, with the place of a mistake.

What the fields mean is for the readers of rules, policies and clients to say, which tell all mistakes at once. Here a
body only becomes plain data: no field twice, no NaN, no half of a surrogate pair, which nothing could write down again.
"""

from __future__ import annotations

import json
from typing import Annotated, Any

from fastapi import Depends, Request
from starlette.exceptions import HTTPException

from headgate.errors import Invalid, Problem

__all__ = ["JsonBody", "read_json"]

CHARSETS = ("utf-8", "utf8", "us-ascii")


async def _body(request: Request) -> Any:
    _check_type(request.headers.get("content-type"))
    return read_json(await request.body())


JsonBody = Annotated[Any, Depends(_body)]
"""The body as plain data."""


def read_json(body: bytes) -> Any:
    """What a body says; Invalid if it is no JSON.

    >>> read_json(b'{"limit": 5,}')
    Traceback (most recent call last):
    headgate.errors.Invalid: the body is not JSON: Expecting property name enclosed in double quotes (line 1, column 13)
    """
    if not body.strip():
        raise _wrong("the body is empty: send JSON")
    try:
        text = body.decode("utf-8")
    except UnicodeDecodeError as error:
        raise _wrong(f"the body is not JSON: it is not UTF-8 (byte {error.start})") from None
    try:
        data = json.loads(text, object_pairs_hook=_object, parse_constant=_constant)
        # What has half of a surrogate pair in it is no text, and cannot be answered with.
        json.dumps(data, ensure_ascii=False).encode("utf-8")
    except json.JSONDecodeError as error:
        # The place is where Python's reader stopped.
        raise _wrong(f"the body is not JSON: {error.msg} (line {error.lineno}, column {error.colno})") from None
    except UnicodeEncodeError:
        raise _wrong("the body is not text: it has half of a surrogate pair, such as \\ud800") from None
    except RecursionError:
        raise _wrong("the body is nested too deeply") from None
    except Invalid:
        raise
    except ValueError:  # a number of more digits than Python reads
        raise _wrong("the body has a number of too many digits") from None
    return data


def _object(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    found: dict[str, Any] = {}
    for name, value in pairs:
        if name in found:
            raise Invalid([Problem(name[:100], "is written twice: write it once")])
        found[name] = value
    return found


def _constant(name: str) -> Any:
    raise _wrong(f"the body is not JSON: {name} is no number there")


def _wrong(message: str) -> Invalid:
    return Invalid([Problem("", message)])


def _check_type(header: str | None) -> None:
    """A body without a type is taken for JSON, and so is one that curl's `-d` calls a form, as it calls everything; one
    of another type was meant for something else."""
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
