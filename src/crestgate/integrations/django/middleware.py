"""The middleware: limits all requests, also those for unknown paths."""

from __future__ import annotations

import logging
from collections.abc import Callable
from functools import partial
from typing import Any

from asgiref.sync import async_to_sync, iscoroutinefunction, markcoroutinefunction
from django.conf import settings
from django.core.exceptions import ImproperlyConfigured

from crestgate.errors import ConfigError, RateLimitExceeded
from crestgate.integrations.django.drivers import denial_response, handle_async, handle_sync
from crestgate.integrations.django.exempt_views import is_exempt
from crestgate.integrations.django.layer import build_async_layer, build_sync_layer, needs_user
from crestgate.integrations.django.options import Project, crestgate_settings, project_options
from crestgate.integrations.django.request import DjangoRequest, request_state_of
from crestgate.integrations.keys import is_coroutine
from crestgate.integrations.layer import LimitLayer, no_limits
from crestgate.integrations.shared_limiters import async_limiter_for
from crestgate.limiter.async_limiter import AsyncLimiter
from crestgate.limiter.limiter import Limiter

__all__ = ["RateLimitMiddleware"]

_log = logging.getLogger("crestgate")
_OWN = "crestgate.integrations.django.RateLimitMiddleware"
_AUTHENTICATION = "django.contrib.auth.middleware.AuthenticationMiddleware"


class RateLimitMiddleware:
    """Limits all requests, as configured by `CRESTGATE` in the settings: see options.py.

    Without LIMITS the limiter's rules apply. Without either, the middleware checks nothing: it only writes the headers
    for the limits of views, and responds to a RateLimitExceeded that a view raises.
    """

    sync_capable = True
    async_capable = True

    def __init__(self, get_response: Callable[[Any], Any]) -> None:
        self.get_response = get_response
        self._sync_layer: LimitLayer[Limiter] | None = None
        self._async_layer: LimitLayer[AsyncLimiter] | None = None
        project = project_options(crestgate_settings())
        try:
            self._has_limits = project.limits is not None or async_limiter_for(project.limiter).has_rules
            limits = project.limits if self._has_limits else no_limits
            if iscoroutinefunction(get_response):
                markcoroutinefunction(self)
                self._async_layer = build_async_layer(project.limiter, limits, project.options)
            else:
                self._sync_layer = build_sync_layer(project.limiter, limits, project.options)
        except (ConfigError, TypeError) as error:
            raise ImproperlyConfigured(f"CRESTGATE in the settings: {error}") from error
        if self._has_limits:
            _check_order(project)
        else:
            _refuse_unused(project)

    def __call__(self, request: Any) -> Any:
        handler = partial(self.get_response, request)
        if self._async_layer is not None:
            django_request = DjangoRequest(request, self._async_layer.identity)
            limited = self._has_limits and not is_exempt(django_request)
            return handle_async(self._async_layer, django_request, handler, limited=limited)
        assert self._sync_layer is not None
        django_request = DjangoRequest(request, self._sync_layer.identity)
        limited = self._has_limits and not is_exempt(django_request)
        return handle_sync(self._sync_layer, django_request, handler, limited=limited)

    def process_exception(self, request: Any, exception: Exception) -> Any:
        """Respond to a RateLimitExceeded that a view raises. Django calls this in a thread, also for async views."""
        if not isinstance(exception, RateLimitExceeded):
            return None
        layer: LimitLayer[Any] | None = self._sync_layer or self._async_layer
        assert layer is not None
        decision = exception.decision
        request_state_of(request).add_decision(decision)
        django_request = DjangoRequest(request, layer.identity)
        on_denied = layer.on_denied
        if on_denied is not None and is_coroutine(on_denied):
            on_denied = async_to_sync(on_denied)
        custom = None if on_denied is None else on_denied(django_request, decision)
        return denial_response(layer, django_request, decision, custom)


def _check_order(project: Project) -> None:
    """A key by user needs the user: counting by address without notice would be a surprise."""
    listed = list(settings.MIDDLEWARE)
    if project.options.get("user") is not None or not needs_user(project.limits, project.options):
        return
    if _OWN not in listed or _AUTHENTICATION not in listed or listed.index(_AUTHENTICATION) < listed.index(_OWN):
        return
    if project.limits is not None:
        raise ImproperlyConfigured(
            f"{_OWN} is before {_AUTHENTICATION} in MIDDLEWARE, and so knows no user: put it after"
        )
    # Only a warning: rules may not use users at all.
    _log.warning("%s is before %s in MIDDLEWARE, and so knows no user: put it after", _OWN, _AUTHENTICATION)


def _refuse_unused(project: Project) -> None:
    """ImproperlyConfigured for settings that have no effect without limits."""
    for name in project.options:
        if name not in project.shared:
            raise ImproperlyConfigured(
                f"CRESTGATE[{name.upper()!r}] is for the limits of the middleware, and it has none: write some, such "
                'as CRESTGATE["LIMITS"] = "100/minute", or name rules, such as CRESTGATE["LIMITER"] = "crestgate.yaml"'
            )
