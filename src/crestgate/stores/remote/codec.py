"""JSON codec of the batch endpoint of a Crestgate service.

    {"op": "take", "counters": [{"key": "user:42", "name": "api", "limit": "100/minute", "cost": 1}, …]}
    {"op": "take", "context": {"user": "42", "path": "/orders"}, "cost": 1}

    {"counters": [{"at": 0, "allowed": true, "remaining": 99, "wait": 0, "reset": 600000, "reason": "ok", "tick": 1,
                   "token": "i65b…"}]}
    {"error": {"status": 400, "detail": "there is no plan 'gold'"}}

All numbers are integers, so a decision is the one that the service made, to the microsecond. A response to a
placeholder (see stores/server_side_limits.py) names the real limits, which replace the members of the request. A charge
comes with a token, which a later give-back or charge has to send.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from json.encoder import encode_basestring_ascii as quoted
from typing import Any

from crestgate.core.algorithms import Algorithm, build
from crestgate.core.algorithms.algorithm import MAX_SAFE_INTEGER
from crestgate.core.bounded_cache import BoundedCache
from crestgate.core.decision import NORMAL, Decision, Detail
from crestgate.core.limit import Limit
from crestgate.errors import ConfigError
from crestgate.stores.port import Member, Op, Outcome, Request
from crestgate.stores.server_side_limits import is_context, is_server_side

__all__ = ["MalformedResponseError", "ServiceProblemError", "decode_outcomes", "encode_request", "parse_problem"]

MAX_CACHED = 4096
MAX_TOKEN = 1000
"""Characters; those of a service are much shorter."""
MAX_DETAIL = 1000
"""Characters of a problem's detail that are passed on."""
MAX_NUMBER = 2 * MAX_SAFE_INTEGER
"""Upper bound of counts, waits and instants, in microseconds or ticks."""
_OPS = {Op.TAKE: "take", Op.PEEK: "peek", Op.RESET: "reset", Op.CHARGE: "charge", Op.GIVE_BACK: "give_back"}
_STANDARD_REASONS = ("ok", "limited", "cost_exceeds_limit", "blocked")
"""Reasons that follow from the numbers."""
_BATCH_PATH = re.compile(r"^checks\[\d+\](?:: |\.counters\[\d+\]\.\w+: |\.)")
"""The path of an invalid field in the batch, which the caller has not written."""
_algorithms: dict[tuple[str, str, str, bool], Algorithm] = BoundedCache(MAX_CACHED)
_encoded_limits: dict[Algorithm, str] = BoundedCache(MAX_CACHED)


class MalformedResponseError(Exception):
    """The response does not match the request."""


class ServiceProblemError(Exception):
    """The problem document for a request that the service did not decide."""

    def __init__(self, status: int, detail: str) -> None:
        super().__init__(detail)
        self.status = status
        self.detail = detail


def encode_request(request: Request) -> str:
    """A request as JSON in ASCII."""
    first = request.members[0]
    op = "" if request.op is Op.TAKE else f'"op":"{_OPS[request.op]}",'
    if is_context(first.algorithm):
        return f'{{{op}"context":{first.key},"cost":{first.cost}}}'
    return f'{{{op}"counters":[{",".join([_counter(request.op, member) for member in request.members])}]}}'


def _counter(op: Op, member: Member) -> str:
    """Formatted by hand, because it is done for every check; the part of the limit is cached."""
    text = f'{{"key":{quoted(member.key)},{_encoded_limit(member.algorithm)}'
    if member.cost != 1:
        text += f',"cost":{member.cost}'
    if not member.binds:
        text += ',"binds":false'
    if op is Op.GIVE_BACK:
        text += f',"tick":{member.tick},"amount":{member.amount}'
    if member.token is not None:
        text += f',"token":{quoted(member.token)}'
    return text + "}"


def _encoded_limit(algorithm: Algorithm) -> str:
    text = _encoded_limits.get(algorithm)
    if text is None:
        name = quoted(algorithm.name)
        limit = f'"name":{name},"limit":{quoted(str(algorithm.limit))}'
        text = _encoded_limits[algorithm] = f'"plan":{name}' if is_server_side(algorithm) else limit
    return text


def decode_outcomes(request: Request, response: Any) -> list[Outcome]:
    """The outcomes of a request, with its placeholders replaced. ServiceProblemError if it was not decided."""
    problem = parse_problem(response.get("error")) if isinstance(response, dict) else None
    if problem is not None:
        raise problem
    try:
        counters = response["counters"]
        if not isinstance(counters, list) or not all(isinstance(one, dict) for one in counters):
            raise MalformedResponseError("its counters are not a list of objects")
        members = _members(request, counters)
        outcomes = [_outcome(member.algorithm, one) for member, one in zip(members, counters, strict=True)]
    except (KeyError, IndexError, TypeError, ValueError) as error:
        raise MalformedResponseError(f"{type(error).__name__}: {error}") from None
    request.members = members
    return outcomes


def _members(request: Request, counters: Sequence[dict[str, Any]]) -> Sequence[Member]:
    """The members of the response's counters, in their order."""
    members = request.members
    if not any(is_server_side(member.algorithm) for member in members):
        return members  # one counter each
    if is_context(members[0].algorithm):
        return [_real_member(members[0], one) for one in counters]
    indices = [one["at"] for one in counters]
    if sorted(set(indices)) != list(range(len(members))):
        raise MalformedResponseError("a counter is missing")
    return [
        _real_member(members[index], one) if is_server_side(members[index].algorithm) else members[index]
        for index, one in zip(indices, counters, strict=True)
    ]


def _real_member(placeholder: Member, counter: dict[str, Any]) -> Member:
    key, limit, name = counter["key"], counter["limit"], counter["name"]
    label, binds, in_headers = counter["label"], counter["binds"], counter.get("headers", True)
    texts, flags = (key, limit, name, label), (binds, in_headers)
    if not all(type(text) is str for text in texts) or not all(type(flag) is bool for flag in flags):
        raise MalformedResponseError(f"invalid counter in response: {str(counter)[:200]}")
    return Member(key, _algorithm(limit, name, label, in_headers), placeholder.cost, binds)


def _outcome(algorithm: Algorithm, counter: dict[str, Any]) -> Outcome:
    reason, allowed, remaining = counter["reason"], counter["allowed"], counter["remaining"]
    wait, reset, tick = counter["wait"], counter["reset"], counter["tick"]
    if type(reason) is not str or type(allowed) is not bool:
        raise MalformedResponseError(f"invalid counter in response: {str(counter)[:200]}")
    for number in (remaining, 0 if wait is None else wait, reset, tick):
        if type(number) is not int or not 0 <= number <= MAX_NUMBER:
            raise MalformedResponseError(f"invalid counter in response: {str(counter)[:200]}")
    detail = None if reason in _STANDARD_REASONS else Detail(reason, None, NORMAL, None)
    token = counter.get("token")
    if token is not None and (type(token) is not str or len(token) > MAX_TOKEN):
        raise MalformedResponseError(f"invalid counter in response: {str(counter)[:200]}")
    return Outcome(Decision(algorithm, allowed, remaining, wait, reset, detail), tick, token)


def parse_problem(document: Any) -> ServiceProblemError | None:
    """The problem in a problem document, if it is one."""
    if not isinstance(document, dict) or not isinstance(document.get("status"), int):
        return None
    detail = str(document.get("detail") or document.get("title") or "it does not say why")
    return ServiceProblemError(document["status"], _BATCH_PATH.sub("", detail[:MAX_DETAIL]))


def _algorithm(limit: str, name: str, label: str, in_headers: bool) -> Algorithm:
    algorithm = _algorithms.get((limit, name, label, in_headers))
    if algorithm is None:
        try:
            algorithm = build(Limit.parse(limit), name, label)
        except ConfigError as error:  # a custom algorithm of the service
            raise MalformedResponseError(f"its limit {limit!r} is unknown here: {error}") from None
        algorithm.in_headers = in_headers
        _algorithms[limit, name, label, in_headers] = algorithm
    return algorithm
