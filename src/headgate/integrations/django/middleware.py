"""The middleware: limits on every request that comes through it, for a view that there is or for none."""

from __future__ import annotations

import logging
from collections.abc import Callable
from functools import partial
from typing import Any

from asgiref.sync import async_to_sync, iscoroutinefunction, markcoroutinefunction
from django.conf import settings
from django.core.exceptions import ImproperlyConfigured

from headgate.embedded.async_limiter import AsyncLimiter
from headgate.embedded.limiter import Limiter
from headgate.errors import ConfigError, RateLimitExceeded
from headgate.integrations.django.freeing import frees
from headgate.integrations.django.layer import asks_user, loop_gate, thread_gate
from headgate.integrations.django.options import Project, given, project
from headgate.integrations.django.passing import denied, through, through_async
from headgate.integrations.django.request import DjangoRequest, visit_of
from headgate.integrations.gate import Gate, no_limits
from headgate.integrations.keys import is_coroutine
from headgate.integrations.opening import limiter_for_loops

__all__ = ["RateLimitMiddleware"]

_log = logging.getLogger("headgate")
_OWN = "headgate.integrations.django.RateLimitMiddleware"
_LOGS_IN = "django.contrib.auth.middleware.AuthenticationMiddleware"


class RateLimitMiddleware:
    """Limits every request, as `HEADGATE` in the settings says: see options.py.

    Without LIMITS the rules of the limiter decide. Without either nothing is asked here: the middleware then writes the
    headers for the limits of views, and answers to a RateLimitExceeded that a view raises.
    """

    sync_capable = True
    async_capable = True

    def __init__(self, get_response: Callable[[Any], Any]) -> None:
        self.get_response = get_response
        self._threads: Gate[Limiter] | None = None
        self._loops: Gate[AsyncLimiter] | None = None
        said = project(given())
        try:
            self._asks = said.limits is not None or limiter_for_loops(said.limiter).has_rules
            limits = said.limits if self._asks else no_limits
            if iscoroutinefunction(get_response):
                markcoroutinefunction(self)
                self._loops = loop_gate(said.limiter, limits, said.options)
            else:
                self._threads = thread_gate(said.limiter, limits, said.options)
        except (ConfigError, TypeError) as error:
            raise ImproperlyConfigured(f"HEADGATE in the settings: {error}") from error
        if self._asks:
            _check_order(said)
        else:
            _check_idle(said)

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
        gate: Gate[Any] | None = self._threads or self._loops
        assert gate is not None
        seen = DjangoRequest(request, gate.identity)
        decision = exception.decision
        visit_of(request).tell(decision)
        hook = gate.on_denied
        if hook is not None and is_coroutine(hook):
            hook = async_to_sync(hook)
        return denied(gate, seen, decision, None if hook is None else hook(seen, decision))


def _check_order(said: Project) -> None:
    """Who is counted by user must be known when counted: to be counted by the address in silence helps nobody."""
    listed = list(settings.MIDDLEWARE)
    if said.options.get("user") is not None or not asks_user(said.limits, said.options):
        return
    if _OWN not in listed or _LOGS_IN not in listed or listed.index(_LOGS_IN) < listed.index(_OWN):
        return
    if said.limits is not None:
        raise ImproperlyConfigured(f"{_OWN} stands before {_LOGS_IN} in MIDDLEWARE, and so knows no user: put it after")
    # Rules are perhaps about no users at all.
    _log.warning("%s stands before %s in MIDDLEWARE, and so knows no user: put it after", _OWN, _LOGS_IN)


def _check_idle(said: Project) -> None:
    """Settings that are the middleware's alone mean nothing where it has no limits."""
    for name in said.options:
        if name not in said.shared:
            raise ImproperlyConfigured(
                f"HEADGATE[{name.upper()!r}] is for the limits of the middleware, and it has none: write some, such as "
                'HEADGATE["LIMITS"] = "100/minute", or name rules, such as HEADGATE["LIMITER"] = "headgate.yaml"'
            )
