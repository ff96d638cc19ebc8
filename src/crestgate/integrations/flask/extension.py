"""The extension: what an application and its views are told of limits."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import Any, TypeVar, Unpack
from weakref import ref

import flask
from flask.sansio.blueprints import Blueprint

from crestgate.core.decision import Decision
from crestgate.core.limit import Limit
from crestgate.errors import ConfigError, RateLimitExceeded
from crestgate.integrations.flask.app_limits import Site, Written
from crestgate.integrations.flask.settings import look_over
from crestgate.integrations.flask.view_limits import ViewLimit, mark, view_limits_of
from crestgate.integrations.keys import is_coroutine, with_one_argument
from crestgate.integrations.layer import LayerLimits, LayerOptions
from crestgate.integrations.option_errors import unknown_option
from crestgate.integrations.request_state import NAME, RequestState
from crestgate.integrations.shared_limiters import GivenLimiter, sync_limiter_for
from crestgate.limiter.decorator import refuse_missing_brackets

__all__ = ["Crestgate"]

T = TypeVar("T")
EXTENSION = "crestgate"
"""Where the extension stands in `app.extensions`."""
_OF_ALL = ("limiter", "default_limits", "application_limits", "key_func", "enabled")
_OF_ONE = ("limits", "scope", "per_method", "override_defaults", "key_func", "exempt_when", "deduct_when")


class Crestgate:
    """The limits of Flask applications.

    `limiter`, and the options that every integration has (`key`, `cost`, `exempt`, `methods`, `when`, `dry_run`,
    `wait`, `on_denied`, `headers`, `trusted_proxies`, `user`, `tier`, `client`, `api_key_header`), are for all limits;
    a view may have its own. `key_func` is another name of `key`. Callables are given the request, or nothing if they
    take nothing: `flask.request` and `g` are there. Without `application_limits` the limiter's rules are asked, if it
    has any.

    From `app.config`, where no argument says otherwise:

        CRESTGATE_STORE                  what `limiter` takes: a store's URL, a list of them, or a configuration's path
        CRESTGATE_DEFAULT_LIMITS         as `default_limits`
        CRESTGATE_APPLICATION_LIMITS     as `application_limits`
        CRESTGATE_TRUSTED_PROXIES        as `trusted_proxies`
        CRESTGATE_HEADERS                as `headers`
        CRESTGATE_ENABLED                False: nothing is limited. Looked at for each request, for tests that switch
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
        enabled: bool = True,
        **options: Unpack[LayerOptions],
    ) -> None:
        self.enabled = enabled
        self._limiter = limiter
        self._default_limits = default_limits
        self._application_limits = application_limits
        self._options = _options(options, _OF_ALL, key_func=key_func)
        self._written = Written()
        self._sites: list[ref[Site]] = []
        for one in (application, app):  # two: the first is what users of Flask-Limiter write there, and is refused
            if one is not None:
                self.init_app(one)

    def init_app(self, app: flask.Flask) -> None:
        """Limit an application. Limits that cannot be read, and plans that do not exist, are a ConfigError here."""
        if not isinstance(app, flask.Flask):
            name = getattr(app, "__name__", None)
            hint = f"; whom to count is said by Crestgate(app, key={name})" if callable(app) and name else ""
            raise ConfigError(
                f"Crestgate is made with a Flask application, or with none and init_app(app), not {app!r}{hint}"
            )
        installed = app.extensions.setdefault(EXTENSION, {})
        if self in installed:
            return
        look_over(app)
        config = app.config
        limiter = self._limiter if self._limiter is not None else config.get("CRESTGATE_STORE")
        opened = sync_limiter_for(limiter)
        options = dict(self._options)
        for name in ("trusted_proxies", "headers"):
            if name not in options and config.get(f"CRESTGATE_{name.upper()}") is not None:
                options[name] = config[f"CRESTGATE_{name.upper()}"]
        everywhere = self._application_limits or config.get("CRESTGATE_APPLICATION_LIMITS")
        application = self._marks(everywhere, everywhere=True)
        if not application and opened.has_rules:
            application = [ViewLimit(self._written, None, {}, everywhere=True)]
        defaults = self._marks(self._default_limits or config.get("CRESTGATE_DEFAULT_LIMITS"))
        site = Site(app, opened, self._written, (application, defaults), options, lambda: self._enabled(app))
        for written in self._all_marks():
            site.layer(written)
        installed[self] = site
        self._sites.append(ref(site))
        app.before_request(site.before)
        app.after_request(site.after)
        app.teardown_request(site.done)
        if RateLimitExceeded not in app.error_handler_spec[None][None]:  # the application's own stays
            app.register_error_handler(RateLimitExceeded, site.refuse)

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
        """Limit a view, a method of a class-based view, or all views of a blueprint. Other decorators and `@app.route`
        may stand above or below. A class-based view as a whole has it in its `decorators`.

        `limits` may be a callable, which tells them for the request. `scope` joins several views in one counter, and
        `per_method` gives each method its own. `key_func`, `exempt_when` and `deduct_when` are other names of `key`,
        `exempt` and `when`; the last is given Flask's response, where `when` has `response.status` as a number.

        On a function that is no view, it is asked when that is called in a request, once for each.
        """
        if limits is None:
            raise ConfigError('limit needs limits, such as gate.limit("5/minute")')
        refuse_missing_brackets(limits, '@gate.limit("5/minute")')
        given = _options(options, _OF_ONE, key_func=key_func, exempt_when=exempt_when, deduct_when=deduct_when)
        made = ViewLimit(self._written, limits, given, _scope(scope), per_method, override_defaults)
        for site in self._living():
            site.layer(made)  # what cannot be read is an error now
        return self._decorator(made)

    def shared_limit(
        self, limits: LayerLimits, scope: str, *, per_method: bool = False, **options: Any
    ) -> Callable[[T], T]:
        """`limit` with one counter, of the name `scope`, for all that it decorates."""
        return self.limit(limits, scope=scope, per_method=per_method, **options)

    def exempt(self, view: T) -> T:
        """A view, or all views of a blueprint that have no limits of their own: not limited at all."""
        return self._decorator(ViewLimit(self._written, None, {}))(view)

    def request_filter(self, function: T) -> T:
        """A function that is asked about every request: what it returns True for is not limited."""
        if not callable(function):
            raise ConfigError(f"request_filter decorates a function, not {function!r}")
        self._written.filters.append(with_one_argument(function))
        return function

    def check(self) -> None:
        """Ask the limits of the current request now, where something is done before they are asked anyway. They are
        asked once; RateLimitExceeded when it is denied."""
        site = self._site()
        if site.enabled():
            shaped = site.ask(site.due())
            if shaped is not None:
                flask.abort(shaped)

    @property
    def current_limit(self) -> Decision | None:
        """What was decided about the current request, by all its limits together; None when it has none."""
        request_state = flask.request.environ.get(NAME)
        return request_state.decision() if isinstance(request_state, RequestState) else None

    def _decorator(self, made: ViewLimit) -> Callable[[T], T]:
        def decorate(target: Any) -> Any:
            if isinstance(target, Blueprint):
                self._written.blueprints.append((ref(target), made))
                return target
            if isinstance(target, type):
                raise ConfigError(
                    f"a class-based view has its limits in it: write decorators = [gate.limit(…)] in {target.__name__}"
                )
            if not callable(target):
                raise ConfigError(f"limits are for views and blueprints, not for {target!r}")
            wrapper = mark(target, made, self._called)
            self._written.remember(wrapper)
            return wrapper

        return decorate

    def _called(self, made: ViewLimit, function: Any) -> Any:
        return self._site().ask_called(made, function) if flask.has_request_context() else None

    def _site(self) -> Site:
        site = flask.current_app.extensions.get(EXTENSION, {}).get(self)
        if site is None:
            raise ConfigError("these limits are not in use: call gate.init_app(app), or make it with Crestgate(app)")
        found: Site = site
        return found

    def _living(self) -> list[Site]:
        return [site for site in (known() for known in self._sites) if site is not None]

    def _all_marks(self) -> list[ViewLimit]:
        views = [one for wrapper in self._written.living() for one in view_limits_of(wrapper, self._written)]
        return [one for one in (*views, *[made for _, made in self._written.blueprints]) if not one.exempts]

    def _enabled(self, app: flask.Flask) -> bool:
        return self.enabled and bool(app.config.get("CRESTGATE_ENABLED", True))

    def _marks(self, limits: Any, everywhere: bool = False) -> list[ViewLimit]:
        return [] if limits is None else [ViewLimit(self._written, _listed(limits), {}, everywhere=everywhere)]


def _listed(limits: Any) -> LayerLimits:
    """Limits as a list of them is written, in which callables may tell some. All of them are one chain."""
    if isinstance(limits, str | Limit) or callable(limits):
        told: LayerLimits = limits
        return told
    listed = list(limits)
    callables = {one: with_one_argument(one) for one in listed if callable(one)}
    if not callables:
        return listed
    for one in callables:
        if is_coroutine(one):
            raise ConfigError(f"{one!r} is a coroutine function, and nobody can wait for one in Flask")

    def chain(request: Any) -> list[Any] | None:
        found: list[Any] = []
        for one in listed:
            said = callables[one](request) if callable(one) else one
            if said is not None:
                found.extend([said] if isinstance(said, str | Limit) else said)
        return found or None

    return chain


def _scope(scope: object) -> str | None:
    if scope is not None and (not isinstance(scope, str) or not scope):
        raise ConfigError(f"scope must be a name such as 'search', not {scope!r}")
    return scope


def _options(options: Any, others: Sequence[str], **habits: Any) -> dict[str, Any]:
    """The options, with those that were written under the names that users of Flask-Limiter know. `others` are the
    names that may stand beside them."""
    for name in options:
        if name not in LayerOptions.__annotations__:
            raise unknown_option(name, (*others, *LayerOptions.__annotations__))
    found = dict(options)
    for habit, name in (("key_func", "key"), ("exempt_when", "exempt"), ("deduct_when", "when")):
        given = habits.get(habit)
        if given is None:
            continue
        if name in found:
            raise ConfigError(f"{habit} and {name} are the same: write one of them")
        found[name] = _native(given) if habit == "deduct_when" else given
    return found


def _native(deduct_when: Callable[[Any], Any]) -> Callable[[Any], Any]:
    if not callable(deduct_when):
        raise ConfigError(f"deduct_when must be a callable, not {deduct_when!r}")
    return lambda response: deduct_when(response.native)
