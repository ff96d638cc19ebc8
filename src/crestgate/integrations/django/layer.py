"""Layers of the middleware and of decorators: one for threads and one for event loops, with the same counters.

Which of them is used depends on whether the view, or the next middleware, is async. Coroutine functions of the
application work in threads too, as everywhere in Django.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, cast

from asgiref.sync import async_to_sync

from crestgate.integrations.django.options import crestgate_settings, project_options
from crestgate.integrations.django.request import principal_async
from crestgate.integrations.keys import is_coroutine, with_one_argument
from crestgate.integrations.layer import LayerLimits, LayerOptions, LimitLayer
from crestgate.integrations.shared_limiters import GivenLimiter, async_limiter_for, sync_limiter_for
from crestgate.limiter.async_limiter import AsyncLimiter
from crestgate.limiter.limiter import Limiter

__all__ = ["DjangoLayer", "build_async_layer", "build_sync_layer", "needs_user"]

_USER_KEYS = ("user", "principal")


class DjangoLayer:
    """The limits of a decorator. Its defaults are the project's current settings."""

    __slots__ = ("_async_layer", "_limiter", "_limits", "_options", "_scope", "_settings", "_sync_layer")

    def __init__(self, limiter: GivenLimiter, limits: LayerLimits, scope: str | None, options: LayerOptions) -> None:
        self._limiter = limiter
        self._limits = limits
        self._scope = scope
        self._options = options
        self._settings: Mapping[str, Any] | None = None
        self._sync_layer: LimitLayer[Limiter] | None = None
        self._async_layer: LimitLayer[AsyncLimiter] | None = None

    def validate(self) -> None:
        """ConfigError for invalid limits and options, as far as they can be checked at import time."""
        limiter = self._limiter if self._limiter is not None else crestgate_settings().get("LIMITER")
        LimitLayer(async_limiter_for(limiter), self._limits, scope=self._scope, **self._options)

    def sync_layer(self) -> LimitLayer[Limiter]:
        self._check_settings()
        layer = self._sync_layer
        if layer is None:
            layer = self._sync_layer = build_sync_layer(*self._arguments(), self._scope)
        return layer

    def async_layer(self) -> LimitLayer[AsyncLimiter]:
        self._check_settings()
        layer = self._async_layer
        if layer is None:
            layer = self._async_layer = build_async_layer(*self._arguments(), self._scope)
        return layer

    def _check_settings(self) -> None:
        """Drop the layers if the settings have changed, as tests do."""
        settings = crestgate_settings()
        if settings is not self._settings:
            self._sync_layer = self._async_layer = None
            self._settings = settings

    def _arguments(self) -> tuple[GivenLimiter, LayerLimits, LayerOptions]:
        project = project_options(crestgate_settings())
        options = cast(LayerOptions, {**project.shared, **self._options})
        return self._limiter if self._limiter is not None else project.limiter, self._limits, options


def build_sync_layer(
    limiter: GivenLimiter, limits: LayerLimits, options: LayerOptions, scope: str | None = None
) -> LimitLayer[Limiter]:
    """A layer for threads."""
    sync_options: dict[str, Any] = {name: _to_sync(name, value) for name, value in options.items()}
    if callable(limits):
        limits = _to_sync("limits", limits)
    return LimitLayer(sync_limiter_for(limiter), limits, scope=scope, **cast(LayerOptions, sync_options))


def build_async_layer(
    limiter: GivenLimiter, limits: LayerLimits, options: LayerOptions, scope: str | None = None
) -> LimitLayer[AsyncLimiter]:
    """A layer for event loops. If it needs the user, `principal_async` loads the user without blocking the loop."""
    if options.get("user") is None and needs_user(limits, options):
        options = cast(LayerOptions, {**options, "user": principal_async})
    return LimitLayer(async_limiter_for(limiter), limits, scope=scope, **options)


def needs_user(limits: LayerLimits, options: LayerOptions) -> bool:
    """Whether the user of each request is needed: for a key, or for rules, which may match users."""
    key = options.get("key", "ip")
    parts = key.split("|") if isinstance(key, str) else [] if callable(key) else list(key)
    return limits is None or any(isinstance(part, str) and part.strip().lower() in _USER_KEYS for part in parts)


def _to_sync(name: str, value: Any) -> Any:
    """A coroutine function as a function that a thread can call; other values as they are."""
    if name == "key" and isinstance(value, list | tuple):
        return [_to_sync("", part) for part in value]
    if not is_coroutine(value):
        return value
    function: Callable[..., Any] = async_to_sync(value if name == "on_denied" else with_one_argument(value))
    return function
