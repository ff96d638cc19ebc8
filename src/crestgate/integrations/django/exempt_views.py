"""Views that are free of the middleware's limits: `@exempt`.

The middleware decides before Django has looked for a view, so that what leads nowhere is limited too. It looks for
itself then, and only in projects where any view is exempt.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import wraps
from typing import Any, TypeVar

from asgiref.sync import iscoroutinefunction, markcoroutinefunction
from django.urls import get_resolver
from django.utils.decorators import method_decorator

from crestgate.integrations.django.request import DjangoRequest

__all__ = ["exempt", "frees"]

V = TypeVar("V", bound=Callable[..., Any])
_FREE = "crestgate_exempt"
_freed: set[bool] = set()
"""Has something in it as soon as any view is exempt."""


def exempt(view: V) -> V:
    """Free a view from the limits of the middleware. Those it has by `limit` hold."""
    _freed.add(True)
    if isinstance(view, type):
        return method_decorator(exempt, name="dispatch")(view)  # type: ignore[no-any-return] # as given
    if not callable(view):
        raise TypeError(f"exempt is put on a view, not on {view!r}")

    @wraps(view)
    def freed(*args: Any, **kwargs: Any) -> Any:
        return view(*args, **kwargs)

    setattr(freed, _FREE, True)
    if iscoroutinefunction(view):
        markcoroutinefunction(freed)
    return freed  # type: ignore[return-value] # called as the view is


def frees(request: DjangoRequest) -> bool:
    """Whether a request is for a view that is exempt. It is looked for only where there are such views."""
    if not _freed:
        get_resolver(getattr(request.native, "urlconf", None)).url_patterns  # noqa: B018 - imports the views, the first time
        if not _freed:
            return False
    match = request.match
    return match is not None and bool(getattr(match.func, _FREE, False))
