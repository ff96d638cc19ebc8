"""The limits of one Flask application: which of them apply to a request, and their checks.

They are checked before the request is handled: first those of the application, then those of the view. The latter are
the innermost: those of the view, of its blueprint, of the blueprint around that, else the defaults. Outer limits are
checked only if the inner ones do not replace them.

Only the limits of the application apply to a request without a route (404, 405, the redirect to a slash): they limit
clients that probe paths. Files that Flask itself serves (`/static/…`) have only limits of their own.

The checks are settled when the response is known, before the headers are written.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from types import FunctionType
from typing import Any, cast
from weakref import ref

import flask

from crestgate.core.decision import Decision
from crestgate.errors import RateLimitExceeded
from crestgate.integrations.denial import Denial
from crestgate.integrations.drivers import LayerResult, check_sync, give_back, release_slots, settle
from crestgate.integrations.exemptions import Exempt, build_exemption
from crestgate.integrations.flask.request import Denied, FlaskRequest, FlaskResponse, RateLimited, template_of
from crestgate.integrations.flask.view_limits import ViewLimit, unwrapped, view_limits_of, wrapped_functions
from crestgate.integrations.layer import LimitLayer, no_limits
from crestgate.integrations.request_state import RequestState, request_state_in
from crestgate.integrations.wsgi import HeldBody
from crestgate.limiter.limiter import Limiter

__all__ = ["AppLimits", "Registry"]

Filters = Sequence[Callable[[Any], Any]]


class Registry:
    """The decorated views and blueprints of an extension, which may serve several applications."""

    def __init__(self) -> None:
        self._wrappers: list[ref[Any]] = []
        self._permanent: list[Any] = []
        """Wrappers of objects that cannot have attributes."""
        self.count = 0
        """How many views were decorated in total."""
        self.blueprints: list[tuple[ref[Any], ViewLimit]] = []
        self.filters: list[Callable[[Any], Any]] = []

    def add(self, wrapper: Any) -> None:
        """Register the wrapper of a decorated view. It lives as long as the functions that it wraps, since only one of
        these may be registered with Flask, and no longer: tests create many applications."""
        self._wrappers = [reference for reference in self._wrappers if reference() is not None]
        self._wrappers.append(ref(wrapper))
        self.count += 1
        inner = [one for one in wrapped_functions(wrapper) if isinstance(one, FunctionType) and one is not wrapper]
        for function in inner:
            target: Any = function
            target.__crestgate_wrappers__ = (*getattr(function, "__crestgate_wrappers__", ()), wrapper)
        if not inner:
            self._permanent.append(wrapper)

    def wrappers(self) -> list[Any]:
        """The wrappers of the views that still exist."""
        return [wrapper for wrapper in (reference() for reference in self._wrappers) if wrapper is not None]

    def blueprint_limits(self, blueprint: object) -> list[ViewLimit]:
        return [view_limit for reference, view_limit in self.blueprints if reference() is blueprint]


class FlaskRequestState:
    """One request at one extension."""

    __slots__ = ("admissions", "checked", "exempt", "has_response", "held", "request_state", "writes")

    def __init__(self, request_state: RequestState, exempt: bool, app_limits: AppLimits) -> None:
        self.request_state = request_state
        self.exempt = exempt
        self.checked: set[ViewLimit] = set()
        self.admissions: list[LayerResult[Limiter]] = []
        """To be settled when the response is known."""
        self.held: list[LayerResult[Limiter]] = []
        """Whose slots of in-flight limits are released when the response has ended."""
        self.has_response = False
        """Whether there is a response whose end releases them."""
        self.writes = request_state.writer is None
        if self.writes:
            request_state.writer = app_limits

    def settle(self, response: flask.Response) -> None:
        flask_response = FlaskResponse(response)
        for admission in self.admissions:
            settle(admission, flask_response)

    def release_with(self, response: flask.Response) -> None:
        """Release the slots when this response has ended."""
        self.has_response = True
        if response.is_sequence and not response.direct_passthrough:
            response.call_on_close(self.release)
        else:
            response.response = HeldBody(cast(Any, response.response), self.release)

    def release(self) -> None:
        held, self.held = self.held, []
        for admission in held:
            release_slots(admission)


class AppLimits:
    """An extension's limits in one application."""

    def __init__(
        self,
        app: flask.Flask,
        limiter: Limiter,
        registry: Registry,
        application_limits: Sequence[ViewLimit],
        default_limits: Sequence[ViewLimit],
        options: Mapping[str, Any],
        enabled: Callable[[], bool],
    ) -> None:
        self.app = app
        self.limiter = limiter
        self.enabled = enabled
        self._registry = registry
        self._application_limits = application_limits
        self._default_limits = default_limits
        self._options = dict(options)
        exempt: Exempt = self._options.pop("exempt", None)
        self._exempt = build_exemption(exempt)
        self._layers: dict[ViewLimit, LimitLayer[Limiter]] = {}
        self._limits_by_endpoint: dict[str, list[ViewLimit]] = {}
        self._indexed = (-1, -1)
        self._base_layer = LimitLayer(limiter, no_limits, **self._options)  # for headers, identity and on_denied
        self._base_layer.refuse_coroutines("Flask")
        self._state_name = f"crestgate.flask.{id(self)}"
        for view_limit in (*application_limits, *default_limits):
            self.layer(view_limit)

    def layer(self, view_limit: ViewLimit) -> LimitLayer[Limiter]:
        """The layer of a view's limit. ConfigError if it is invalid."""
        layer = self._layers.get(view_limit)
        if layer is None:
            layer = LimitLayer(self.limiter, view_limit.limits, **{**self._options, **view_limit.options})
            layer.refuse_coroutines("Flask")
            self._layers[view_limit] = layer
        return layer

    # Callbacks of Flask.

    def before_request(self) -> Any:
        return self.check(self.request_limits()) if self.enabled() else None

    def after_request(self, response: flask.Response) -> flask.Response:
        flask_state = flask.request.environ.get(self._state_name)
        if flask_state is None:
            return response
        if flask_state.admissions:
            flask_state.settle(response)
        if flask_state.held:
            flask_state.release_with(response)
        if flask_state.writes:
            for name, value in self._base_layer.limit_headers(flask_state.request_state):
                response.headers[name] = value
        return response

    def teardown_request(self, error: BaseException | None) -> None:
        """Settle the checks of an unhandled error, for which `after_request` is not called, as a 500. Release the slots
        of in-flight limits if there is no response whose end would do it."""
        flask_state = flask.request.environ.get(self._state_name)
        if flask_state is None:
            return
        if flask_state.held and (error is not None or not flask_state.has_response):
            flask_state.release()
        if isinstance(error, Exception):
            flask_state.settle(self.app.response_class(status=500))

    def handle_exceeded(self, error: RateLimitExceeded) -> Any:
        """The response to a denial, in an application without a handler of its own."""
        flask_state = self.flask_state()
        flask_state.request_state.add_decision(error.decision)
        if not isinstance(error, RateLimited):  # the application's own; for the extension's, on_denied was called
            request = FlaskRequest(_request(), self._base_layer.identity)
            response = self._custom_response(self._base_layer, request, error.decision)
            if response is not None:
                return response
        return self.app.handle_http_exception(Denied(error.decision))

    # Checks.

    def request_limits(self) -> Iterator[tuple[ViewLimit, str | None]]:
        """The limits of the current request, with the route in their keys."""
        request = _request()
        flask_state = self.flask_state()
        view_limits = self._view_limits(request)
        if view_limits is None:
            flask_state.exempt = True
        if flask_state.exempt:
            return
        for view_limit in self._application_limits:
            if view_limit.limits is None or not _is_static(request, self.app) or view_limits:
                yield view_limit, None
        for view_limit, per_method in view_limits or ():
            yield view_limit, self.route(view_limit, request, per_method)

    def check(self, limits: Iterable[tuple[ViewLimit, str | None]]) -> Any:
        """Check each limit that was not checked yet. If one denies, the charges of the others are given back. A denial
        is raised, or the response of `on_denied` returned."""
        flask_state = self.flask_state()
        unchecked = [(view_limit, route) for view_limit, route in limits if view_limit not in flask_state.checked]
        delay = 0.0
        admitted: list[LayerResult[Limiter]] = []
        for position, (view_limit, route) in enumerate(unchecked, 1):
            flask_state.checked.add(view_limit)
            layer = self.layer(view_limit)
            request = FlaskRequest(_request(), layer.identity)
            hold = position < len(unchecked)
            admission = check_sync(layer, request, flask_state.request_state, route, hold=hold, wait=False)
            if admission is None:
                continue
            if admission.refused:
                for earlier in admitted:
                    give_back(earlier)
                response = self._custom_response(layer, request, admission.decision)
                if response is None:
                    raise RateLimited(admission.decision)
                return response
            admitted.append(admission)
            delay = max(delay, layer.delay(admission.decision))
        flask_state.held.extend(admission for admission in admitted if admission.held is not None)
        flask_state.admissions.extend(admission for admission in admitted if admission.layer.when is not None)
        if delay:
            time.sleep(delay)  # if it is interrupted, `teardown_request` releases the slots
        return None

    def check_call(self, view_limit: ViewLimit, function: Any) -> Any:
        """Check the limit of a decorated function when it is called, unless it was checked before the request. It was
        not if the function is no view, or another decorator hides the limit."""
        if view_limit.exempts or not self.enabled():
            return None
        flask_state = self.flask_state()
        if flask_state.exempt or view_limit in flask_state.checked:
            return None
        name = f"{function.__module__}.{getattr(function, '__qualname__', type(function).__qualname__)}"
        return self.check([(view_limit, f"{self.route(view_limit, _request(), view_limit.per_method)} {name}")])

    def route(self, view_limit: ViewLimit, request: flask.Request, per_method: bool) -> str:
        """The route in the key of a view's limit. Two views may share a path and differ in method; HEAD is GET to
        both."""
        method = "GET" if request.method == "HEAD" else request.method
        if view_limit.scope is not None:
            return f"{method} {view_limit.scope}" if per_method else view_limit.scope
        rule = request.url_rule
        methods = rule.methods if rule is not None and rule.methods else ()
        methods_text = method if per_method else ",".join(sorted({*methods} - {"OPTIONS"}))
        return f"{methods_text} {template_of(request) or '-'}"

    def flask_state(self) -> FlaskRequestState:
        """The state of the current request."""
        native = _request()
        environ = native.environ
        flask_state: FlaskRequestState | None = environ.get(self._state_name)
        if flask_state is None:
            request = FlaskRequest(native, self._base_layer.identity)
            exempt = self._exempt is not None and bool(self._exempt(request))
            exempt = exempt or any(skip(request) for skip in self._registry.filters)
            flask_state = environ[self._state_name] = FlaskRequestState(request_state_in(environ), exempt, self)
        return flask_state

    def _custom_response(
        self, layer: LimitLayer[Limiter], request: FlaskRequest, decision: Decision
    ) -> flask.Response | None:
        custom = layer.custom_denial(request, decision)
        if custom is None:
            return None
        if isinstance(custom, Denial):
            return self.app.response_class(custom.body, custom.status, custom.all_headers())
        return self.app.make_response(custom)

    # The limits of a view.

    def _view_limits(self, request: flask.Request) -> list[tuple[ViewLimit, bool]] | None:
        """The limits of the request's view, and whether each counts per method; None: the view is exempt."""
        endpoint = request.endpoint
        if endpoint is None or request.url_rule is None:
            return []
        view = self.app.view_functions.get(endpoint)
        limits: list[tuple[ViewLimit, bool]] = []
        for level in self._levels(request, endpoint, view):
            if any(view_limit.exempts for view_limit, _ in level):
                return limits or None
            limits.extend(level)
            if any(view_limit.replaces for view_limit, _ in level):
                break
        return limits

    def _levels(self, request: flask.Request, endpoint: str, view: Any) -> Iterator[list[tuple[ViewLimit, bool]]]:
        """The limits from the innermost to the outermost: of the view, its blueprints, and the defaults."""
        own = [(view_limit, view_limit.per_method) for view_limit in self._endpoint_limits(endpoint)]
        owner = self._registry
        handler = getattr(getattr(view, "view_class", None), request.method.lower(), None)
        if handler is None and request.method == "HEAD":
            handler = getattr(getattr(view, "view_class", None), "get", None)
        own.extend((one, True) for one in view_limits_of(handler, owner) if (one, one.per_method) not in own)
        yield own
        if _is_static(request, self.app):
            return
        for name in request.blueprints:
            yield [(one, one.per_method) for one in owner.blueprint_limits(self.app.blueprints.get(name))]
        yield [(one, one.per_method) for one in self._default_limits]

    def _endpoint_limits(self, endpoint: str) -> list[ViewLimit]:
        """The limits of the view itself. They are indexed once: an application registers its views before it starts."""
        views = self.app.view_functions
        current = (len(views), self._registry.count)
        if current != self._indexed:
            self._limits_by_endpoint = self._index(views)
            self._indexed = current
        return self._limits_by_endpoint.get(endpoint, [])

    def _index(self, views: Mapping[str, Any]) -> dict[str, list[ViewLimit]]:
        index = {endpoint: view_limits_of(view, self._registry) for endpoint, view in views.items()}
        registered = {id(one) for view in views.values() for one in unwrapped(view)}
        for wrapper in self._registry.wrappers():
            if id(wrapper) in registered:
                continue
            inner = {id(one) for one in wrapped_functions(wrapper)}  # the decorator is above @app.route
            for endpoint, view in views.items():
                if id(view) in inner:
                    index[endpoint] = [*view_limits_of(wrapper, self._registry)[:1], *index[endpoint]]
        return index


def _is_static(request: flask.Request, app: flask.Flask) -> bool:
    """Whether Flask itself serves the request from a static folder."""
    endpoint = request.endpoint
    if endpoint is None or endpoint.rpartition(".")[2] != "static":
        return False
    blueprint = request.blueprint
    owner = app if blueprint is None else app.blueprints.get(blueprint)
    return owner is not None and owner.has_static_folder


def _request() -> flask.Request:
    request: flask.Request = flask.request._get_current_object()  # type: ignore[attr-defined]  # of the proxy
    return request
