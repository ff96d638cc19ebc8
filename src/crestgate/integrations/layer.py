"""The limits of one layer: which check a request needs, and what its decision means.

A layer is a middleware, or the limits of one route. Every framework has its own way in and out, and nothing else: what
is checked is decided here, without I/O; the two functions in drivers.py send it, with and without `await`.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable
from dataclasses import replace
from typing import Any, Generic, TypeAlias, TypedDict, TypeVar

from crestgate.core.context import RequestContext
from crestgate.core.decision import Decision
from crestgate.core.plans import Limits, reusable
from crestgate.errors import ConfigError
from crestgate.http.client_address import TrustedProxies
from crestgate.http.header_options import HeaderStyle
from crestgate.integrations.exemptions import Exempt, build_exemption, is_preflight
from crestgate.integrations.keys import Key, bounded_key, build_key_maker, is_coroutine, peer_key, with_one_argument
from crestgate.integrations.option_errors import unknown_option
from crestgate.integrations.request import Identity, Request
from crestgate.integrations.request_state import RequestState
from crestgate.limiter.async_limiter import AsyncLimiter
from crestgate.limiter.base_limiter import decorator_cost
from crestgate.limiter.chain import Bound
from crestgate.limiter.dry_run import DryRun
from crestgate.limiter.limiter import Limiter
from crestgate.limiter.pending_check import PendingCheck
from crestgate.stores.port import Op

__all__ = ["LayerCheck", "LayerLimits", "LayerOptions", "LimitLayer", "no_limits"]

L = TypeVar("L", bound="Limiter | AsyncLimiter")
LayerLimits: TypeAlias = "Limits | Callable[..., Limits | None] | None"
"""Limits as a check takes them, or a callable that tells them for a request (None: it is not limited)."""


class LayerOptions(TypedDict, total=False):
    """What every integration takes, under the same names."""

    key: Key
    """Whom a request is counted for: see keys.py. The client's address unless said."""
    cost: int | Callable[..., int]
    exempt: Exempt
    methods: Collection[str] | None
    """The methods that are limited; all unless said."""
    when: Callable[[Any], object] | None
    """Given the Response, which may be a framework's own kind of one: which count. What others have taken is given
    back."""
    dry_run: bool
    """Count and log, and deny nobody."""
    wait: bool
    """Whether an admitted request waits out the delay of a leaky bucket."""
    on_denied: Callable[..., Any] | None
    """Given the request and the Decision: the response to a denial, in the framework's own way. None: the usual one."""
    headers: HeaderStyle | bool
    trusted_proxies: Iterable[str] | int
    user: Callable[..., Any] | None
    """The user's id; what the framework's own authentication says unless said."""
    tier: Callable[..., Any] | None
    client: Callable[..., Any] | None
    api_key_header: str


class LayerCheck:
    """What is to be asked about one request: a key under a chain, or a request under rules."""

    __slots__ = ("bound", "context", "cost", "key")

    def __init__(self, bound: Bound | None, key: str, context: RequestContext | None, cost: int) -> None:
        self.bound = bound
        self.key = key
        self.context = context
        self.cost = cost


class LimitLayer(Generic[L]):
    """One layer's limits, on one limiter. Without `limits` the limiter's rules decide."""

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
        trusted_proxies: Iterable[str] | int | None = None,
        user: Callable[..., Any] | None = None,
        tier: Callable[..., Any] | None = None,
        client: Callable[..., Any] | None = None,
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
        self.style = _style(headers, HeaderStyle() if settings is None else settings.headers)
        if trusted_proxies is None:
            trusted_proxies = () if settings is None else settings.server.trusted_proxies
        given = {"user": user, "tier": tier, "client": client}
        callables = {
            name: None if given[name] is None else with_one_argument(_callable(name, given[name])) for name in given
        }
        self.identity = Identity(TrustedProxies(trusted_proxies), **callables, api_key_header=api_key_header)
        self.key = build_key_maker(key)
        self.cost = with_one_argument(cost) if callable(cost) else decorator_cost(cost)
        self.exempt = build_exemption(exempt)
        self.limits = with_one_argument(limits) if callable(limits) else limits if limits is None else reusable(limits)
        self._bound: Bound | None = None
        """The chain, if it is always the same."""
        if not callable(self.limits) and self.limits is not None:
            chain = limiter.resolve(self.limits)  # what cannot be read is an error now
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
            raise ConfigError(f"when must be a plain function: a response waits for it, and {when!r} is a coroutine's")
        callables_used = [*callables.values(), *self.key.callables, self.cost, self.limits, self.exempt]
        self.coroutines: list[Any] = [one for one in callables_used if is_coroutine(one)]
        self._dry_run = DryRun()
        self._simple = self._bound if self._is_simple() else None

    def refuse_coroutines(self, where: str) -> None:
        """For frameworks that cannot wait for them."""
        if self.coroutines:
            raise ConfigError(f"{self.coroutines[0]!r} is a coroutine function, and nobody can wait for one in {where}")

    async def resolve_coroutines(self, request: Request) -> None:
        """Let coroutines among the callables answer, before the rest is asked without waiting."""
        for function in self.coroutines:
            request.results[function] = await function(request)

    def ask(self, request: Request, request_state: RequestState, route: str | None = None) -> LayerCheck | None:
        """What is to be asked about a request; None when this layer leaves it alone, or all of it was asked before.

        `route` is the route that the limits are of, if they are one's: they count for each caller and route.
        """
        if not self._limits_method(request.method.upper()):  # some frameworks take `post` for POST
            return None
        if request.method == "OPTIONS" and is_preflight(request):
            return None
        if self.exempt is not None and request.call(self.exempt):
            return None
        engine = id(self.limiter.backend)
        cost = decorator_cost(request.call(self.cost)) if callable(self.cost) else self.cost
        if self.limits is None:
            if not request_state.count(engine, "", "rules"):
                return None
            return LayerCheck(None, "", self.context(request), cost)
        bound = self._bound
        if bound is None:
            limits: Any = request.call(self.limits) if callable(self.limits) else self.limits
            if limits is None:
                return None
            bound = self.limiter.resolve(limits)
        key = self.key(request)
        scope = self.scope if self.scope is not None else route
        if scope is not None:
            key = bounded_key(f"{key}|route:{scope}")
        if bound.single is not None:
            return LayerCheck(bound, key, None, cost) if request_state.count(engine, key, bound.single.name) else None
        fresh = tuple([one for one in bound.algorithms if request_state.count(engine, key, one.name)])
        if not fresh:
            return None
        if len(fresh) < len(bound.algorithms):
            bound = self.limiter.resolve_chain(fresh)
        return LayerCheck(bound, key, None, cost)

    def _limits_method(self, method: str) -> bool:
        """Whether a method is among those that are limited. A HEAD is a GET without its body, and as much work."""
        methods = self.methods
        return methods is None or method in methods or (method == "HEAD" and "GET" in methods)

    def try_fast_check(self, method: str, peer: str | None, request_state: RequestState) -> Decision | None:
        """The decision on a request in the usual case, without ceremony: one limit that is always the same, counted by
        the address of the connection in a store that answers at once. None, and nothing is done, in any other case:
        then `ask` says what to do."""
        bound = self._simple
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

    def _is_simple(self) -> bool:
        """Whether requests can be decided simply."""
        bound = self._bound
        if bound is None or bound.single is None or bound.local is None or not isinstance(self.cost, int):
            return False
        if self.scope is not None or self.methods is not None or self.exempt is not None:
            return False
        if self.when is not None or self.dry_run:
            return False
        return self.key.by_address and not self.identity.proxies.any

    def unmark_counted(self, ask: LayerCheck, request_state: RequestState) -> None:
        """Nothing was taken, and the request goes on all the same: another layer may ask about it."""
        engine = id(self.limiter.backend)
        if ask.bound is None:
            request_state.counted.discard((engine, "", "rules"))
            return
        for algorithm in ask.bound.algorithms:
            request_state.counted.discard((engine, ask.key, algorithm.name))

    def context(self, request: Request) -> RequestContext:
        """The request as rules see it. Where keys of policies have the route in them, it is the template."""
        context = RequestContext(
            ip=_name(request.address),
            user=_name(request.user_id),
            api_key=_name(request.api_key),
            client=_name(request.client_id),
            path=request.path,
            method=_name(request.method),
            tier=_name(request.tier),
        )
        if not self.limiter.uses_routes:
            return context
        route = request.route
        key = None if route is None else self.limiter.policy_key(context, route)
        return context if key is None else replace(context, key=bounded_key(key))

    def prepared(self, ask: LayerCheck) -> PendingCheck:
        """What is asked, in the form that can be given back."""
        if ask.bound is not None:
            return ask.bound.prepare(Op.TAKE, ask.key, ask.cost)
        assert ask.context is not None
        return self.limiter.prepare_request(Op.TAKE, ask.context, ask.cost)

    def denies(self, decision: Decision) -> bool:
        """Whether a denial is to be carried out; a dry run only tells of it."""
        if decision.allowed:
            return False
        if not self.dry_run:
            return True
        self._dry_run.denied(decision)
        return False

    def delay(self, decision: Decision) -> float:
        """The real seconds that an admitted request is to wait."""
        if not self.wait or not decision.allowed or (decision.detail is None and not decision.wait_us):
            return 0.0
        delay = decision.delay
        return self.limiter.clock.wait(delay) if delay else 0.0


def no_limits(_: object) -> None:
    """The limits of a layer that asks nothing itself."""


def _name(value: str | None) -> str | None:
    """A name that rules take, whatever a caller has sent for one."""
    return None if value is None else bounded_key(value)


def _style(headers: HeaderStyle | bool | None, default: HeaderStyle) -> HeaderStyle:
    if headers is None or headers is True:
        return default
    if headers is False:
        return HeaderStyle(ratelimit=False, x_ratelimit=False, retry_after=False)
    if not isinstance(headers, HeaderStyle):
        raise ConfigError(f"headers must be True, False or a HeaderStyle, not {headers!r}")
    return headers


def _methods(given: Collection[str]) -> frozenset[str]:
    if isinstance(given, str):  # whose letters would be the methods, and none of them would ever come
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
