"""The limits of one Flask application: which of them a request passes, and when.

They are asked before the request is handled: those of the application, then those of the view. The latter are the
nearest that somebody wrote: on the view, on its blueprint, on the blueprint around that, else the defaults. What is
further out is only asked where the nearer ones do not replace it.

A request that no route is for (404, 405, the redirect to a slash) passes the limits of the application alone: whoever
tries paths out is limited by those. Files that Flask itself serves (`/static/…`) have none but those of their own.

What was asked is settled when the response is known, and its headers say how the counters stand then.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from types import FunctionType
from typing import Any
from weakref import ref

import flask

from crestgate.core.decision import Decision
from crestgate.errors import RateLimitExceeded
from crestgate.integrations.denial import Denial
from crestgate.integrations.drivers import Admission, check_sync, give_back, settle
from crestgate.integrations.exemptions import Exempt, build_exemption
from crestgate.integrations.flask.request import Denied, FlaskRequest, FlaskResponse, RateLimited, template_of
from crestgate.integrations.flask.view_limits import ViewLimit, unwrapped, view_limits_of, wrapped_functions
from crestgate.integrations.layer import LimitLayer, no_limits
from crestgate.integrations.request_state import RequestState
from crestgate.integrations.wsgi import request_state_of
from crestgate.limiter.limiter import Limiter

__all__ = ["Site", "Written"]

Filters = Sequence[Callable[[Any], Any]]


class Written:
    """What an extension was told, for whatever application: the views and blueprints that have limits."""

    def __init__(self) -> None:
        self._wrappers: list[ref[Any]] = []
        self._kept: list[Any] = []
        self.count = 0
        """How many views were ever decorated."""
        self.blueprints: list[tuple[ref[Any], ViewLimit]] = []
        self.filters: list[Callable[[Any], Any]] = []

    def remember(self, wrapper: Any) -> None:
        """A view was decorated. Its wrapper lives as long as what it wraps, of which one may be all that is registered,
        and no longer: applications come and go, in tests at least, and take their views along."""
        self._wrappers = [known for known in self._wrappers if known() is not None]
        self._wrappers.append(ref(wrapper))
        self.count += 1
        inside = [one for one in wrapped_functions(wrapper) if isinstance(one, FunctionType) and one is not wrapper]
        for one in inside:
            held: Any = one
            held.__crestgate_wrappers__ = (*getattr(one, "__crestgate_wrappers__", ()), wrapper)
        if not inside:
            self._kept.append(wrapper)

    def living(self) -> list[Any]:
        """The wrappers of the views that are still there."""
        return [wrapper for wrapper in (known() for known in self._wrappers) if wrapper is not None]

    def of_blueprint(self, blueprint: object) -> list[ViewLimit]:
        return [mark for known, mark in self.blueprints if known() is blueprint]


class FlaskRequestState:
    """One request on its way through one extension."""

    __slots__ = ("admissions", "checked", "exempt", "request_state", "writes")

    def __init__(self, request_state: RequestState, exempt: bool, site: Site) -> None:
        self.request_state = request_state
        self.exempt = exempt
        self.checked: set[ViewLimit] = set()
        self.admissions: list[Admission[Limiter]] = []
        """What is to be settled when the response is known."""
        self.writes = request_state.writer is None
        if self.writes:
            request_state.writer = site


class Site:
    """An extension's limits in one application."""

    def __init__(
        self,
        app: flask.Flask,
        limiter: Limiter,
        written: Written,
        marks: tuple[Sequence[ViewLimit], Sequence[ViewLimit]],
        options: Mapping[str, Any],
        enabled: Callable[[], bool],
    ) -> None:
        self.app = app
        self.limiter = limiter
        self.enabled = enabled
        self._written = written
        self._application, self._defaults = marks
        self._options = dict(options)
        exempt: Exempt = self._options.pop("exempt", None)
        self._exempt = build_exemption(exempt)
        self._gates: dict[ViewLimit, LimitLayer[Limiter]] = {}
        self._views: dict[str, list[ViewLimit]] = {}
        self._known = (-1, -1)
        self._any = LimitLayer(limiter, no_limits, **self._options)  # how headers are written, and who asks
        self._any.refuse_coroutines("Flask")
        self._name = f"crestgate.flask.{id(self)}"
        for mark in (*self._application, *self._defaults):
            self.layer(mark)

    def layer(self, mark: ViewLimit) -> LimitLayer[Limiter]:
        """The limits that a mark stands for. What cannot be read is a ConfigError."""
        layer = self._gates.get(mark)
        if layer is None:
            layer = LimitLayer(self.limiter, mark.limits, **{**self._options, **mark.options})
            layer.refuse_coroutines("Flask")
            self._gates[mark] = layer
        return layer

    # What Flask calls.

    def before(self) -> Any:
        """Before a request is handled: what is returned is the response."""
        return self.ask(self.due()) if self.enabled() else None

    def after(self, response: flask.Response) -> flask.Response:
        """When the response is known."""
        flask_state = flask.request.environ.get(self._name)
        if flask_state is None:
            return response
        if flask_state.admissions:
            response_view = FlaskResponse(response)
            for admission in flask_state.admissions:
                settle(admission, response_view)
        if flask_state.writes:
            for name, value in flask_state.request_state.headers(self._any.style, self.limiter.clock.ticks()):
                response.headers[name.decode("latin-1")] = value.decode("latin-1")
        return response

    def done(self, error: BaseException | None) -> None:
        """After the request: an error that went through to the server is a response that nobody here has seen."""
        flask_state = flask.request.environ.get(self._name)
        if flask_state is not None and isinstance(error, Exception):
            response_view = FlaskResponse(self.app.response_class(status=500))
            for admission in flask_state.admissions:
                settle(admission, response_view)

    def refuse(self, error: RateLimitExceeded) -> Any:
        """The response to a denial that no handler of the application's own has answered."""
        flask_state = self.flask_state()
        flask_state.request_state.add_decision(error.decision)
        if not isinstance(error, RateLimited):  # the application's own: the extension's were shaped already
            request = FlaskRequest(_request(), self._any.identity)
            shaped = self._shaped(self._any, request, error.decision)
            if shaped is not None:
                return shaped
        return self.app.handle_http_exception(Denied(error.decision))

    # What is asked.

    def due(self) -> Iterator[tuple[ViewLimit, str | None]]:
        """The limits of the request, with the route that they count for."""
        request = _request()
        flask_state = self.flask_state()
        marks = self._of_view(request)
        if marks is None:
            flask_state.exempt = True
        if flask_state.exempt:
            return
        for mark in self._application:
            if mark.limits is None or not _is_static(request, self.app) or marks:
                yield mark, None
        for mark, per_method in marks or ():
            yield mark, self.route(mark, request, per_method)

    def ask(self, due: Iterable[tuple[ViewLimit, str | None]]) -> Any:
        """Ask each limit that was not asked yet: what one denies is taken from none. A denial is raised, or returned
        if somebody shaped it."""
        flask_state = self.flask_state()
        unchecked = [(mark, route) for mark, route in due if mark not in flask_state.checked]
        delay = 0.0
        passed: list[Admission[Limiter]] = []
        for position, (mark, route) in enumerate(unchecked, 1):
            flask_state.checked.add(mark)
            layer = self.layer(mark)
            request = FlaskRequest(_request(), layer.identity)
            admission = check_sync(layer, request, flask_state.request_state, route, hold=position < len(unchecked))
            if admission is None:
                continue
            if admission.refused:
                for earlier in passed:
                    give_back(earlier)
                shaped = self._shaped(layer, request, admission.decision)
                if shaped is None:
                    raise RateLimited(admission.decision)
                return shaped
            passed.append(admission)
            delay = max(delay, layer.delay(admission.decision))
        flask_state.admissions.extend(admission for admission in passed if admission.layer.when is not None)
        if delay:
            time.sleep(delay)
        return None

    def ask_called(self, mark: ViewLimit, function: Any) -> Any:
        """A function with a mark is called. It is asked now if the mark was not to be seen before: it is no view, or
        another decorator hides it."""
        if mark.exempts or not self.enabled():
            return None
        flask_state = self.flask_state()
        if flask_state.exempt or mark in flask_state.checked:
            return None
        name = f"{function.__module__}.{getattr(function, '__qualname__', type(function).__qualname__)}"
        return self.ask([(mark, f"{self.route(mark, _request(), mark.per_method)} {name}")])

    def route(self, mark: ViewLimit, request: flask.Request, per_method: bool) -> str:
        """What the limits of a mark count for, beside the caller. Two views may share a path and differ in method;
        HEAD is GET to all of them."""
        method = "GET" if request.method == "HEAD" else request.method
        if mark.scope is not None:
            return f"{method} {mark.scope}" if per_method else mark.scope
        rule = request.url_rule
        methods = rule.methods if rule is not None and rule.methods else ()
        methods_text = method if per_method else ",".join(sorted({*methods} - {"OPTIONS"}))
        return f"{methods_text} {template_of(request) or '-'}"

    def flask_state(self) -> FlaskRequestState:
        """The request that is handled now."""
        request = _request()
        environ = request.environ
        flask_state: FlaskRequestState | None = environ.get(self._name)
        if flask_state is None:
            seen = FlaskRequest(request, self._any.identity)
            exempt = self._exempt is not None and bool(self._exempt(seen))
            exempt = exempt or any(skip(seen) for skip in self._written.filters)
            flask_state = environ[self._name] = FlaskRequestState(request_state_of(environ), exempt, self)
        return flask_state

    def _shaped(self, layer: LimitLayer[Limiter], request: FlaskRequest, decision: Decision) -> flask.Response | None:
        shaped = None if layer.on_denied is None else layer.on_denied(request, decision)
        if shaped is None:
            return None
        if isinstance(shaped, Denial):
            headers = [(name.decode("latin-1"), value.decode("latin-1")) for name, value in shaped.raw_headers([])]
            return self.app.response_class(shaped.body, shaped.status, headers)
        return self.app.make_response(shaped)

    # Which limits are a view's.

    def _of_view(self, request: flask.Request) -> list[tuple[ViewLimit, bool]] | None:
        """The limits of the view that the request is for, and whether each method counts alone; None: it is exempt."""
        endpoint = request.endpoint
        if endpoint is None or request.url_rule is None:
            return []
        view = self.app.view_functions.get(endpoint)
        found: list[tuple[ViewLimit, bool]] = []
        for level in self._levels(request, endpoint, view):
            if any(mark.exempts for mark, _ in level):
                return found or None
            found.extend(level)
            if any(mark.replaces for mark, _ in level):
                break
        return found

    def _levels(self, request: flask.Request, endpoint: str, view: Any) -> Iterator[list[tuple[ViewLimit, bool]]]:
        own = [(mark, mark.per_method) for mark in self._marks(endpoint)]
        owner = self._written
        handler = getattr(getattr(view, "view_class", None), request.method.lower(), None)
        if handler is None and request.method == "HEAD":
            handler = getattr(getattr(view, "view_class", None), "get", None)
        own.extend((mark, True) for mark in view_limits_of(handler, owner) if (mark, mark.per_method) not in own)
        yield own
        if _is_static(request, self.app):
            return
        for name in request.blueprints:
            yield [(mark, mark.per_method) for mark in owner.of_blueprint(self.app.blueprints.get(name))]
        yield [(mark, mark.per_method) for mark in self._defaults]

    def _marks(self, endpoint: str) -> list[ViewLimit]:
        """Those of the view itself. Looked for once: an application has all its views when it begins to answer."""
        views = self.app.view_functions
        known = (len(views), self._written.count)
        if known != self._known:
            self._views = self._found(views)
            self._known = known
        return self._views.get(endpoint, [])

    def _found(self, views: Mapping[str, Any]) -> dict[str, list[ViewLimit]]:
        found = {endpoint: view_limits_of(view, self._written) for endpoint, view in views.items()}
        reached = {id(one) for view in views.values() for one in unwrapped(view)}
        for wrapper in self._written.living():
            if id(wrapper) in reached:
                continue
            above = {id(one) for one in wrapped_functions(wrapper)}  # the decorator stands above the route
            for endpoint, view in views.items():
                if id(view) in above:
                    found[endpoint] = [*view_limits_of(wrapper, self._written)[:1], *found[endpoint]]
        return found


def _is_static(request: flask.Request, app: flask.Flask) -> bool:
    """Whether Flask itself serves this, from a folder."""
    endpoint = request.endpoint
    if endpoint is None or endpoint.rpartition(".")[2] != "static":
        return False
    blueprint = request.blueprint
    owner = app if blueprint is None else app.blueprints.get(blueprint)
    return owner is not None and owner.has_static_folder


def _request() -> flask.Request:
    request: flask.Request = flask.request._get_current_object()  # type: ignore[attr-defined]  # the proxy's own way
    return request
