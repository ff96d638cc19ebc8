# mypyc: compile
"""`/api/v1/authorize`: a proxy asks about the request it has before it, and passes it on or not (forward-auth).

nginx (`auth_request`), Traefik and Caddy send the headers of that request, with its path and method in headers of
their own. The answer is its status: 200, or 429 with the headers that the proxy may pass on to the client. nginx only
understands 401 and 403 as a refusal, so `?deny_status=403` asks for that.

Who the user is (`X-User-Id`, `X-Client-Id`), and own dimensions (`X-Crestgate-Attr-Org: acme` is the attribute `org`),
are believed of a trusted proxy only: anybody can write a header. An API
key authenticates by itself further on, so it counts as it is, and names a client where nothing else does. It is a
secret all the same: whoever reads numbers and logs sees such a client by a digest.

Blanks around a value are not part of it, so that no spelling of a key or a method is a caller or a rule of its own.
"""

from __future__ import annotations

from collections.abc import Mapping
from functools import partial
from urllib.parse import parse_qs

from crestgate.core.context import RequestContext
from crestgate.core.decision import Decision
from crestgate.core.redaction import client_id_from_api_key
from crestgate.errors import InvalidRequestError
from crestgate.http.client_address import TrustedProxies
from crestgate.http.field_values import header_text, trimmed_bytes
from crestgate.http.header_options import HeaderStyle
from crestgate.http.headers import rate_limit_headers
from crestgate.http.problem import encode_problem, exceeded
from crestgate.rules.matching.paths import MAX_PATH
from crestgate.service.checks.service import CheckService
from crestgate.service.context import CallContext, Headers
from crestgate.service.errors import ApiError
from crestgate.service.http.asgi import PROBLEM, HttpResponse
from crestgate.service.http.endpoints import Later
from crestgate.stores.port import Op

__all__ = ["Authorize"]

PATHS = (b"x-original-uri", b"x-forwarded-uri")
METHODS = (b"x-original-method", b"x-forwarded-method")
IDENTIFYING = frozenset([*PATHS, *METHODS, b"x-api-key", b"x-user-id", b"x-client-id"])
ATTRIBUTE_PREFIX = b"x-crestgate-attr-"


class Authorize:
    """The endpoint of one worker."""

    def __init__(self, checks: CheckService, proxies: TrustedProxies, style: HeaderStyle) -> None:
        self.checks = checks
        self.proxies = proxies
        self.style = style

    def __call__(self, call: CallContext, body: bytes) -> HttpResponse | Later:
        checks = self.checks
        status = deny_status(call.scope["query_string"])
        trusted = self.proxies.trusts(call.peer)
        has_attributes = trusted and bool(checks.limiter.catalog.current.attributes)  # else no rule is about them
        refuse_conflicting(call.scope["headers"], has_attributes)
        context = self.context(call.address, call.fields, trusted, has_attributes)
        try:
            pending = checks.limiter.prepare_request(Op.TAKE, context)
        except (ValueError, TypeError) as error:
            raise ApiError(400, str(error)) from None
        now_us = checks.clock.ticks()
        secret = context.api_key if context.client == context.api_key else None
        if context.client is not None:
            checks.metrics.clients.record(context.client if secret is None else client_id_from_api_key(secret), now_us)
        if checks.traffic is not None:
            checks.traffic.record(context, 1, now_us)
        decision = checks.decide(call, "authorize", pending, secret)
        if isinstance(decision, Decision):
            return self._respond(status, now_us, decision)
        return decision.then(partial(self._respond, status, now_us))

    def _respond(self, denied_status: int, now_us: int, decision: Decision) -> HttpResponse:
        headers: Headers = rate_limit_headers(decision, self.style, now_us)
        if decision.allowed:
            return HttpResponse(200, b"", headers)
        return HttpResponse(denied_status, encode_problem(exceeded(decision, denied_status)), headers, PROBLEM)

    def context(
        self, address: str | None, fields: Mapping[bytes, bytes], trusted: bool, has_attributes: bool = False
    ) -> RequestContext:
        """The request that a proxy asks about."""
        api_key = _text(fields, b"x-api-key")
        user = _text(fields, b"x-user-id") if trusted else None
        client = _text(fields, b"x-client-id") if trusted else None
        path = _agreed(fields, PATHS)
        if path is not None:
            path = path.partition("?")[0]
            if len(path) > MAX_PATH:
                raise InvalidRequestError(
                    "X-Original-URI", f"has a path of {len(path)} characters; the maximum is {MAX_PATH}"
                )
        return RequestContext(
            ip=address,
            user=user,
            api_key=api_key,
            client=client or api_key or address,
            path=path,
            method=_agreed(fields, METHODS),
            attributes=_attributes(fields) if has_attributes else None,
        )


def deny_status(query: bytes) -> int:
    """The status of a denial.

    >>> deny_status(b""), deny_status(b"deny_status=403")
    (429, 403)
    """
    if not query:
        return 429
    try:
        fields = parse_qs(query.decode("latin-1"), keep_blank_values=True, max_num_fields=10)
    except ValueError:
        raise InvalidRequestError("", "too many query parameters; only deny_status is supported") from None
    unknown = [name for name in fields if name != "deny_status"]
    if unknown:
        raise InvalidRequestError(unknown[0], "unknown query parameter; only deny_status is supported")
    (value, *more) = fields.get("deny_status", ["429"])
    if more or not value.isascii() or not value.isdigit() or len(value) != 3 or not 400 <= int(value) <= 599:
        raise InvalidRequestError("deny_status", "must be one status from 400 to 599, such as 403")
    return int(value)


def refuse_conflicting(headers: Headers, has_attributes: bool = False) -> None:
    """Who sends a header twice must not be counted by the one and let in by the other."""
    seen: dict[bytes, bytes] = {}
    for name, value in headers:
        if name in IDENTIFYING or (has_attributes and name.startswith(ATTRIBUTE_PREFIX)):
            text = trimmed_bytes(value)
            if seen.setdefault(name, text) != text:
                raise InvalidRequestError(name.decode("latin-1"), "appears more than once with different values")


def _agreed(fields: Mapping[bytes, bytes], names: tuple[bytes, ...]) -> str | None:
    """What the proxy says, in whichever of the headers it uses. A proxy sets its own and passes the others on as its
    client sent them: where two differ, one of them may be the client's, who must not choose what is checked."""
    values = [value for value in (_text(fields, name) for name in names) if value is not None]
    if values and any(value != values[0] for value in values):
        both = " and ".join(name.decode() for name in names)
        raise InvalidRequestError(
            names[0].decode(),
            f"{both} have conflicting values: configure the proxy to remove the header it does not set",
        )
    return values[0] if values else None


def _attributes(fields: Mapping[bytes, bytes]) -> dict[str, str] | None:
    """The attributes in the headers of a trusted proxy: `X-Crestgate-Attr-Cost-Center` is `cost_center`."""
    found: dict[str, str] | None = None
    for name, value in fields.items():
        if name.startswith(ATTRIBUTE_PREFIX):
            text = header_text(value)
            if text is not None:
                if found is None:
                    found = {}
                attribute = name[len(ATTRIBUTE_PREFIX) :].decode("latin-1").replace("-", "_")
                if attribute in found:
                    raise InvalidRequestError(name.decode("latin-1"), "is there in two spellings, with '-' and '_'")
                found[attribute] = text
    return found


def _text(fields: Mapping[bytes, bytes], name: bytes) -> str | None:
    """A header as text; a blank one says nothing."""
    value = fields.get(name)
    return None if value is None else header_text(value)
