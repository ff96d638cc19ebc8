"""Parameters of requests: names in paths, pages and timestamps in queries."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from itertools import islice
from typing import Annotated, Any
from urllib.parse import quote, unquote_to_bytes, urlencode

from fastapi import Path as PathParameter
from fastapi import Request
from pydantic import BaseModel, ConfigDict, Field
from starlette.convertors import Convertor, register_url_convertor

from crestgate.errors import Problem, ValidationError
from crestgate.loader.fields import Fields, Problems
from crestgate.rules.timestamps import read_timestamp

__all__ = ["Name", "PageQuery", "Query", "check_path", "location", "next_link", "page", "parse_timestamps"]

MAX_NAME_BYTES = 1024
MAX_PAGE = 1000


class NameConvertor(Convertor[str]):
    """A name in a path, of any characters, also slashes and line breaks: `{key:name}` in a route."""

    regex = r"[\s\S]+"

    def convert(self, value: str) -> str:
        return value

    def to_string(self, value: str) -> str:
        return quote(value, safe="")


register_url_convertor("name", NameConvertor())

Name = Annotated[str, PathParameter(min_length=1, max_length=MAX_NAME_BYTES)]
"""A name in a path. Slashes in it may be written as %2F."""


class Query(BaseModel):
    """The parameters of a query: an unknown one is an error."""

    model_config = ConfigDict(extra="forbid")


class PageQuery(Query):
    """Page of a list."""

    limit: Annotated[int, Field(ge=1, le=MAX_PAGE, description="Maximum number of items.")] = 100
    after: Annotated[str, Field(description="Start after this one: `next` of the previous page.")] = ""


async def check_path(request: Request) -> None:
    """ValidationError for a path that is not UTF-8."""
    raw = request.scope.get("raw_path")
    if raw is None:
        return
    try:
        unquote_to_bytes(raw).decode("utf-8")
    except UnicodeDecodeError:
        raise ValidationError(
            [Problem("path", "is not UTF-8: encode its bytes as UTF-8 before they become %XX")]
        ) from None
    for name, value in request.path_params.items():
        if len(value.encode("utf-8", "surrogatepass")) > MAX_NAME_BYTES:
            raise ValidationError([Problem(name, f"is too long: {MAX_NAME_BYTES:,} bytes at most")])


def page(
    names: Iterable[str], query: PageQuery, matches: Callable[[str], bool] | None = None
) -> tuple[list[str], str | None]:
    """The names of a page, sorted, and the last of them if there are more."""
    after = query.after
    left = sorted(name for name in names if name > after)
    found = list(islice((name for name in left if matches is None or matches(name)), query.limit + 1))
    more = len(found) > query.limit
    return found[: query.limit], found[query.limit - 1] if more else None


def next_link(request: Request, next_after: str | None, limit: int) -> dict[str, str]:
    """The Link header to the next page, for responses that are a plain list."""
    if next_after is None:
        return {}
    query = urlencode({**request.query_params, "limit": limit, "after": next_after}, quote_via=quote)
    return {"Link": f'<{quote(request.url.path)}?{query}>; rel="next"'}


def location(path: str, name: str) -> dict[str, str]:
    """The Location header of a new resource."""
    return {"Location": path + quote(name, safe="")}


def parse_timestamps(given: Mapping[str, str | None]) -> dict[str, int | None]:
    """Timestamps of a query, in microseconds since the epoch; ValidationError has all that are invalid."""
    problems = Problems()
    fields = Fields({name: _number_or_text(text) for name, text in given.items()}, "", problems, given)
    found = {name: read_timestamp(fields, name) for name in given}
    problems.raise_any()
    return found


def _number_or_text(text: str | None) -> Any:
    """A number if it is one; else the text, with spaces changed back to `+`, which query decoding replaced."""
    if text is None:
        return None
    try:
        return float(text)
    except ValueError:
        return text.strip().replace(" ", "+")
