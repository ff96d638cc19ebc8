"""Django's request as limits see it."""

from __future__ import annotations

import re
from typing import Any

from asgiref.sync import sync_to_async
from django.conf import settings
from django.conf.urls.i18n import is_language_prefix_patterns_used
from django.urls import Resolver404, get_resolver
from django.utils.encoding import escape_uri_path
from django.utils.functional import LazyObject
from django.utils.translation import get_language

from crestgate.integrations.request import RawHeaders, Request
from crestgate.integrations.request_state import NAME, RequestState

__all__ = ["DjangoRequest", "principal_async", "request_state_of"]

_CONVERTER = re.compile(r"(?<!\?P)<(?:[^<>:]+:)?(\w+)>")
"""`<int:id>` in the route of a `path()`; not the groups of a regular expression."""


class DjangoRequest(Request):
    """A request of Django's (or what wraps one: Django REST framework does)."""

    __slots__ = ("_match", "_raw")

    @property
    def method(self) -> str:
        return str(self.native.method)

    @property
    def path(self) -> str:
        return str(escape_uri_path(self.native.path))  # which Django has decoded

    @property
    def raw_headers(self) -> RawHeaders:
        try:
            return self._raw
        except AttributeError:
            scope = getattr(self.native, "scope", None)
            self._raw: RawHeaders = _of_meta(self.native.META) if scope is None else scope.get("headers", ())
            return self._raw

    @property
    def peer(self) -> str | None:
        return self.native.META.get("REMOTE_ADDR") or None

    @property
    def route(self) -> str | None:
        """The route with everything it is included under, as `/item/{id}`; one that is a regular expression as Django
        writes it."""
        match = self.match
        return None if match is None else _template(self.native, match.route or "")

    @property
    def match(self) -> Any | None:
        """What the path leads to; None when nowhere. Decorators of the view are told it, and before that it is found as
        Django will find it."""
        try:
            return self._match
        except AttributeError:
            self._match: Any = _match_of(self.native)
            return self._match

    @property
    def principal(self) -> str | None:
        """The primary key of the user who is logged in. Nothing is loaded before somebody asks."""
        return _key_of(getattr(self.native, "user", None))


def request_state_of(request: Any) -> RequestState:
    """What the layers know of a request: where those of WSGI and ASGI have it, which may stand around Django."""
    container = getattr(request, "scope", None)
    if container is None:
        container = request.META
    request_state = container.get(NAME)
    if request_state is None:
        request_state = container[NAME] = RequestState()
    assert isinstance(request_state, RequestState)
    return request_state


async def principal_async(request: Any) -> str | None:
    """The principal, on an event loop: whoever has yet to be loaded is loaded without holding it up."""
    native = request.native
    user = getattr(native, "user", None)
    if not isinstance(user, LazyObject):
        return _key_of(user)
    auser = getattr(native, "auser", None)
    if auser is not None:
        return _key_of(await auser())
    key: str | None = await sync_to_async(_key_of)(user)
    return key


def _key_of(user: Any) -> str | None:
    if user is None or not getattr(user, "is_authenticated", False):
        return None
    key = getattr(user, "pk", None)
    return None if key is None else str(key)


def _match_of(request: Any) -> Any | None:
    match = getattr(request, "resolver_match", None)
    if match is None:
        try:
            match = get_resolver(getattr(request, "urlconf", None)).resolve(request.path_info)
        except Resolver404:
            return None
    return match


def _template(request: Any, route: str) -> str:
    mounted = request.META.get("SCRIPT_NAME", "").rstrip("/")
    route = _CONVERTER.sub(r"{\1}", route.removeprefix("^"))
    urlconf = getattr(request, "urlconf", None) or settings.ROOT_URLCONF
    if settings.USE_I18N and is_language_prefix_patterns_used(urlconf)[0]:
        route = route.removeprefix(f"{get_language()}/")  # a page is one in all languages
    return f"{mounted}/{route}"


def _of_meta(meta: dict[str, Any]) -> RawHeaders:
    """The headers out of a WSGI environment."""
    named = [(key[5:], value) for key, value in meta.items() if key.startswith("HTTP_")]
    named += [(key, meta[key]) for key in ("CONTENT_TYPE", "CONTENT_LENGTH") if meta.get(key)]
    return [
        (name.replace("_", "-").lower().encode("latin-1", "replace"), str(value).encode("latin-1", "replace"))
        for name, value in named
    ]
