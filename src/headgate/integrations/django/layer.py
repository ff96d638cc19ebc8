"""The limits of the middleware, or of a decorator: a gate for threads and one for event loops, with the same counters.

Which of them a request passes is known by how its view, or the rest of the middleware, is called. What the application
gave as coroutines is waited for by threads too, as Django does it everywhere.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, cast

from asgiref.sync import async_to_sync

from headgate.embedded.async_limiter import AsyncLimiter
from headgate.embedded.limiter import Limiter
from headgate.integrations.django.options import given, project
from headgate.integrations.django.request import principal_async
from headgate.integrations.gate import Gate, GateOptions, LayerLimits
from headgate.integrations.keys import is_coroutine, one_argument
from headgate.integrations.opening import GivenLimiter, limiter_for_loops, limiter_for_threads

__all__ = ["Layer", "asks_user", "loop_gate", "thread_gate"]

_USERS = ("user", "principal")


class Layer:
    """The limits of a decorator. What it does not say itself, the project's settings do, as they are at the time."""

    __slots__ = ("_limiter", "_limits", "_loops", "_options", "_scope", "_threads", "_written")

    def __init__(self, limiter: GivenLimiter, limits: LayerLimits, scope: str | None, options: GateOptions) -> None:
        self._limiter = limiter
        self._limits = limits
        self._scope = scope
        self._options = options
        self._written: Mapping[str, Any] | None = None
        self._threads: Gate[Limiter] | None = None
        self._loops: Gate[AsyncLimiter] | None = None

    def check(self) -> None:
        """What cannot be used is an error now, as far as it can be known without the rest of the project."""
        limiter = self._limiter if self._limiter is not None else given().get("LIMITER")
        Gate(limiter_for_loops(limiter), self._limits, scope=self._scope, **self._options)

    def for_threads(self) -> Gate[Limiter]:
        self._renew()
        gate = self._threads
        if gate is None:
            gate = self._threads = thread_gate(*self._made(), self._scope)
        return gate

    def for_loops(self) -> Gate[AsyncLimiter]:
        self._renew()
        gate = self._loops
        if gate is None:
            gate = self._loops = loop_gate(*self._made(), self._scope)
        return gate

    def _renew(self) -> None:
        """Tests change settings."""
        written = given()
        if written is not self._written:
            self._threads = self._loops = None
            self._written = written

    def _made(self) -> tuple[GivenLimiter, LayerLimits, GateOptions]:
        said = project(given())
        options = cast(GateOptions, {**said.shared, **self._options})
        return self._limiter if self._limiter is not None else said.limiter, self._limits, options


def thread_gate(
    limiter: GivenLimiter, limits: LayerLimits, options: GateOptions, scope: str | None = None
) -> Gate[Limiter]:
    """A gate for threads."""
    ready: dict[str, Any] = {name: _waited_for(name, value) for name, value in options.items()}
    if callable(limits):
        limits = _waited_for("limits", limits)
    return Gate(limiter_for_threads(limiter), limits, scope=scope, **cast(GateOptions, ready))


def loop_gate(
    limiter: GivenLimiter, limits: LayerLimits, options: GateOptions, scope: str | None = None
) -> Gate[AsyncLimiter]:
    """A gate for event loops. Where a user is asked for, the user is loaded ahead: see `principal_async`."""
    if options.get("user") is None and asks_user(limits, options):
        options = cast(GateOptions, {**options, "user": principal_async})
    return Gate(limiter_for_loops(limiter), limits, scope=scope, **options)


def asks_user(limits: LayerLimits, options: GateOptions) -> bool:
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
    waited: Callable[..., Any] = async_to_sync(value if name == "on_denied" else one_argument(value))
    return waited
