"""One application, implemented in every framework: its responses and its limits.

Each module of apps/ implements it: `serve(setup)` is a context manager that yields the URL of the application, which
runs over a real socket in this process. So a test can pass a limiter on virtual time.

    GET     /plain              "plain"; HEAD as the framework does it, OPTIONS 200 with an Allow header
    GET     /item/{id}          the id. Route limit.
    GET     /limited            "limited". Route limit.
    POST    /login              401 "no" when the body is b"wrong", else 200 "yes". Route limit.
    GET     /mounted/hello      "hello", from a sub-application (or what comes next to it), with a route of its own
    GET     /stream             two chunks, "first\\n" and "second\\n": the second when `released` is set
    GET     /sse                the same as server-sent events: "data: first\\n\\n" and so on, text/event-stream
    POST    /upload             how many bytes the body has, in digits; it is read piece by piece where that can be done
    GET     /boom               raises RuntimeError("boom") before it responds
    GET     /slow               "slow", when `released` is set; `entered` is set before it waits
    GET     /own                a response that the handler builds itself, with status 202 and a header X-Own: yes.
                                Route limit.

All other paths are 404. "Route limit": `setup.limits` by the framework's own decorator, with `setup.route` as its
further arguments, if `setup.limits` is not None and the framework has one (`HAS_ROUTES` in its module).
"""

from __future__ import annotations

from dataclasses import dataclass, field
from threading import Event
from typing import Any

from crestgate import Limiter
from crestgate.core.plans import Limits

__all__ = ["Setup"]


@dataclass
class Setup:
    """The parameters of an application."""

    limiter: Limiter
    middleware: dict[str, Any] | None = None
    """The arguments of the middleware, beside the limiter; None: no middleware."""
    mounted: dict[str, Any] | None = None
    """The same for a second middleware, around the sub-application."""
    limits: Limits | None = None
    """The limits of the routes that have some."""
    route: dict[str, Any] = field(default_factory=dict)
    released: Event = field(default_factory=Event)
    entered: Event = field(default_factory=Event)
    handled: list[str] = field(default_factory=list)
    """The paths that a handler was called for."""
