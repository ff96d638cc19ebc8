"""The decorator: limits of a view, whatever form it has.

    @limit("5/minute")                                      a function, sync or async, above or below other decorators
    @method_decorator(limit("5/minute"), name="dispatch")   a class, or `@limit("5/minute")` on the class itself
    path("item/<int:id>", limit("5/minute")(Item.as_view()))

Which limiter is asked, the one for threads or the one for event loops, goes by the view, and not by the server: Django
runs sync views in threads, and gives async views a loop.
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
from crestgate.integrations.django.drivers import through, through_async
from crestgate.integrations.django.layer import DjangoLayer
from crestgate.integrations.django.request import DjangoRequest
from crestgate.integrations.layer import LayerLimits, LayerOptions
from crestgate.integrations.shared_limiters import GivenLimiter
from crestgate.limiter.decorator import refuse_missing_brackets

__all__ = ["limit"]

V = TypeVar("V", bound=Callable[..., Any])


def limit(
    limits: LayerLimits = None,
    *,
    limiter: GivenLimiter = None,
    scope: str | None = None,
    **options: Unpack[LayerOptions],
) -> Callable[[V], V]:
    """Limit a view: for each caller and route (its template, so `/item/1` and `/item/2` share), or together with all
    views of the same `scope`. Without `limits` the rules of the limiter decide.

    What is not said here is as `CRESTGATE` in the settings says: the limiter, the key, the proxies, the headers…
    """
    refuse_missing_brackets(limits, '@limit("5/minute")')
    django_layer = DjangoLayer(limiter, limits, scope, options)
    if settings.configured or limiter is not None:
        with suppress(StoreError):  # it may not be reached from where this is imported: a build, a migration
            django_layer.check()

    def decorate(view: Any) -> Any:
        if isinstance(view, type):
            return method_decorator(decorate, name="dispatch")(view)
        if not callable(view):
            raise TypeError(f'limit is put on a view, with its limits in brackets, @limit("5/minute"); not on {view!r}')

        @wraps(view)
        def limited(*args: Any, **kwargs: Any) -> Any:
            request, owner = _request_in(args, kwargs, view)
            handle = partial(view, *args, **kwargs)
            if is_async or getattr(owner, "view_is_async", False):  # whose `dispatch` returns a coroutine
                async_layer = django_layer.for_loops()
                seen = DjangoRequest(request, async_layer.identity)
                return through_async(async_layer, seen, handle, scope or _route(seen, view, owner))
            layer = django_layer.for_threads()
            seen = DjangoRequest(request, layer.identity)
            return through(layer, seen, handle, scope or _route(seen, view, owner))

        is_async = iscoroutinefunction(view)
        if is_async:
            markcoroutinefunction(limited)
        return limited

    return decorate


def _request_in(args: tuple[Any, ...], kwargs: dict[str, Any], view: Any) -> tuple[Any, Any]:
    """The request among a view's arguments, and the object whose method the view is, if it is one."""
    if args and hasattr(args[0], "META"):
        return args[0], getattr(getattr(view, "func", None), "__self__", None)  # as `method_decorator` makes them
    if len(args) > 1 and hasattr(args[1], "META"):
        return args[1], args[0]
    if "request" in kwargs:
        return kwargs["request"], args[0] if args else None
    raise TypeError(f"{view!r} was called without a request: limit is put on views, whose first argument it is")


def _route(request: DjangoRequest, view: Any, owner: Any) -> str:
    """What the limits of a view are counted for: the view, since methods of a class, or a view that another calls, are
    at one place; and the route."""
    made = getattr(view, "view_class", view)
    name = getattr(made, "__qualname__", type(made).__qualname__)
    module = getattr(made, "__module__", type(made).__module__)
    if owner is not None:
        module, name = type(owner).__module__, f"{type(owner).__qualname__}.{getattr(view, '__name__', name)}"
    template = request.route
    return f"{module}.{name}" if template is None else f"{module}.{name} {template}"
