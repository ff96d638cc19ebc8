"""Views that the middleware does not limit: `@exempt`.

The middleware runs before Django resolves the view, so that requests for unknown paths are limited too. So it resolves
the view itself, but only in projects with exempt views.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import wraps
from typing import Any, TypeVar

from asgiref.sync import iscoroutinefunction, markcoroutinefunction
from django.urls import get_resolver
from django.utils.decorators import method_decorator

from crestgate.integrations.django.request import DjangoRequest

__all__ = ["exempt", "is_exempt"]

V = TypeVar("V", bound=Callable[..., Any])
_ATTRIBUTE = "crestgate_exempt"
_used: set[bool] = set()
"""Not empty if any view is exempt."""


def exempt(view: V) -> V:
    """Exempt a view from the limits of the middleware, not from those of `limit`."""
    _used.add(True)
    if isinstance(view, type):
        return method_decorator(exempt, name="dispatch")(view)  # type: ignore[no-any-return] # as given
    if not callable(view):
        raise TypeError(f"exempt is put on a view, not on {view!r}")

    @wraps(view)
    def wrapper(*args: Any, **kwargs: Any) -> Any:
        return view(*args, **kwargs)

    setattr(wrapper, _ATTRIBUTE, True)
    if iscoroutinefunction(view):
        markcoroutinefunction(wrapper)
    return wrapper  # type: ignore[return-value] # called as the view is


def is_exempt(request: DjangoRequest) -> bool:
    """Whether the request's view is exempt."""
    if not _used:
        get_resolver(getattr(request.native, "urlconf", None)).url_patterns  # noqa: B018 - imports the views, the first time
        if not _used:
            return False
    match = request.match
    return match is not None and bool(getattr(match.func, _ATTRIBUTE, False))
