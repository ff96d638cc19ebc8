"""What a check may say, in its three forms, and what is to be asked of the limiter for it.

    {"dimension": "USER", "identifier": "42", "endpoint": "/api/v1/orders", "method": "GET", "cost": 1}
    {"context": {"ip": …, "user": …, "api_key": …, "client": …, "path": …, "method": …}, "cost": 1}
    {"key": "user:42", "plans": ["gold", "daily"], "cost": 1}

Everything that is wrong is a BadRequest that names the field, before anything is asked.
"""

from __future__ import annotations

import re
from typing import Any

import msgspec
from msgspec import UNSET

from headgate.embedded.asking import Prepared, PreparedChain
from headgate.embedded.async_limiter import AsyncLimiter
from headgate.http.problem import on_one_line
from headgate.rules.path import LONGEST_PATH
from headgate.service.asgi import BadRequest
from headgate.service.data.shapes import BatchBody, CheckBody, ContextBody, VerifyBody
from headgate.service.duplicates import MAX_REDUNDANT_KEYS, DuplicateKey, redundant_keys, refuse_duplicates
from headgate.stores.port import Op

__all__ = [
    "MOST_CHECKS",
    "MOST_COUNTERS",
    "MOST_PLANS",
    "cost_of",
    "decoded",
    "plain_context",
    "prepare",
    "prepare_verify",
    "read_batch",
    "read_check",
    "read_verify",
    "way",
    "wrong",
]

MOST_CHECKS = 1000
MOST_PLANS = 20
MOST_COUNTERS = 100
"""Of one check: all of them are decided in one step, and everybody else waits for it."""
MAX_OBJECTS = 24_000
"""In one body. 1,000 checks with 10,000 counters are 11,001 objects, and keys may have braces in them, too."""
MAX_FIELD = 200
"""Characters of a field's name in an error: it may be the caller's."""
MAX_MESSAGE = 400
"""Characters that an error says of a field: some of them may be the caller's."""

_check = msgspec.json.Decoder(CheckBody)
_batch = msgspec.json.Decoder(BatchBody)
_verify = msgspec.json.Decoder(VerifyBody)
_AT = re.compile(r" - at `(?:key in )?\$\.?([^`]*)`$")
_UNKNOWN = re.compile(r"^Object contains unknown field `(.*)`$", re.DOTALL)
_MISSING = re.compile(r"^Object missing required field `(.*)`$")
_EMPTY = "Expected `str` of length >= 1"
_EXPECTED = re.compile(r"^Expected `([a-z| ]+)`, got `([a-z]+)`$")
_KINDS = {
    "str": "text",
    "int": "a whole number",
    "float": "a number",
    "array": "a list",
    "object": "an object",
    "bool": "true or false",
}
_FORMS = (
    "write one of {dimension, identifier, endpoint, method}, {context: {ip, user, api_key, client, path, method}} or "
    "{key, plans}"
)


def read_check(body: bytes) -> CheckBody:
    check: CheckBody = decoded(_check, body)
    if check.op is not None or check.counters is not None:
        raise wrong("op" if check.op is not None else "counters", "goes into a batch: send it to /api/v1/check/batch")
    return check


def read_batch(body: bytes) -> BatchBody:
    batch: BatchBody = decoded(_batch, body)
    if len(batch.checks) > MOST_CHECKS:
        raise wrong(
            "checks", f"has {len(batch.checks)} checks, and may have {MOST_CHECKS}: send them in several batches"
        )
    return batch


def read_verify(body: bytes) -> VerifyBody:
    asked: VerifyBody = decoded(_verify, body)
    return asked


def wrong(field: str, message: str) -> BadRequest:
    """A field that cannot be used."""
    field = _shortened(field, MAX_FIELD)
    message = _shortened(on_one_line(message), MAX_MESSAGE)
    return BadRequest(400, f"{field}: {message}" if field else message, problems=[{"field": field, "message": message}])


def _shortened(text: str, size: int) -> str:
    """A text of about this size at most, without its middle: the hint of an error is at its end."""
    return text if len(text) <= size else f"{text[: size // 2]}…{text[-size // 2 :]}"


def decoded(decoder: Any, body: bytes, forms: str = _FORMS) -> Any:
    """A body as its decoder has it. `forms` says what may be written, to those who write something else."""
    if len(body) > MAX_OBJECTS and body.count(b"{") > MAX_OBJECTS:
        raise wrong("", f"the body has more than {MAX_OBJECTS:,} objects: send less at once")
    try:
        value = decoder.decode(body)
        redundant = redundant_keys(body, value)
        if redundant:
            if redundant > MAX_REDUNDANT_KEYS:
                raise wrong(
                    "",
                    f"more than {MAX_REDUNDANT_KEYS:,} keys of the body are written twice, or say nothing as null does"
                    ": leave them out, and write colons as they are",
                )
            refuse_duplicates(body)
        return value
    except DuplicateKey as duplicate:  # not the same name as below: compiled code takes it for one type
        raise wrong(str(duplicate), "is written twice in one object: write it once") from None
    except msgspec.ValidationError as error:
        raise _invalid(str(error), forms) from None
    except msgspec.DecodeError as error:
        raise wrong("", f"the body is not JSON: {error}" if body else "the body is empty: send JSON") from None
    except UnicodeDecodeError:
        raise wrong("", "the body is not JSON: it is not UTF-8") from None
    except RecursionError:
        raise wrong("", "the body is nested too deeply") from None


def _invalid(told: str, forms: str) -> BadRequest:
    """What msgspec says of a body, as the field and what is wrong with it."""
    match = _AT.search(told)
    at = match[1] if match is not None else ""
    message = told if match is None else told[: match.start()]
    for pattern, words in ((_UNKNOWN, f"is unknown: {forms}"), (_MISSING, "is missing")):
        found = pattern.match(message)
        if found is not None:
            return wrong(way(at, found[1]), words)
    if message == _EMPTY:
        return wrong(at, "must not be empty: leave it out when it is not known")
    expected = _EXPECTED.match(message)
    if expected is None:
        return wrong(at, message[0].lower() + message[1:].replace("`", ""))
    wanted = [_KINDS.get(kind, kind) for kind in expected[1].split(" | ") if kind != "null"]
    given = (
        "a fraction" if wanted == [_KINDS["int"]] and expected[2] == "float" else _KINDS.get(expected[2], expected[2])
    )
    hint = ': write "42", in quotes' if wanted == [_KINDS["str"]] and expected[2] == "int" else ""
    return wrong(at, f"must be {' or '.join(wanted)}, not {given}{hint}")


def prepare(limiter: AsyncLimiter, op: Op, check: CheckBody, at: str = "") -> Prepared | PreparedChain:
    """What is to be asked about a check. `at` is where it stands, for messages."""
    context = plain_context(check, at)
    try:
        if context is not None:
            return limiter.prepare(op, context, cost_of(check))
        _only(check, at, "key")
        assert check.key is not None
        return limiter.prepare_plans(op, check.key, _plans(limiter, check.plans or [], at), cost_of(check))
    except (ValueError, TypeError) as error:  # what the limiter refuses
        field = _field(check, str(error))
        message = str(error).removeprefix(f"{field} ")  # which it begins with, and which is said already
        raise wrong(way(at, field), message) from None


def cost_of(check: CheckBody) -> int:
    cost: Any = check.cost
    return 1 if cost is UNSET else cost


def _field(check: CheckBody, message: str) -> str:
    """The field that the limiter means, whose messages begin with its name for it."""
    name = message.partition(" ")[0]
    if name not in _LIMITERS:
        return ""
    if check.context is not None and name != "cost":
        return f"context.{name}"
    if name in ("cost", "method") or check.key is not None:
        return name
    return "endpoint" if name == "path" else "identifier"


def plain_context(check: CheckBody, at: str = "") -> ContextBody | None:
    """The request that a check under rules is about; None for a check of plans."""
    if check.context is not None:
        _only(check, at, "context")
        _path(check.context.path, at, "context.path")
        return check.context
    if check.key is not None:
        if check.plans is not None:
            return None
        _only(check, at, "key")
        return ContextBody(key=check.key)
    if check.dimension is None:
        raise wrong(at, f"nothing says what is checked: {_FORMS}")
    _only(check, at, "dimension")
    return _subject(check, at)


def prepare_verify(limiter: AsyncLimiter, body: VerifyBody) -> Prepared:
    """A client's call of an API: the API's name or path is what its rules are matched against."""
    context = ContextBody(client=body.clientId, path=_path(body.apiName, "", "apiName"), method=body.methodName)
    try:
        return limiter.prepare(Op.TAKE, context)
    except (ValueError, TypeError) as error:
        field = "methodName" if str(error).startswith("method") else "clientId"
        raise wrong(field, str(error).replace("client ", "it ", 1)) from None


def _only(check: CheckBody, at: str, form: str) -> None:
    """A check has one form: what belongs to another is a mistake."""
    if form == "dimension":
        other = "plans" if check.plans is not None else None
    elif check.dimension is not None or check.identifier is not None:
        other = "dimension" if check.dimension is not None else "identifier"
    elif check.endpoint is not None or check.method is not None:
        other = "endpoint" if check.endpoint is not None else "method"
    elif form == "context" and (check.key is not None or check.plans is not None):
        other = "key" if check.key is not None else "plans"
    else:
        other = None
    if other is not None:
        raise wrong(way(at, other), f"does not go with {form!r}: {_FORMS}")


def way(at: str, name: str) -> str:
    """The way to a field of what stands there."""
    return f"{at}.{name}" if at and name else at or name


def _path(path: str | None, at: str, field: str) -> str | None:
    if path is not None and len(path) > LONGEST_PATH:
        raise wrong(way(at, field), f"has {len(path)} characters, and may have {LONGEST_PATH}")
    return path


def _subject(check: CheckBody, at: str) -> ContextBody:
    """The request that a dimension and an identifier stand for."""
    told = check.dimension or ""
    dimension = told.lower().replace("_", "")
    path, method, identifier = _path(check.endpoint, at, "endpoint"), check.method, check.identifier
    if dimension == "user" and identifier:
        return ContextBody(user=identifier, path=path, method=method)
    if dimension == "global":
        return ContextBody(path=path, method=method)
    if dimension == "api" and identifier is None:
        identifier = path
    if not identifier:
        raise wrong(way(at, "identifier"), f"is missing: say which {dimension or 'subject'} it is")
    if dimension == "api":
        return ContextBody(path=_path(identifier, at, "identifier") if path is None else path, method=method)
    if dimension == "ip":
        return ContextBody(ip=identifier, path=path, method=method)
    if dimension == "apikey":
        return ContextBody(api_key=identifier, path=path, method=method)
    if dimension == "client":
        return ContextBody(client=identifier, path=path, method=method)
    if dimension == "key":
        return ContextBody(key=identifier, path=path, method=method)
    raise wrong(way(at, "dimension"), f"must be one of {', '.join(_DIMENSIONS)}, not {told!r}")


_LIMITERS = ("api_key", "client", "cost", "ip", "key", "method", "path", "tier", "user")
_DIMENSIONS = ("USER", "IP", "API_KEY", "CLIENT", "KEY", "API", "GLOBAL")


def _plans(limiter: AsyncLimiter, plans: list[str], at: str) -> list[str]:
    """Plans by name. A limit in notation is no plan: what clients make up must not become counters and labels."""
    field = way(at, "plans")
    if not plans:
        raise wrong(field, "names no plan: name one, or leave it out for the key's policy")
    if len(plans) > MOST_PLANS:
        raise wrong(field, f"names {len(plans)} plans, and may name {MOST_PLANS}")
    known = limiter.catalog.current.plans
    for position, name in enumerate(plans):
        if name not in known:
            raise wrong(f"{field}[{position}]", f"there is no plan {name!r}: make it with POST /api/v1/plans")
    return plans
