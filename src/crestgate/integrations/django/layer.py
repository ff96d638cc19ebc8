"""The limits of the middleware, or of a decorator: a layer for threads and one for event loops, with the same counters.

Which of them a request passes is known by how its view, or the rest of the middleware, is called. What the application
gave as coroutines is waited for by threads too, as Django does it everywhere.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, cast

from asgiref.sync import async_to_sync

from crestgate.integrations.django.options import given, project
from crestgate.integrations.django.request import principal_async
from crestgate.integrations.keys import is_coroutine, with_one_argument
from crestgate.integrations.layer import LayerLimits, LayerOptions, LimitLayer
from crestgate.integrations.shared_limiters import GivenLimiter, async_limiter_for, sync_limiter_for
from crestgate.limiter.async_limiter import AsyncLimiter
from crestgate.limiter.limiter import Limiter

__all__ = ["DjangoLayer", "asks_user", "async_layer", "sync_layer"]

_USERS = ("user", "principal")


class DjangoLayer:
    """The limits of a decorator. What it does not say itself, the project's settings do, as they are at the time."""

    __slots__ = ("_limiter", "_limits", "_loops", "_options", "_scope", "_threads", "_written")

    def __init__(self, limiter: GivenLimiter, limits: LayerLimits, scope: str | None, options: LayerOptions) -> None:
        self._limiter = limiter
        self._limits = limits
        self._scope = scope
        self._options = options
        self._written: Mapping[str, Any] | None = None
        self._threads: LimitLayer[Limiter] | None = None
        self._loops: LimitLayer[AsyncLimiter] | None = None

    def check(self) -> None:
        """What cannot be used is an error now, as far as it can be known without the rest of the project."""
        limiter = self._limiter if self._limiter is not None else given().get("LIMITER")
        LimitLayer(async_limiter_for(limiter), self._limits, scope=self._scope, **self._options)

    def for_threads(self) -> LimitLayer[Limiter]:
        self._renew()
        layer = self._threads
        if layer is None:
            layer = self._threads = sync_layer(*self._made(), self._scope)
        return layer

    def for_loops(self) -> LimitLayer[AsyncLimiter]:
        self._renew()
        layer = self._loops
        if layer is None:
            layer = self._loops = async_layer(*self._made(), self._scope)
        return layer

    def _renew(self) -> None:
        """Tests change settings."""
        written = given()
        if written is not self._written:
            self._threads = self._loops = None
            self._written = written

    def _made(self) -> tuple[GivenLimiter, LayerLimits, LayerOptions]:
        settings = project(given())
        options = cast(LayerOptions, {**settings.shared, **self._options})
        return self._limiter if self._limiter is not None else settings.limiter, self._limits, options


def sync_layer(
    limiter: GivenLimiter, limits: LayerLimits, options: LayerOptions, scope: str | None = None
) -> LimitLayer[Limiter]:
    """A layer for threads."""
    ready: dict[str, Any] = {name: _waited_for(name, value) for name, value in options.items()}
    if callable(limits):
        limits = _waited_for("limits", limits)
    return LimitLayer(sync_limiter_for(limiter), limits, scope=scope, **cast(LayerOptions, ready))


def async_layer(
    limiter: GivenLimiter, limits: LayerLimits, options: LayerOptions, scope: str | None = None
) -> LimitLayer[AsyncLimiter]:
    """A layer for event loops. Where a user is asked for, the user is loaded ahead: see `principal_async`."""
    if options.get("user") is None and asks_user(limits, options):
        options = cast(LayerOptions, {**options, "user": principal_async})
    return LimitLayer(async_limiter_for(limiter), limits, scope=scope, **options)


def asks_user(limits: LayerLimits, options: LayerOptions) -> bool:
    """Whether every request is asked for its user: by a key, or by rules, which may be about users."""
    key = options.get("key", "ip")
    parts = key.split("|") if isinstance(key, str) else [] if callable(key) else list(key)
    return limits is None or any(isinstance(part, str) and part.strip().lower() in _USERS for part in parts)


def _waited_for(name: str, value: Any) -> Any:
    """A coroutine function as one that a thread can call."""
    if name == "key" and isinstance(value, list | tuple):
        return [_waited_for("", part) for part in value]
    if not is_coroutine(value):
        return value
    waited: Callable[..., Any] = async_to_sync(value if name == "on_denied" else with_one_argument(value))
    return waited
