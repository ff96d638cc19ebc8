"""A request of the port as one item of a service's batch, and its answer as outcomes.

    {"op": "take", "counters": [{"key": "user:42", "name": "api", "limit": "100/minute", "cost": 1}, …]}
    {"op": "take", "context": {"user": "42", "path": "/orders"}, "cost": 1}

    {"counters": [{"at": 0, "allowed": true, "remaining": 99, "wait": 0, "reset": 600000, "reason": "ok", "tick": 1,
                   "token": "i65b…"}]}
    {"error": {"status": 400, "detail": "there is no plan 'gold'"}}

Both ways whole numbers: a decision that came over the wire is the one that was made, to the microsecond. Of limits that
only the service knew the answer says what they are, and the members of the request are replaced by them (see
stores/far.py). What was charged comes with a token, which goes back with what is given back or charged of it later.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from json.encoder import encode_basestring_ascii as quoted
from typing import Any

from headgate.core.algorithms import Algorithm, build
from headgate.core.algorithms.algorithm import LARGEST
from headgate.core.decision import NORMAL, Decision, Detail
from headgate.core.limit import Limit
from headgate.errors import ConfigError
from headgate.stores.far import is_context, known_far
from headgate.stores.port import Member, Op, Outcome, Request

__all__ = ["Malformed", "Problem", "item_of", "outcomes_of", "problem_in"]

MOST_REMEMBERED = 4096
MAX_TOKEN = 1000
"""Characters of a token that is kept for later; a service makes them much shorter."""
MAX_DETAIL = 1000
"""Characters of what a service says of a problem that are passed on."""
LARGEST_NUMBER = 2 * LARGEST
"""No count is larger, and no wait or instant in microseconds or ticks."""
_OPS = {Op.TAKE: "take", Op.PEEK: "peek", Op.RESET: "reset", Op.CHARGE: "charge", Op.GIVE_BACK: "give_back"}
_USUAL = ("ok", "limited", "cost_exceeds_limit", "blocked")
"""Reasons that the numbers tell by themselves."""
_WAY = re.compile(r"^checks\[\d+\](?:: |\.counters\[\d+\]\.\w+: |\.)")
"""Where in a batch a mistake is: nobody has written that batch."""
_built: dict[tuple[str, str, str], Algorithm] = {}
_names: dict[Algorithm, str] = {}


class Malformed(Exception):  # noqa: N818 - says what it is
    """What was answered is no answer to what was asked."""


class Problem(Exception):  # noqa: N818 - says what it is
    """What the service says of a request that it has not decided."""

    def __init__(self, status: int, detail: str) -> None:
        super().__init__(detail)
        self.status = status
        self.detail = detail


def item_of(request: Request) -> str:
    """A request as it is sent: JSON, of ASCII characters alone."""
    first = request.members[0]
    op = "" if request.op is Op.TAKE else f'"op":"{_OPS[request.op]}",'
    if is_context(first.algorithm):
        return f'{{{op}"context":{first.key},"cost":{first.cost}}}'
    return f'{{{op}"counters":[{",".join([_counter(request.op, member) for member in request.members])}]}}'


def _counter(op: Op, member: Member) -> str:
    """Written out here, because it is done for every check; what is the same each time is remembered."""
    text = f'{{"key":{quoted(member.key)},{_named(member.algorithm)}'
    if member.cost != 1:
        text += f',"cost":{member.cost}'
    if not member.binds:
        text += ',"binds":false'
    if op is Op.GIVE_BACK:
        text += f',"tick":{member.tick},"amount":{member.amount}'
    if member.token is not None:
        text += f',"token":{quoted(member.token)}'
    return text + "}"


def _named(algorithm: Algorithm) -> str:
    text = _names.get(algorithm)
    if text is None:
        name = quoted(algorithm.name)
        limit = f'"name":{name},"limit":{quoted(str(algorithm.limit))}'
        if len(_names) >= MOST_REMEMBERED:
            _names.clear()
        text = _names[algorithm] = f'"plan":{name}' if known_far(algorithm) else limit
    return text


def outcomes_of(request: Request, answer: Any) -> list[Outcome]:
    """What came of a request, whose members are then those that were really asked. Problem when nothing did."""
    problem = problem_in(answer.get("error")) if isinstance(answer, dict) else None
    if problem is not None:
        raise problem
    try:
        told = answer["counters"]
        if not isinstance(told, list) or not all(isinstance(one, dict) for one in told):
            raise Malformed("its counters are no list of them")
        members = _members(request, told)
        outcomes = [_outcome(member.algorithm, one) for member, one in zip(members, told, strict=True)]
    except (KeyError, IndexError, TypeError, ValueError) as error:
        raise Malformed(f"{type(error).__name__}: {error}") from None
    request.members = members
    return outcomes


def _members(request: Request, told: Sequence[dict[str, Any]]) -> Sequence[Member]:
    """Whom the answer is about, in its order."""
    asked = request.members
    if not any(known_far(member.algorithm) for member in asked):
        return asked  # one for one, or there is no sense in it
    if is_context(asked[0].algorithm):
        return [_real(asked[0], one) for one in told]
    places = [one["at"] for one in told]
    if sorted(set(places)) != list(range(len(asked))):
        raise Malformed("a counter is missing")
    named = [asked[place] for place in places]
    return [
        _real(member, one) if known_far(member.algorithm) else member for member, one in zip(named, told, strict=True)
    ]


def _real(standing: Member, told: dict[str, Any]) -> Member:
    key, limit, name, label, binds = told["key"], told["limit"], told["name"], told["label"], told["binds"]
    if not all(type(text) is str for text in (key, limit, name, label)) or type(binds) is not bool:
        raise Malformed(f"a counter says {str(told)[:200]}")
    return Member(key, _algorithm(limit, name, label), standing.cost, binds)


def _outcome(algorithm: Algorithm, told: dict[str, Any]) -> Outcome:
    reason, allowed, remaining = told["reason"], told["allowed"], told["remaining"]
    wait, reset, tick = told["wait"], told["reset"], told["tick"]
    if type(reason) is not str or type(allowed) is not bool:
        raise Malformed(f"a counter says {str(told)[:200]}")
    for number in (remaining, 0 if wait is None else wait, reset, tick):
        if type(number) is not int or not 0 <= number <= LARGEST_NUMBER:
            raise Malformed(f"a counter says {str(told)[:200]}")
    detail = None if reason in _USUAL else Detail(reason, None, NORMAL, None)
    token = told.get("token")
    if token is not None and (type(token) is not str or len(token) > MAX_TOKEN):
        raise Malformed(f"a counter says {str(told)[:200]}")
    return Outcome(Decision(algorithm, allowed, remaining, wait, reset, detail), tick, token)


def problem_in(told: Any) -> Problem | None:
    """A problem as the service tells it, if it is one."""
    if not isinstance(told, dict) or not isinstance(told.get("status"), int):
        return None
    detail = str(told.get("detail") or told.get("title") or "it does not say why")
    return Problem(told["status"], _WAY.sub("", detail[:MAX_DETAIL]))


def _algorithm(limit: str, name: str, label: str) -> Algorithm:
    known = _built.get((limit, name, label))
    if known is None:
        try:
            known = build(Limit.parse(limit), name, label)
        except ConfigError as error:  # one that was registered there
            raise Malformed(f"its limit {limit!r} is unknown here: {error}") from None
        if len(_built) >= MOST_REMEMBERED:
            _built.clear()
        _built[limit, name, label] = known
    return known
