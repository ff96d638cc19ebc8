"""The Flask extension: its options, and the decorators of views and blueprints."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import Any, TypeVar, Unpack
from weakref import ref

import flask
from flask.sansio.blueprints import Blueprint

from crestgate.core.decision import Decision
from crestgate.core.limit import Limit
from crestgate.errors import ConfigError, RateLimitExceeded
from crestgate.integrations.flask.app_limits import AppLimits, Registry
from crestgate.integrations.flask.settings import check_settings
from crestgate.integrations.flask.view_limits import ViewLimit, limited_view, view_limits_of
from crestgate.integrations.keys import is_coroutine, with_one_argument
from crestgate.integrations.layer import LayerLimits, LayerOptions, coroutine_error
from crestgate.integrations.option_errors import unknown_option
from crestgate.integrations.request_state import NAME, RequestState
from crestgate.integrations.shared_limiters import GivenLimiter, sync_limiter_for
from crestgate.limiter.decorator_arguments import refuse_missing_brackets

__all__ = ["Crestgate"]

T = TypeVar("T")
EXTENSION = "crestgate"
"""Its key in `app.extensions`."""
_EXTENSION_OPTIONS = ("limiter", "default_limits", "application_limits", "key_func", "strategy", "enabled")
_VIEW_OPTIONS = ("limits", "scope", "per_method", "override_defaults", "key_func", "exempt_when", "deduct_when")


_ALIASES = (
    ("key_func", "key"),
    ("exempt_when", "exempt"),
    ("deduct_when", "when"),
    ("strategy", "default_algorithm"),
)
"""Flask-Limiter's names of options."""


class Crestgate:
    """The limits of Flask applications.

    `limiter`, and the options that all integrations have (`key`, `cost`, `exempt`, `methods`, `when`, `dry_run`,
    `wait`, `on_denied`, `headers`, `reset`, `default_algorithm`, `trusted_proxies`, `user`, `tier`, `client`,
    `attributes`, `api_key_header`), apply to all limits; a view may have its own. `key_func` is another name of `key`,
    and `strategy` of `default_algorithm`, with Flask-Limiter's values too ("fixed-window", "moving-window"). Callables
    are called with the request, or without it if they take no argument: `flask.request` and `g` are available. Without
    `application_limits`, the limiter's rules are checked, if it has any.

    Defaults of the arguments in `app.config`:

        CRESTGATE_STORE                  as `limiter`: a store's URL, a list of them, or a configuration's path
        CRESTGATE_DEFAULT_LIMITS         as `default_limits`
        CRESTGATE_APPLICATION_LIMITS     as `application_limits`
        CRESTGATE_TRUSTED_PROXIES        as `trusted_proxies`
        CRESTGATE_HEADERS                as `headers`
        CRESTGATE_RESET                  as `reset`: "epoch" as with Flask-Limiter, or "seconds"
        CRESTGATE_DEFAULT_ALGORITHM      as `default_algorithm`, or `strategy`
        CRESTGATE_ENABLED                False: nothing is limited. Read for each request, so tests can change it
    """

    def __init__(
        self,
        application: flask.Flask | None = None,
        /,
        *,
        app: flask.Flask | None = None,
        limiter: GivenLimiter = None,
        default_limits: LayerLimits | Iterable[Any] = None,
        application_limits: LayerLimits | Iterable[Any] = None,
        key_func: Callable[..., Any] | None = None,
        strategy: str | None = None,
        enabled: bool = True,
        **options: Unpack[LayerOptions],
    ) -> None:
        self.enabled = enabled
        self._limiter = limiter
        self._default_limits = default_limits
        self._application_limits = application_limits
        self._options = _normalise_options(options, _EXTENSION_OPTIONS, key_func=key_func, strategy=strategy)
        self._registry = Registry()
        self._app_limits: list[ref[AppLimits]] = []
        for flask_app in (application, app):  # with both, the first is Flask-Limiter's key function, an error
            if flask_app is not None:
                self.init_app(flask_app)

    def init_app(self, app: flask.Flask) -> None:
        """Limit an application. ConfigError for invalid limits and unknown plans."""
        if not isinstance(app, flask.Flask):
            name = getattr(app, "__name__", None)
            hint = f"; for the key write Crestgate(app, key={name})" if callable(app) and name else ""
            raise ConfigError(
                f"Crestgate takes a Flask application, or none if init_app(app) is called, not {app!r}{hint}"
            )
        installed = app.extensions.setdefault(EXTENSION, {})
        if self in installed:
            return
        check_settings(app)
        config = app.config
        limiter = self._limiter if self._limiter is not None else config.get("CRESTGATE_STORE")
        sync_limiter = sync_limiter_for(limiter)
        options = dict(self._options)
        for name in ("trusted_proxies", "headers", "reset", "default_algorithm"):
            if name not in options and config.get(f"CRESTGATE_{name.upper()}") is not None:
                options[name] = config[f"CRESTGATE_{name.upper()}"]
        given = self._application_limits or config.get("CRESTGATE_APPLICATION_LIMITS")
        application = self._view_limits(given, everywhere=True)
        if not application and sync_limiter.has_rules:
            application = [ViewLimit(self._registry, None, {}, everywhere=True)]
        defaults = self._view_limits(self._default_limits or config.get("CRESTGATE_DEFAULT_LIMITS"))
        app_limits = AppLimits(
            app, sync_limiter, self._registry, application, defaults, options, lambda: self._enabled(app)
        )
        for view_limit in self._registered_limits():
            app_limits.layer(view_limit)
        installed[self] = app_limits
        self._app_limits.append(ref(app_limits))
        app.before_request(app_limits.before_request)
        app.after_request(app_limits.after_request)
        app.teardown_request(app_limits.teardown_request)
        if RateLimitExceeded not in app.error_handler_spec[None][None]:  # unless the application has a handler
            app.register_error_handler(RateLimitExceeded, app_limits.handle_exceeded)

    def limit(
        self,
        limits: LayerLimits,
        *,
        scope: str | None = None,
        per_method: bool = False,
        override_defaults: bool = True,
        key_func: Callable[..., Any] | None = None,
        exempt_when: Callable[..., Any] | None = None,
        deduct_when: Callable[[Any], Any] | None = None,
        **options: Unpack[LayerOptions],
    ) -> Callable[[T], T]:
        """Limit a view, a method of a class-based view, or all views of a blueprint. It may be above or below
        `@app.route` and other decorators. For a whole class-based view, put it in its `decorators`.

        `limits` may be a callable that returns them for the request. `scope` joins several views in one counter, and
        `per_method` gives each method its own. `key_func`, `exempt_when` and `deduct_when` are other names of `key`,
        `exempt` and `when`; `deduct_when` is called with Flask's response, `when` with one whose `status` is a number.

        On a function that is not a view, the limit is checked when the function is called, once per request.
        """
        if limits is None:
            raise ConfigError('limit needs limits, such as gate.limit("5/minute")')
        refuse_missing_brackets(limits, '@gate.limit("5/minute")')
        given = _normalise_options(
            options, _VIEW_OPTIONS, key_func=key_func, exempt_when=exempt_when, deduct_when=deduct_when
        )
        view_limit = ViewLimit(self._registry, limits, given, _scope(scope), per_method, override_defaults)
        for app_limits in self._existing_app_limits():
            app_limits.layer(view_limit)  # raises ConfigError for invalid limits
        return self._decorator(view_limit)

    def shared_limit(
        self, limits: LayerLimits, scope: str, *, per_method: bool = False, **options: Any
    ) -> Callable[[T], T]:
        """`limit` with one counter, named `scope`, for all decorated views."""
        return self.limit(limits, scope=scope, per_method=per_method, **options)

    def exempt(self, view: T) -> T:
        """Exempt a view, or all views of a blueprint that have no limits of their own, from all limits."""
        return self._decorator(ViewLimit(self._registry, None, {}))(view)

    def request_filter(self, function: T) -> T:
        """Register a function that is called for each request: if it returns True, the request is not limited."""
        if not callable(function):
            raise ConfigError(f"request_filter decorates a function, not {function!r}")
        self._registry.filters.append(with_one_argument(function))
        return function

    def check(self) -> None:
        """Check the limits of the current request now, before they are checked anyway. Each is checked once.
        RateLimitExceeded if the request is denied."""
        app_limits = self._current_app_limits()
        if app_limits.enabled():
            response = app_limits.check(app_limits.request_limits())
            if response is not None:
                flask.abort(response)

    @property
    def current_limit(self) -> Decision | None:
        """The combined decision of all limits of the current request; None if it has none."""
        request_state = flask.request.environ.get(NAME)
        return request_state.decision() if isinstance(request_state, RequestState) else None

    def _decorator(self, view_limit: ViewLimit) -> Callable[[T], T]:
        def decorate(target: Any) -> Any:
            if isinstance(target, Blueprint):
                self._registry.blueprints.append((ref(target), view_limit))
                return target
            if isinstance(target, type):
                raise ConfigError(
                    f"{target.__name__} is a class-based view: write decorators = [gate.limit(…)] in the class"
                )
            if not callable(target):
                raise ConfigError(f"limits are for views and blueprints, not for {target!r}")
            wrapper = limited_view(target, view_limit, self._check_call)
            self._registry.add(wrapper)
            return wrapper

        return decorate

    def _check_call(self, view_limit: ViewLimit, function: Any) -> Any:
        return self._current_app_limits().check_call(view_limit, function) if flask.has_request_context() else None

    def _current_app_limits(self) -> AppLimits:
        app_limits: AppLimits | None = flask.current_app.extensions.get(EXTENSION, {}).get(self)
        if app_limits is None:
            raise ConfigError(
                "this application has no limits: call gate.init_app(app), or create gate = Crestgate(app)"
            )
        return app_limits

    def _existing_app_limits(self) -> list[AppLimits]:
        return [app_limits for app_limits in (reference() for reference in self._app_limits) if app_limits is not None]

    def _registered_limits(self) -> list[ViewLimit]:
        registry = self._registry
        views = [one for wrapper in registry.wrappers() for one in view_limits_of(wrapper, registry)]
        return [one for one in (*views, *[blueprint for _, blueprint in registry.blueprints]) if not one.exempts]

    def _enabled(self, app: flask.Flask) -> bool:
        return self.enabled and bool(app.config.get("CRESTGATE_ENABLED", True))

    def _view_limits(self, limits: Any, everywhere: bool = False) -> list[ViewLimit]:
        return [] if limits is None else [ViewLimit(self._registry, _as_chain(limits), {}, everywhere=everywhere)]


def _as_chain(limits: Any) -> LayerLimits:
    """A list of limits and callables as one chain, or as a callable that returns it."""
    if isinstance(limits, str | Limit) or callable(limits):
        single: LayerLimits = limits
        return single
    items = list(limits)
    callables = {one: with_one_argument(one) for one in items if callable(one)}
    if not callables:
        return items
    for one in callables:
        if is_coroutine(one):
            raise coroutine_error(one, "Flask")

    def chain(request: Any) -> list[Any] | None:
        resolved: list[Any] = []
        for one in items:
            value = callables[one](request) if callable(one) else one
            if value is not None:
                resolved.extend([value] if isinstance(value, str | Limit) else value)
        return resolved or None

    return chain


def _scope(scope: object) -> str | None:
    if scope is not None and (not isinstance(scope, str) or not scope):
        raise ConfigError(f"scope must be a name such as 'search', not {scope!r}")
    return scope


def _normalise_options(options: Any, others: Sequence[str], **aliases: Any) -> dict[str, Any]:
    """The options, including those given by Flask-Limiter's names (`aliases`). `others` are the other arguments, for
    error messages."""
    for name in options:
        if name not in LayerOptions.__annotations__:
            raise unknown_option(name, (*others, *LayerOptions.__annotations__))
    normalised = dict(options)
    for alias, name in _ALIASES:
        given = aliases.get(alias)
        if given is None:
            continue
        if name in normalised:
            raise ConfigError(f"{alias} and {name} are the same: write one of them")
        normalised[name] = _with_native_response(given) if alias == "deduct_when" else given
    return normalised


def _with_native_response(deduct_when: Callable[[Any], Any]) -> Callable[[Any], Any]:
    if not callable(deduct_when):
        raise ConfigError(f"deduct_when must be a callable, not {deduct_when!r}")
    return lambda response: deduct_when(response.native)
