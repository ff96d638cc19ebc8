"""The middleware: limits on every request that comes through it, for a view that there is or for none."""

from __future__ import annotations

import logging
from collections.abc import Callable
from functools import partial
from typing import Any

from asgiref.sync import async_to_sync, iscoroutinefunction, markcoroutinefunction
from django.conf import settings
from django.core.exceptions import ImproperlyConfigured

from crestgate.errors import ConfigError, RateLimitExceeded
from crestgate.integrations.django.drivers import denied, through, through_async
from crestgate.integrations.django.exempt_views import frees
from crestgate.integrations.django.layer import asks_user, async_layer, sync_layer
from crestgate.integrations.django.options import Project, given, project
from crestgate.integrations.django.request import DjangoRequest, request_state_of
from crestgate.integrations.keys import is_coroutine
from crestgate.integrations.layer import LimitLayer, no_limits
from crestgate.integrations.shared_limiters import async_limiter_for
from crestgate.limiter.async_limiter import AsyncLimiter
from crestgate.limiter.limiter import Limiter

__all__ = ["RateLimitMiddleware"]

_log = logging.getLogger("crestgate")
_OWN = "crestgate.integrations.django.RateLimitMiddleware"
_LOGS_IN = "django.contrib.auth.middleware.AuthenticationMiddleware"


class RateLimitMiddleware:
    """Limits every request, as `CRESTGATE` in the settings says: see options.py.

    Without LIMITS the rules of the limiter decide. Without either nothing is asked here: the middleware then writes the
    headers for the limits of views, and answers to a RateLimitExceeded that a view raises.
    """

    sync_capable = True
    async_capable = True

    def __init__(self, get_response: Callable[[Any], Any]) -> None:
        self.get_response = get_response
        self._threads: LimitLayer[Limiter] | None = None
        self._loops: LimitLayer[AsyncLimiter] | None = None
        project_settings = project(given())
        try:
            self._asks = project_settings.limits is not None or async_limiter_for(project_settings.limiter).has_rules
            limits = project_settings.limits if self._asks else no_limits
            if iscoroutinefunction(get_response):
                markcoroutinefunction(self)
                self._loops = async_layer(project_settings.limiter, limits, project_settings.options)
            else:
                self._threads = sync_layer(project_settings.limiter, limits, project_settings.options)
        except (ConfigError, TypeError) as error:
            raise ImproperlyConfigured(f"CRESTGATE in the settings: {error}") from error
        if self._asks:
            _check_order(project_settings)
        else:
            _check_idle(project_settings)

    def __call__(self, request: Any) -> Any:
        handle = partial(self.get_response, request)
        if self._loops is not None:
            seen = DjangoRequest(request, self._loops.identity)
            return through_async(self._loops, seen, handle, counts=self._asks and not frees(seen))
        assert self._threads is not None
        seen = DjangoRequest(request, self._threads.identity)
        return through(self._threads, seen, handle, counts=self._asks and not frees(seen))

    def process_exception(self, request: Any, exception: Exception) -> Any:
        """What a guarded function denies inside of a view is denied as everything else. Django calls this in a thread,
        also for async views."""
        if not isinstance(exception, RateLimitExceeded):
            return None
        layer: LimitLayer[Any] | None = self._threads or self._loops
        assert layer is not None
        seen = DjangoRequest(request, layer.identity)
        decision = exception.decision
        request_state_of(request).add_decision(decision)
        hook = layer.on_denied
        if hook is not None and is_coroutine(hook):
            hook = async_to_sync(hook)
        return denied(layer, seen, decision, None if hook is None else hook(seen, decision))


def _check_order(project_settings: Project) -> None:
    """Who is counted by user must be known when counted: to be counted by the address in silence helps nobody."""
    listed = list(settings.MIDDLEWARE)
    if project_settings.options.get("user") is not None or not asks_user(
        project_settings.limits, project_settings.options
    ):
        return
    if _OWN not in listed or _LOGS_IN not in listed or listed.index(_LOGS_IN) < listed.index(_OWN):
        return
    if project_settings.limits is not None:
        raise ImproperlyConfigured(f"{_OWN} stands before {_LOGS_IN} in MIDDLEWARE, and so knows no user: put it after")
    # Rules are perhaps about no users at all.
    _log.warning("%s stands before %s in MIDDLEWARE, and so knows no user: put it after", _OWN, _LOGS_IN)


def _check_idle(project_settings: Project) -> None:
    """Settings that are the middleware's alone mean nothing where it has no limits."""
    for name in project_settings.options:
        if name not in project_settings.shared:
            raise ImproperlyConfigured(
                f"CRESTGATE[{name.upper()!r}] is for the limits of the middleware, and it has none: write some, such "
                'as CRESTGATE["LIMITS"] = "100/minute", or name rules, such as CRESTGATE["LIMITER"] = "crestgate.yaml"'
            )
