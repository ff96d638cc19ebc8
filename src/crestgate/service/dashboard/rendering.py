"""Templates, headers and static files of the pages.

Everything that a page shows was written by somebody: names of rules, subjects, actors. Jinja2 escapes all of it, and
the Content-Security-Policy would not run what slipped through: there is no inline script or style, and no other host.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from functools import cache
from hashlib import sha256
from importlib.resources import files
from typing import Any
from urllib.parse import quote, urlencode

from jinja2 import Environment, PackageLoader, StrictUndefined, select_autoescape
from starlette.requests import Request
from starlette.responses import Response

import crestgate
from crestgate.core.dimensions import DIMENSION_NAMES, is_attribute_name, join_parts
from crestgate.rules.rule import Rule
from crestgate.service.dashboard import words
from crestgate.service.dashboard.charts import area_chart, bar, sparkline

__all__ = ["POLICY", "SECURITY_HEADERS", "asset", "asset_url", "render", "subject_url"]

POLICY = (
    "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self' data:; connect-src 'self'; "
    "form-action 'self'; frame-ancestors 'none'; base-uri 'none'"
)
SECURITY_HEADERS = {
    "Content-Security-Policy": POLICY,
    "X-Content-Type-Options": "nosniff",
    "X-Frame-Options": "DENY",
    "Referrer-Policy": "same-origin",
    "Cross-Origin-Opener-Policy": "same-origin",
    "Cross-Origin-Resource-Policy": "same-origin",
}
TYPES = {"css": "text/css; charset=utf-8", "js": "text/javascript; charset=utf-8", "svg": "image/svg+xml"}
THEMES = ("auto", "light", "dark")
STATIC = "/dashboard/static/"


def render(request: Request, template: str, status: int = 200, **values: Any) -> Response:
    """A page. It is never cached: it shows what is in force now, to somebody who has logged in."""
    theme = request.cookies.get("theme", "auto")
    text = (
        _environment()
        .get_template(template)
        .render(
            request=request,
            path=request.url.path,
            theme=theme if theme in THEMES else "auto",
            session=request.scope.get("crestgate.session"),
            pages=request.app.state.paths,
            **{"version": crestgate.__version__, **values},
        )
    )
    return Response(
        text, status, {**SECURITY_HEADERS, "Cache-Control": "no-store"}, media_type="text/html; charset=utf-8"
    )


def subject_url(subject: str) -> str | None:
    """The page of a subject as metrics and history name it: `user:42`, `model:large|org:acme`. None for `global`, which
    is no subject, and where a digest stands for an identifier."""
    dimension, colon, identifier = subject.partition(":")
    if not colon or not identifier:
        return None
    values = [identifier]
    if "|" in identifier and dimension != "key":  # policy keys have this separator, too
        pairs = [part.partition(":")[::2] for part in subject.split("|")]
        if all(is_attribute_name(name) or name in DIMENSION_NAMES for name, _ in pairs):
            values = [value.replace("%7C", "|").replace("%2A", "*").replace("%25", "%") for _, value in pairs]
            dimension, identifier = join_parts([name for name, _ in pairs]), join_parts(values)
    if any(value.startswith("sha256:") for value in values):
        return None
    return f"/subjects/{quote(dimension, safe='')}/{quote(identifier, safe='')}"


def asset(name: str) -> tuple[bytes, str] | None:
    """A static file and its type; None if there is none of this name."""
    return _assets().get(name)


@cache
def _assets() -> Mapping[str, tuple[bytes, str]]:
    """All of them by name: what strangers ask for reaches no file system and no cache."""
    found = [(file, TYPES.get(file.name.rpartition(".")[2])) for file in (files(__package__) / "static").iterdir()]
    return {file.name: (file.read_bytes(), kind) for file, kind in found if kind is not None}


@cache
def asset_url(name: str) -> str:
    """Where a static file is, with a digest of its content, so that it can be cached for ever."""
    found = asset(name)
    assert found is not None, name
    return f"{STATIC}{name}?v={sha256(found[0]).hexdigest()[:12]}"


@cache
def _environment() -> Environment:
    environment = Environment(
        loader=PackageLoader("crestgate.service.dashboard"),
        autoescape=select_autoescape(default=True, default_for_string=True),
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    environment.filters.update(
        ago=words.ago,
        duration=words.duration,
        number=words.number,
        rate=words.rate,
        time=words.local_time,
        scope=words.scope_in_words,
        words=_words,
        subject_url=subject_url,
        path_part=lambda text: quote(str(text), safe=""),
        pretty=_pretty,
    )
    environment.globals.update(asset_url=asset_url, area_chart=area_chart, bar=bar, sparkline=sparkline, query=_query)
    return environment


def _words(rule: Rule) -> str:
    return words.limit_in_words(
        rule.limit, rule.window_seconds, rule.burst, rule.algorithm, rule.calendar, rule.timezone
    )


def _query(values: Mapping[str, Any], **changes: Any) -> str:
    """A query string, with some of its values changed; without those that are empty."""
    return urlencode({name: value for name, value in {**values, **changes}.items() if value not in (None, "")})


def _pretty(data: Any) -> str:
    return json.dumps(data, indent=2, ensure_ascii=False, default=str)
