"""Reads the forms of the pages, and makes sure that they are ours.

A form is accepted from the same origin only, with the token of the session that it was rendered for. SameSite=Strict
keeps the cookie from other sites; the origin and the token also keep out other origins of the same site, such as
another port or a sub-domain, whatever `server.allowed_origins` allows for the API.
"""

from __future__ import annotations

import re
from hmac import compare_digest
from urllib.parse import parse_qsl

from starlette.requests import Request

from crestgate.errors import Problem, ValidationError
from crestgate.http.host import same_origin
from crestgate.service.auth.sessions import Session
from crestgate.service.errors import ApiError

__all__ = ["CSRF_FIELD", "check_same_origin", "local_path", "read_form", "without_separators"]

CSRF_FIELD = "form_token"
MAX_FIELDS = 60
_GROUPED = re.compile(r"[+-]?[0-9]{1,3}(,[0-9]{3})+(\.[0-9]*)?")
FORM = "application/x-www-form-urlencoded"


def check_same_origin(request: Request) -> None:
    """ApiError for a form of another origin."""
    site = request.headers.get("sec-fetch-site")
    origin = request.headers.get("origin")
    if site is not None and site != "same-origin":
        raise ApiError(403, "this form was sent from another site: open the page here, and send it again")
    if origin is not None and not same_origin(origin, request.headers.get("host", "")):
        raise ApiError(403, "this form was sent from another origin: open the page here, and send it again")


async def read_form(request: Request, session: Session | None) -> dict[str, str]:
    """The fields of a form; of several with one name, the last. With a session, its token must be among them."""
    check_same_origin(request)
    if request.headers.get("content-type", FORM).partition(";")[0].strip().lower() != FORM:
        raise ApiError(415, f"the body must be a form: {FORM}")
    body = await request.body()
    try:
        fields = dict(
            parse_qsl(body.decode("utf-8"), keep_blank_values=True, max_num_fields=MAX_FIELDS, errors="strict")
        )
    except ValueError:
        raise ValidationError([Problem("", f"the form cannot be read: UTF-8, {MAX_FIELDS} fields at most")]) from None
    if session is not None:
        token = fields.pop(CSRF_FIELD, "")
        if not token.isascii() or not compare_digest(token, session.form_token):
            raise ApiError(403, "this form belongs to another session: reload the page, and send it again")
    return fields


def local_path(text: str) -> str:
    """Where to go next, if it is on this site; else the overview.

    >>> [local_path(text) for text in ("/rules?q=a", "//evil.example", "https://evil.example/", "/\\\\x")]
    ['/rules?q=a', '/', '/', '/']
    """
    bad = not text.startswith("/") or text.startswith("//") or "\\" in text or not text.isprintable()
    return "/" if bad else text


def without_separators(text: str) -> str:
    """A number without commas between its thousands. Any other comma stays, and is an error where it is read.

    >>> [without_separators(text) for text in ("1,500", "1,000,000.5", "1,5", "15")]
    ['1500', '1000000.5', '1,5', '15']
    """
    return text.replace(",", "") if _GROUPED.fullmatch(text) else text
