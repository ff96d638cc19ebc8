"""The Request over a Django request."""

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
from crestgate.integrations.request_state import RequestState, request_state_in
from crestgate.integrations.wsgi import environ_headers

__all__ = ["DjangoRequest", "principal_async", "request_state_of"]

_CONVERTER = re.compile(r"(?<!\?P)<(?:[^<>:]+:)?(\w+)>")
"""`<int:id>` in the route of a `path()`; not the groups of a regular expression."""


class DjangoRequest(Request):
    """A Django request, or a wrapper such as that of Django REST framework."""

    __slots__ = ("_match", "_raw")

    @property
    def method(self) -> str:
        return str(self.native.method)

    @property
    def path(self) -> str:
        return str(escape_uri_path(self.native.path))  # Django has decoded it

    @property
    def raw_headers(self) -> RawHeaders:
        try:
            return self._raw
        except AttributeError:
            scope = getattr(self.native, "scope", None)
            self._raw: RawHeaders = environ_headers(self.native.META) if scope is None else scope.get("headers", ())
            return self._raw

    @property
    def peer(self) -> str | None:
        return self.native.META.get("REMOTE_ADDR") or None

    @property
    def route(self) -> str | None:
        """The route's template with all prefixes, as `/item/{id}`; a regular expression stays as it is."""
        match = self.match
        return None if match is None else _template(self.native, match.route or "")

    @property
    def match(self) -> Any | None:
        """The ResolverMatch; None for an unknown path. A view's request has it; before that the path is resolved
        here."""
        try:
            return self._match
        except AttributeError:
            self._match: Any = _match_of(self.native)
            return self._match

    @property
    def principal(self) -> str | None:
        """The primary key of the logged-in user, who is loaded only when this is read."""
        return _key_of(getattr(self.native, "user", None))


def request_state_of(request: Any) -> RequestState:
    """The state of a request, shared with a WSGI or ASGI middleware around Django."""
    scope = getattr(request, "scope", None)
    return request_state_in(request.META if scope is None else scope)


async def principal_async(request: Any) -> str | None:
    """The principal, on an event loop: a user who is not loaded yet is loaded without blocking it."""
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
        route = route.removeprefix(f"{get_language()}/")  # all languages of a page share a counter
    return f"{mounted}/{route}"
