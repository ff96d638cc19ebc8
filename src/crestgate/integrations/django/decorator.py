"""The decorator for views of all kinds.

    @limit("5/minute")                                      a function, sync or async, above or below other decorators
    @method_decorator(limit("5/minute"), name="dispatch")   a class, or `@limit("5/minute")` on the class itself
    path("item/<int:id>", limit("5/minute")(Item.as_view()))

The view, not the server, determines whether the sync or the async limiter is used: Django runs sync views in threads,
and async views on an event loop.
"""

from __future__ import annotations

from collections.abc import Callable
from contextlib import suppress
from functools import partial, wraps
from typing import Any, TypeVar, Unpack

from asgiref.sync import iscoroutinefunction, markcoroutinefunction
from django.conf import settings
from django.utils.decorators import method_decorator

from crestgate.errors import StoreError
from crestgate.integrations.django.drivers import handle_async, handle_sync
from crestgate.integrations.django.layer import DjangoLayer
from crestgate.integrations.django.request import DjangoRequest
from crestgate.integrations.layer import LayerLimits, LayerOptions
from crestgate.integrations.shared_limiters import GivenLimiter
from crestgate.limiter.decorator_arguments import refuse_missing_brackets

__all__ = ["limit"]

V = TypeVar("V", bound=Callable[..., Any])


def limit(
    limits: LayerLimits = None,
    *,
    limiter: GivenLimiter = None,
    scope: str | None = None,
    **options: Unpack[LayerOptions],
) -> Callable[[V], V]:
    """Limit a view: per caller and route (its template, so `/item/1` and `/item/2` share), or together with all views
    of the same `scope`. Without `limits` the limiter's rules apply.

    `CRESTGATE` in the settings has the defaults: the limiter, the key, the proxies, the headers…
    """
    refuse_missing_brackets(limits, '@limit("5/minute")')
    django_layer = DjangoLayer(limiter, limits, scope, options)
    if settings.configured or limiter is not None:
        with suppress(StoreError):  # the store may be unreachable at import time: a build, a migration
            django_layer.validate()

    def decorate(view: Any) -> Any:
        if isinstance(view, type):
            return method_decorator(decorate, name="dispatch")(view)
        if not callable(view):
            raise TypeError(f'limit is put on a view, with its limits in brackets, @limit("5/minute"); not on {view!r}')

        @wraps(view)
        def limited(*args: Any, **kwargs: Any) -> Any:
            native, owner = _request_in(args, kwargs, view)
            handler = partial(view, *args, **kwargs)
            if is_async or getattr(owner, "view_is_async", False):  # its `dispatch` returns a coroutine
                async_layer = django_layer.async_layer()
                request = DjangoRequest(native, async_layer.identity)
                return handle_async(async_layer, request, handler, scope or _route(request, view, owner))
            layer = django_layer.sync_layer()
            request = DjangoRequest(native, layer.identity)
            return handle_sync(layer, request, handler, scope or _route(request, view, owner))

        is_async = iscoroutinefunction(view)
        if is_async:
            markcoroutinefunction(limited)
        return limited

    return decorate


def _request_in(args: tuple[Any, ...], kwargs: dict[str, Any], view: Any) -> tuple[Any, Any]:
    """The request among a view's arguments, and the instance if the view is a method."""
    if args and hasattr(args[0], "META"):
        return args[0], getattr(getattr(view, "func", None), "__self__", None)  # a partial of `method_decorator`
    if len(args) > 1 and hasattr(args[1], "META"):
        return args[1], args[0]
    if "request" in kwargs:
        return kwargs["request"], args[0] if args else None
    raise TypeError(f"{view!r} was called without a request: limit is put on views, whose first argument it is")


def _route(request: DjangoRequest, view: Any, owner: Any) -> str:
    """The route in the key of a view's limits: the view and its template. The methods of a class, or a view that
    another calls, share a template."""
    function = getattr(view, "view_class", view)
    name = getattr(function, "__qualname__", type(function).__qualname__)
    module = getattr(function, "__module__", type(function).__module__)
    if owner is not None:
        module, name = type(owner).__module__, f"{type(owner).__qualname__}.{getattr(view, '__name__', name)}"
    template = request.route
    return f"{module}.{name}" if template is None else f"{module}.{name} {template}"
