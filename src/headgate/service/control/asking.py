"""What a call may say outside of its body: names in its path, pages and moments in its query."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from itertools import islice
from typing import Annotated, Any
from urllib.parse import quote, unquote_to_bytes, urlencode

from fastapi import Path as PathParameter
from fastapi import Request
from pydantic import BaseModel, ConfigDict, Field
from starlette.convertors import Convertor, register_url_convertor

from headgate.errors import Invalid, Problem
from headgate.reading.fields import Fields, Problems
from headgate.rules.moments import read_moment

__all__ = ["Name", "PageQuery", "Query", "check_path", "link_to", "location", "moments", "page_of"]

MOST_NAME_BYTES = 1024
MOST_A_PAGE = 1000


class NameConvertor(Convertor[str]):
    """A name within a path, which may have any characters, slashes and line breaks too: `{key:name}` in a route."""

    regex = r"[\s\S]+"

    def convert(self, value: str) -> str:
        return value

    def to_string(self, value: str) -> str:
        return quote(value, safe="")


register_url_convertor("name", NameConvertor())

Name = Annotated[str, PathParameter(min_length=1, max_length=MOST_NAME_BYTES)]
"""A name in a path. Slashes in it may be written as %2F."""


class Query(BaseModel):
    """The parameters of a query: those that nobody knows are told, not ignored."""

    model_config = ConfigDict(extra="forbid")


class PageQuery(Query):
    """Which page of a list."""

    limit: Annotated[int, Field(ge=1, le=MOST_A_PAGE, description="How many at most.")] = 100
    after: Annotated[str, Field(description="From behind this one on: `next` of the page before.")] = ""


async def check_path(request: Request) -> None:
    """Invalid for a path that is no UTF-8: what it names would else be guessed at."""
    raw = request.scope.get("raw_path")
    if raw is None:
        return
    try:
        unquote_to_bytes(raw).decode("utf-8")
    except UnicodeDecodeError:
        raise Invalid([Problem("path", "is not UTF-8: encode its bytes as UTF-8 before they become %XX")]) from None
    for name, value in request.path_params.items():
        if len(value.encode("utf-8", "surrogatepass")) > MOST_NAME_BYTES:
            raise Invalid([Problem(name, f"is too long: {MOST_NAME_BYTES:,} bytes at most")])


def page_of(
    names: Iterable[str], query: PageQuery, wanted: Callable[[str], bool] | None = None
) -> tuple[list[str], str | None]:
    """The names of a page, in order, and the last of them if there are more."""
    after = query.after
    left = sorted(name for name in names if name > after)
    found = list(islice((name for name in left if wanted is None or wanted(name)), query.limit + 1))
    more = len(found) > query.limit
    return found[: query.limit], found[query.limit - 1] if more else None


def link_to(request: Request, following: str | None, limit: int) -> dict[str, str]:
    """The header that says where a list goes on, for answers that are a plain list."""
    if following is None:
        return {}
    query = urlencode({**request.query_params, "limit": limit, "after": following}, quote_via=quote)
    return {"Link": f'<{quote(request.url.path)}?{query}>; rel="next"'}


def location(path: str, name: str) -> dict[str, str]:
    """The header that says where something new is."""
    return {"Location": path + quote(name, safe="")}


def moments(given: Mapping[str, str | None]) -> dict[str, int | None]:
    """Moments of a query, in microseconds since the epoch; Invalid tells all that are none."""
    problems = Problems()
    fields = Fields({name: _plain(text) for name, text in given.items()}, "", problems, given)
    found = {name: read_moment(fields, name) for name in given}
    problems.raise_any()
    return found


def _plain(text: str | None) -> Any:
    """A number where it is one; and a `+` that a query turned into a blank is one again."""
    if text is None:
        return None
    try:
        return float(text)
    except ValueError:
        return text.strip().replace(" ", "+")
