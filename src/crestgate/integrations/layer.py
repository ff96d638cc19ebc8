"""The limits of one layer: which check a request needs, and what its decision means.

A layer is a middleware, or the limits of one route. The modules of the frameworks only convert requests and responses.
This module builds the check, without I/O; the functions in drivers.py perform it, with and without `await`.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Mapping
from dataclasses import replace
from typing import Any, Generic, TypeAlias, TypedDict, TypeVar

from crestgate.core.context import RequestContext
from crestgate.core.decision import Decision
from crestgate.core.plans import Limits, reusable
from crestgate.errors import ConfigError
from crestgate.http.client_address import TrustedProxies
from crestgate.http.header_options import HeaderStyle, Reset
from crestgate.integrations.default_algorithm import DefaultAlgorithm
from crestgate.integrations.exemptions import Exempt, build_exemption, is_preflight
from crestgate.integrations.keys import Key, bounded_key, build_key_maker, is_coroutine, peer_key, with_one_argument
from crestgate.integrations.option_errors import unknown_option
from crestgate.integrations.request import Identity, Request
from crestgate.integrations.request_state import RequestState
from crestgate.limiter.async_limiter import AsyncLimiter
from crestgate.limiter.chain import Bound
from crestgate.limiter.dry_run import DryRun
from crestgate.limiter.in_flight import HeldSlots
from crestgate.limiter.limiter import Limiter
from crestgate.limiter.limiter_core import decorator_cost
from crestgate.limiter.pending_check import PendingCheck
from crestgate.limiter.reservation import Hold

__all__ = ["LayerCheck", "LayerLimits", "LayerOptions", "LimitLayer", "coroutine_error", "no_limits"]

L = TypeVar("L", bound="Limiter | AsyncLimiter")
LayerLimits: TypeAlias = "Limits | Callable[..., Limits | None] | None"
"""Limits as `check` takes them, or a callable that returns them for a request (None: not limited)."""


class LayerOptions(TypedDict, total=False):
    """The options that all integrations have in common."""

    key: Key
    """Which caller a request is counted for: see keys.py. Default: the client's address."""
    cost: int | Callable[..., int]
    exempt: Exempt
    methods: Collection[str] | None
    """The methods that are limited. Default: all."""
    when: Callable[[Any], object] | None
    """Called with the Response (some frameworks pass a subclass): whether it counts. Otherwise the charge is given
    back."""
    dry_run: bool
    """Count and log, but deny no request."""
    wait: bool
    """Whether an admitted request waits out the delay of a leaky bucket."""
    on_denied: Callable[..., Any] | None
    """Called with the request and the Decision: returns the framework's response to a denial. None: the default."""
    headers: HeaderStyle | bool
    reset: Reset
    """What X-RateLimit-Reset says: `seconds` from now, or the `epoch` time. Default: that of `headers`."""
    default_algorithm: str | None
    """The algorithm of limits that are written as text and name none. Default: token_bucket."""
    trusted_proxies: Iterable[str] | int
    user: Callable[..., Any] | None
    """The user's id. Default: the user of the framework's authentication."""
    tier: Callable[..., Any] | None
    client: Callable[..., Any] | None
    attributes: Callable[..., Any] | None
    """The request's own dimensions, for rules: a mapping of names to values, such as `{"org": "acme"}`."""
    api_key_header: str


class LayerCheck:
    """The check of one request: a key against a chain of limits, or a request context against rules."""

    __slots__ = ("bound", "context", "cost", "key")

    def __init__(self, bound: Bound | None, key: str, context: RequestContext | None, cost: int) -> None:
        self.bound = bound
        self.key = key
        self.context = context
        self.cost = cost


class LimitLayer(Generic[L]):
    """One layer's limits, on one limiter. Without `limits`, the limiter's rules apply."""

    def __init__(
        self,
        limiter: L,
        limits: LayerLimits = None,
        *,
        scope: str | None = None,
        key: Key = "ip",
        cost: int | Callable[..., int] = 1,
        exempt: Exempt = None,
        methods: Collection[str] | None = None,
        when: Callable[[Any], object] | None = None,
        dry_run: bool = False,
        wait: bool = True,
        on_denied: Callable[..., Any] | None = None,
        headers: HeaderStyle | bool | None = None,
        reset: Reset | None = None,
        default_algorithm: str | None = None,
        trusted_proxies: Iterable[str] | int | None = None,
        user: Callable[..., Any] | None = None,
        tier: Callable[..., Any] | None = None,
        client: Callable[..., Any] | None = None,
        attributes: Callable[..., Any] | None = None,
        api_key_header: str = "X-API-Key",
        **unknown: object,
    ) -> None:
        for name in unknown:
            raise unknown_option(name, ("limiter", "limits", "scope", *LayerOptions.__annotations__))
        settings = limiter.settings
        self.limiter = limiter
        self.scope = scope
        self.when = when
        self.dry_run = dry_run
        self.wait = wait
        self.on_denied = on_denied
        self.methods = None if methods is None else _methods(methods)
        style = _style(headers, HeaderStyle() if settings is None else settings.headers)
        self.style = style if reset is None else replace(style, reset=reset)
        self.default_algorithm = default_algorithm
        self._algorithm = None if default_algorithm is None else DefaultAlgorithm(default_algorithm, limiter.resolver)
        if trusted_proxies is None:
            trusted_proxies = () if settings is None else settings.server.trusted_proxies
        given = {"user": user, "tier": tier, "client": client, "attributes": attributes}
        callables = {
            name: None if given[name] is None else with_one_argument(_callable(name, given[name])) for name in given
        }
        self.identity = Identity(TrustedProxies(trusted_proxies), **callables, api_key_header=api_key_header)
        self.key = build_key_maker(key)
        self.cost = with_one_argument(cost) if callable(cost) else decorator_cost(cost)
        self.exempt = build_exemption(exempt)
        self.limits = with_one_argument(limits) if callable(limits) else limits if limits is None else reusable(limits)
        self._bound: Bound | None = None
        """The chain of limits, if it is the same for all requests."""
        if not callable(self.limits) and self.limits is not None:
            chain = limiter.resolve(self._with_algorithm(self.limits))  # raises ConfigError for invalid limits
            self._bound = chain if limiter.has_fixed_limits else None
        if self.limits is None and not limiter.has_rules:
            raise ConfigError(
                'a layer needs limits, such as limits="100/minute", or a limiter with rules, such as '
                'limiter="crestgate.yaml"'
            )
        for name, hook in (("when", when), ("on_denied", on_denied)):
            if hook is not None:
                _callable(name, hook)
        if is_coroutine(when):
            raise ConfigError(
                f"when must be a plain function: a response waits for it, and {when!r} is a coroutine function"
            )
        callables_used = [*callables.values(), *self.key.callables, self.cost, self.limits, self.exempt]
        self.coroutines: list[Any] = [one for one in callables_used if is_coroutine(one)]
        self._dry_run = DryRun()
        self._thread_limiter: Limiter | None = None
        self._fast_bound = self._bound if self._allows_fast_check() else None

    def refuse_coroutines(self, where: str) -> None:
        """ConfigError if a callable is a coroutine function, for frameworks that cannot await it."""
        if self.coroutines:
            raise coroutine_error(self.coroutines[0], where)

    async def resolve_coroutines(self, request: Request) -> None:
        """Await the callables that are coroutine functions, and store their results for `build_check`."""
        for function in self.coroutines:
            request.results[function] = await function(request)

    def build_check(self, request: Request, request_state: RequestState, route: str | None = None) -> LayerCheck | None:
        """The check of a request; None when this layer does not limit it, or it was already counted.

        `route` is given for a route's limits, which count per caller and route.
        """
        if not self._limits_method(request.method.upper()):  # some frameworks treat `post` as POST
            return None
        if request.method == "OPTIONS" and is_preflight(request):
            return None
        if self.exempt is not None and request.call(self.exempt):
            return None
        engine = id(self.limiter.backend)
        cost = decorator_cost(request.call(self.cost)) if callable(self.cost) else self.cost
        if self.limits is None:
            if not request_state.mark_counted(engine, "", "rules"):
                return None
            return LayerCheck(None, "", self.context(request), cost)
        bound = self._bound
        if bound is None:
            limits: Any = request.call(self.limits) if callable(self.limits) else self.limits
            if limits is None:
                return None
            bound = self.limiter.resolve(self._with_algorithm(limits))
        key = self.key(request)
        scope = self.scope if self.scope is not None else route
        if scope is not None:
            key = bounded_key(f"{key}|route:{scope}")
        if bound.single is not None:
            counted = request_state.mark_counted(engine, key, bound.single.name)
            return LayerCheck(bound, key, None, cost) if counted else None
        uncounted = tuple([one for one in bound.algorithms if request_state.mark_counted(engine, key, one.name)])
        if not uncounted:
            return None
        if len(uncounted) < len(bound.algorithms):
            bound = self.limiter.resolve_chain(uncounted)
        return LayerCheck(bound, key, None, cost)

    def _with_algorithm(self, limits: Limits) -> Limits:
        if self._algorithm is None:
            return limits
        given: Limits = self._algorithm.apply(limits)
        return given

    def _limits_method(self, method: str) -> bool:
        """Whether a method is limited. HEAD is limited with GET: it costs as much."""
        methods = self.methods
        return methods is None or method in methods or (method == "HEAD" and "GET" in methods)

    def try_fast_check(self, method: str, peer: str | None, request_state: RequestState) -> Decision | None:
        """The fast path for the most common case: one fixed limit, counted by the peer's address in a local store.
        None, without any effect, in all other cases: then use `check_sync` or `check_async`."""
        bound = self._fast_bound
        if bound is None or method == "OPTIONS" or not peer:
            return None
        assert bound.single is not None
        assert isinstance(self.cost, int)
        key = peer_key(peer)
        counter = (id(self.limiter.backend), key, bound.single.name)
        if counter in request_state.counted:
            return None
        decision = bound.try_check(key, self.cost)
        if decision is not None:
            request_state.counted.add(counter)
            request_state.decisions.append(decision)
        return decision

    def _allows_fast_check(self) -> bool:
        bound = self._bound
        if bound is None or bound.single is None or bound.local is None or not isinstance(self.cost, int):
            return False
        if self.scope is not None or self.methods is not None or self.exempt is not None:
            return False
        if self.when is not None or self.dry_run:
            return False
        return self.key.by_address and not self.identity.proxies.any

    def unmark_counted(self, check: LayerCheck, request_state: RequestState) -> None:
        """Undo `mark_counted` for a check that charged nothing, so that another layer may check the request."""
        engine = id(self.limiter.backend)
        if check.bound is None:
            request_state.counted.discard((engine, "", "rules"))
            return
        for algorithm in check.bound.algorithms:
            request_state.counted.discard((engine, check.key, algorithm.name))

    def context(self, request: Request) -> RequestContext:
        """The request context for rules. Policy keys that contain the route use its template."""
        context = RequestContext(
            ip=_name(request.address),
            user=_name(request.user_id),
            api_key=_name(request.api_key),
            client=_name(request.client_id),
            path=request.path,
            method=_name(request.method),
            tier=_name(request.tier),
            attributes=_names(request.attributes),
        )
        if not self.limiter.uses_routes:
            return context
        route = request.route
        key = None if route is None else self.limiter.policy_key(context, route)
        return context if key is None else replace(context, key=bounded_key(key))

    def prepare(self, check: LayerCheck) -> PendingCheck:
        """The check in the form whose charge can be given back, and whose slots of in-flight limits are released."""
        if check.bound is not None:
            return check.bound.prepare_hold(check.key, check.cost)
        assert check.context is not None
        return self.limiter.prepare_request_hold(check.context, check.cost)

    def keep_in_thread(self, hold: Hold) -> HeldSlots | None:
        """`Limiter.keep_slots`, for responses that may outlive the event loop of the check."""
        if self._thread_limiter is None:
            self._thread_limiter = Limiter.sharing(self.limiter, connect=False)
        return self._thread_limiter.keep_slots(hold)

    def denies(self, decision: Decision) -> bool:
        """Whether the request must be denied. A dry run only logs it."""
        if decision.allowed:
            return False
        if not self.dry_run:
            return True
        self._dry_run.denied(decision)
        return False

    def delay(self, decision: Decision) -> float:
        """The real seconds that an admitted request must wait."""
        if not self.wait or not decision.allowed or (decision.detail is None and not decision.wait_us):
            return 0.0
        delay = decision.delay
        return self.limiter.clock.wait(delay) if delay else 0.0

    def custom_denial(self, request: Request, decision: Decision) -> Any:
        """The result of `on_denied`; None for the default response."""
        return None if self.on_denied is None else self.on_denied(request, decision)

    def limit_headers(self, request_state: RequestState) -> list[tuple[str, str]]:
        """The rate limit headers for the decisions of all layers, with names in lower case."""
        headers = request_state.headers(self.style, self.limiter.clock.ticks())
        return [(name.decode("latin-1"), value.decode("latin-1")) for name, value in headers]


def no_limits(_: object) -> None:
    """The `limits` of a layer that checks nothing itself."""


def coroutine_error(function: object, where: str) -> ConfigError:
    return ConfigError(f"{function!r} is a coroutine function, which {where} cannot await: use a plain function")


def _name(value: str | None) -> str | None:
    """A caller's value, bounded to the length that rules accept."""
    return None if value is None else bounded_key(value)


def _names(values: Mapping[str, str] | None) -> dict[str, str] | None:
    """A request's attributes, with bounded values."""
    return None if values is None else {name: bounded_key(value) for name, value in values.items()}


def _style(headers: HeaderStyle | bool | None, default: HeaderStyle) -> HeaderStyle:
    if headers is None or headers is True:
        return default
    if headers is False:
        return HeaderStyle(ratelimit=False, x_ratelimit=False, retry_after=False)
    if not isinstance(headers, HeaderStyle):
        raise ConfigError(f"headers must be True, False or a HeaderStyle, not {headers!r}")
    return headers


def _methods(given: Collection[str]) -> frozenset[str]:
    if isinstance(given, str):  # its letters would be taken for methods
        raise ConfigError(f"methods must be a list such as ['POST', 'PUT'], not {given!r}")
    for name in given:
        if not isinstance(name, str) or not name:
            raise ConfigError(f"methods must be a list such as ['POST', 'PUT'], with no {name!r} in it")
    return frozenset(name.upper() for name in given)


def _callable(name: str, given: Any) -> Callable[..., Any]:
    if not callable(given):
        raise ConfigError(f"{name} must be a callable, not {given!r}")
    function: Callable[..., Any] = given
    return function
