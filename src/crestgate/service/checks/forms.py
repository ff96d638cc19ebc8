# mypyc: compile
"""The three forms of a check, and how they are prepared for the limiter.

    {"dimension": "USER", "identifier": "42", "endpoint": "/api/v1/orders", "method": "GET", "cost": 1}
    {"context": {"ip": …, "user": …, "api_key": …, "client": …, "path": …, "method": …, "attributes": {…}}, "cost": 1}
    {"key": "user:42", "plans": ["gold", "daily"], "cost": 1}

Whatever is wrong is an InvalidRequestError with the field, before anything is decided.
"""

from __future__ import annotations

from typing import Any, Final

import msgspec
from msgspec import UNSET

from crestgate.core.dimensions import DIMENSION_SPELLINGS, DIMENSIONS, IDENTIFIED, parse_dimension
from crestgate.errors import InvalidRequestError, field_of
from crestgate.limiter.async_limiter import AsyncLimiter
from crestgate.limiter.pending_check import PendingCheck
from crestgate.rules.evaluator import RuleEvaluator
from crestgate.rules.matching.paths import MAX_PATH
from crestgate.service.checks.json_body import decode_json
from crestgate.service.checks.schemas import BatchBody, CheckBody, ContextBody, ResetBody, VerifyBody
from crestgate.stores.port import Op

__all__ = [
    "FORMS",
    "GOES_INTO_A_BATCH",
    "MAX_CHECKS",
    "MAX_COUNTERS",
    "MAX_PLANS",
    "context_of",
    "cost_of",
    "prepare_check",
    "prepare_verify",
    "read_batch",
    "read_check",
    "read_reset",
    "read_verify",
]

MAX_CHECKS: Final = 1000
MAX_PLANS: Final = 20
MAX_COUNTERS: Final = 100
"""Of one check: all of them are decided in one step, and everybody else waits for it."""

FORMS: Final = (
    "write one of {dimension, identifier, endpoint, method}, {context: {ip, user, api_key, client, path, method, "
    "attributes}} or {key, plans}"
)
RESET_FORMS: Final = (
    "write one of {dimension, identifier, endpoint, method}, {context: {ip, user, api_key, client, path, method, "
    "attributes}}, {key, plans} or {domain, descriptors: [{entries: [{key, value}]}]}"
)
GOES_INTO_A_BATCH: Final = "goes into a batch: send it to /api/v1/check/batch"
ATTRIBUTES: Final = {one.name: one.attribute for one in IDENTIFIED if one.attribute is not None}
"""The field of a RequestContext by the dimension of a check."""

_check: Final = msgspec.json.Decoder(CheckBody)
_batch: Final = msgspec.json.Decoder(BatchBody)
_reset: Final = msgspec.json.Decoder(ResetBody)
_verify: Final = msgspec.json.Decoder(VerifyBody)


def read_check(body: bytes) -> CheckBody:
    check: CheckBody = decode_json(_check, body, FORMS)
    if check.op is not None or check.counters is not None:
        raise InvalidRequestError("op" if check.op is not None else "counters", GOES_INTO_A_BATCH)
    return check


def read_batch(body: bytes) -> BatchBody:
    batch: BatchBody = decode_json(_batch, body, FORMS)
    if len(batch.checks) > MAX_CHECKS:
        raise InvalidRequestError(
            "checks", f"has {len(batch.checks)} checks; the maximum is {MAX_CHECKS}: send them in several batches"
        )
    return batch


def read_verify(body: bytes) -> VerifyBody:
    verify: VerifyBody = decode_json(_verify, body, FORMS)
    return verify


def read_reset(body: bytes) -> ResetBody:
    """The counters to reset: those of a check, or of Envoy descriptors."""
    reset: ResetBody = decode_json(_reset, body, RESET_FORMS)
    for name in ("op", "counters"):
        if getattr(reset, name) is not None:
            raise InvalidRequestError(name, GOES_INTO_A_BATCH)
    if reset.domain is None and reset.descriptors is None:
        return reset
    for name in ("domain", "descriptors"):
        if getattr(reset, name) is None:
            raise InvalidRequestError(name, f"is missing: {RESET_FORMS}")
    for name in ("dimension", "identifier", "endpoint", "method", "context", "key", "plans", "timestamp"):
        if getattr(reset, name) is not None:
            raise InvalidRequestError(name, "cannot be combined with 'domain': write domain and descriptors alone")
    return reset


def prepare_check(
    limiter: AsyncLimiter, op: Op, check: CheckBody, now_us: int = 0, takes_slots: bool = False
) -> PendingCheck:
    """A check, ready to be decided. InvalidRequestError has the field of the check. `now_us` is the time, if known.
    `takes_slots`: plans may have in-flight limits, since the caller releases their slots."""
    cost: Any = check.cost
    if cost is UNSET:
        cost = 1
    try:
        if check.key is not None and check.plans is not None and check.context is None:
            _refuse_other_forms(check, "key")
            bound = limiter.resolve(_plans(limiter, check.plans))
            return bound.prepare_hold(check.key, cost, op) if takes_slots else bound.prepare(op, check.key, cost)
        evaluator = limiter.evaluator
        assert isinstance(evaluator, RuleEvaluator)  # a native class, whose methods are called without boxing
        return evaluator.prepare(op, context_of(check), cost, now_us)
    except (ValueError, TypeError) as error:  # raised by the limiter
        name, reason = field_of(error)
        field = _check_field(check, name)
        raise InvalidRequestError(field, reason if field == name else str(error)) from None


def prepare_verify(limiter: AsyncLimiter, body: VerifyBody) -> PendingCheck:
    """A client's call of an API: its rules are matched against the API's name or path."""
    _check_path(body.apiName, "apiName")
    try:
        return limiter.prepare_request(
            Op.TAKE, ContextBody(client=body.clientId, path=body.apiName, method=body.methodName)
        )
    except (ValueError, TypeError) as error:
        name, _ = field_of(error)
        field = "methodName" if name == "method" else "clientId"
        raise InvalidRequestError(field, str(error).replace("client ", "it ", 1)) from None


def cost_of(check: CheckBody) -> int:
    cost: Any = check.cost
    return 1 if cost is UNSET else cost


def context_of(check: CheckBody) -> ContextBody:
    """The request that a check under rules is about."""
    context = check.context
    if context is not None:
        _refuse_other_forms(check, "context")
        if context.path is not None and len(context.path) > MAX_PATH:
            _check_path(context.path, "context.path")
        return context
    if check.key is not None:
        _refuse_other_forms(check, "key")
        return ContextBody(key=check.key)
    if check.dimension is None:
        raise InvalidRequestError("", f"nothing says what is checked: {FORMS}")
    if check.plans is not None:
        raise InvalidRequestError("plans", f"cannot be combined with 'dimension': {FORMS}")
    return _subject_context(check, check.dimension)


def _subject_context(check: CheckBody, name: str) -> ContextBody:
    """The request that a dimension and an identifier stand for."""
    dimension = DIMENSION_SPELLINGS.get(name) or parse_dimension(name)
    path, method, identifier = check.endpoint, check.method, check.identifier
    if path is not None and len(path) > MAX_PATH:
        _check_path(path, "endpoint")
    if dimension == "user" and identifier:
        return ContextBody(user=identifier, path=path, method=method)
    if dimension == "global":
        return ContextBody(path=path, method=method)
    if dimension == "api" and identifier is None:
        identifier = path
    if not identifier:
        raise InvalidRequestError("identifier", f"is missing: say which {dimension or 'subject'} it is")
    if dimension == "api":
        if path is None:
            _check_path(identifier, "identifier")
            path = identifier
        return ContextBody(path=path, method=method)
    attribute = ATTRIBUTES.get(dimension)
    if attribute is not None:
        fields: dict[str, Any] = {attribute: identifier, "path": path, "method": method}
        return ContextBody(**fields)
    raise InvalidRequestError(
        "dimension",
        f"must be one of {', '.join([one.enum_name for one in DIMENSIONS])}, not {name!r}: own dimensions are "
        "context.attributes",
    )


def _refuse_other_forms(check: CheckBody, form: str) -> None:
    """InvalidRequestError for a field of another form beside a context or a key."""
    if check.dimension is not None or check.identifier is not None:
        other = "dimension" if check.dimension is not None else "identifier"
    elif check.endpoint is not None or check.method is not None:
        other = "endpoint" if check.endpoint is not None else "method"
    elif form == "context" and (check.key is not None or check.plans is not None):
        other = "key" if check.key is not None else "plans"
    else:
        return
    raise InvalidRequestError(other, f"cannot be combined with {form!r}: {FORMS}")


def _check_path(path: str | None, field: str) -> None:
    if path is not None and len(path) > MAX_PATH:
        raise InvalidRequestError(field, f"has {len(path)} characters; the maximum is {MAX_PATH}")


def _plans(limiter: AsyncLimiter, plans: list[str]) -> list[str]:
    """Plans by name. A limit in notation is no plan: what clients make up must not become counters and labels."""
    if not plans:
        raise InvalidRequestError("plans", "names no plan: name one, or leave it out for the key's policy")
    if len(plans) > MAX_PLANS:
        raise InvalidRequestError("plans", f"names {len(plans)} plans, and may name {MAX_PLANS}")
    known = limiter.catalog.current.plans
    for position, name in enumerate(plans):
        if name not in known:
            raise InvalidRequestError(
                f"plans[{position}]", f"there is no plan {name!r}: make it with POST /api/v1/plans"
            )
    return plans


def _check_field(check: CheckBody, name: str) -> str:
    """The field of a check that the limiter calls by this name."""
    if not name:
        return "plans" if check.key is not None else ""
    if check.context is not None and name != "cost":
        return f"context.{name}"
    if name in ("cost", "method") or check.key is not None:
        return name
    return "endpoint" if name == "path" else "identifier"
