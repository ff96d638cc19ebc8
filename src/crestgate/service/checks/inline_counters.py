# mypyc: compile
"""Checks that list their counters one by one: what Crestgate's own library sends to a service.

    {"op": "take", "counters": [{"key": "user:42", "name": "api", "limit": "100/minute", "cost": 1},
                                {"key": "user:42", "plan": "gold", "cost": 1}]}

All of a check's counters are one store request, all or nothing. `op` is the operation, `take` by default; it may also
stand beside a context, or a key. Names that clients make up never become labels: all inline limits are counted as one
rule, INLINE. Nor do they ever name a counter of a rule or a plan: the names of inline counters all begin with
INLINE_PREFIX, which those of rules and plans never do.

To give back or charge needs the token of the take (see tokens.py), which may be of a rule's counter, or a plan's.
Without one it needs the scope `write`.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final, final

from crestgate.core.algorithms import build
from crestgate.core.algorithms.algorithm import MAX_SAFE_INTEGER, Algorithm
from crestgate.core.bounded_cache import BoundedCache
from crestgate.core.bounds import MAX_COST, check_input
from crestgate.core.limit import Limit
from crestgate.core.plans import INLINE_PREFIX
from crestgate.errors import ConfigError, InvalidRequestError, field_of
from crestgate.limiter.async_limiter import AsyncLimiter
from crestgate.limiter.pending_check import PendingCheck
from crestgate.service.checks.forms import MAX_COUNTERS, cost_of, prepare_check
from crestgate.service.checks.schemas import CheckBody, CounterBody
from crestgate.service.checks.tokens import TokenClaims, Tokens, is_expired
from crestgate.stores.port import Member, Op

__all__ = ["INLINE", "SettlementAuthorization", "check_duration", "inline_algorithm", "op_of", "prepare_counters"]

INLINE: Final = "inline"
MAX_LOG_ENTRIES: Final = 32_768
"""Of all sliding logs of one check, if it has several. Redis takes about 25 ms to look at so many, and answers nobody
else meanwhile."""
MAX_CACHED: Final = 4096
MAX_NAME: Final = 1024
"""Characters of a counter's name."""
MAX_LIMIT: Final = 256
MAX_DAYS: Final = 367
"""A calendar year, and a day for clocks that go back. For so long a counter of a limit that is written out may count.
Callers make up as many as they like, and a server such as Redis keeps each of them for that long."""
MAX_LASTS_US: Final = MAX_DAYS * 86_400_000_000
OPS: Final = {"take": Op.TAKE, "peek": Op.PEEK, "charge": Op.CHARGE, "give_back": Op.GIVE_BACK, "reset": Op.RESET}
AMOUNT: Final = "is the amount to refund, only valid with give_back: from 0 to cost"
OF_RULES: Final = (Op.TAKE, Op.PEEK, Op.RESET)

_algorithms: dict[tuple[bool, str, str], Algorithm] = BoundedCache(MAX_CACHED)
"""By whether the limit is inline, the name of its counter and its text."""


@final
class SettlementAuthorization:
    """Whether the caller shows that it took what a check gives back or charges."""

    def __init__(self, tokens: Tokens, caller: str, now: int, may_write: bool) -> None:
        self.tokens = tokens
        self.caller = caller
        self.may_write = may_write
        """Whether the caller has scope write."""
        self.now = now
        """In unix seconds."""
        self.take: str | None = None
        """The take that is settled."""
        self.issued = 0
        """When its tokens were issued, in unix seconds."""
        self.missing: str | None = None
        """What is wrong with the tokens, if anything is."""

    def add(self, op: Op, counter: CounterBody, claimed: TokenClaims | None, algorithm: Algorithm) -> bool:
        """One more counter, with what its token says; whether that may be believed."""
        if claimed is None or not self.tokens.check(claimed, self.caller, counter.key, algorithm):
            self.missing = (
                "without the token that this caller got for taking it"
                if counter.token is None
                else ("with a token that was not issued to this caller for this counter")
            )
        elif is_expired(op, claimed.issued, self.now):
            self.missing = "with a token that is too old"
        elif self.take is not None and self.take != claimed.take:
            self.missing = "with tokens of two takes: send a check for each of them"
        else:
            self.take = claimed.take
            self.issued = claimed.issued
            return True
        return False


def op_of(check: CheckBody) -> Op:
    """The operation of a check in a batch."""
    name = check.op
    if name is None:
        return Op.TAKE
    op = OPS.get(name)
    if op is None:
        raise InvalidRequestError("op", f"must be one of {', '.join(OPS)}, not {name!r}")
    if check.counters is None and op not in OF_RULES:
        raise InvalidRequestError("op", f"{name!r} requires 'counters': list each counter that was charged")
    return op


def prepare_counters(
    limiter: AsyncLimiter, op: Op, check: CheckBody, proof: SettlementAuthorization
) -> tuple[PendingCheck, Sequence[int]]:
    """A check of a batch, ready to be decided; for each member the index of the counter that it is of, if the check
    lists any."""
    if check.counters is None:
        return prepare_check(limiter, op, check), ()
    _refuse_other_fields(check)
    counters = check.counters
    if not 0 < len(counters) <= MAX_COUNTERS:
        raise InvalidRequestError("counters", f"has {len(counters)} counters: name 1 to {MAX_COUNTERS:,}")
    members: list[Member] = []
    indexes: list[int] = []
    for index, counter in enumerate(counters):
        try:
            added = _members(limiter, op, counter, proof)
        except InvalidRequestError as error:
            raise error.inside(f"counters[{index}]") from None
        members += added
        indexes += [index] * len(added)
    if len(members) > 1 and len({(member.key, member.algorithm.name) for member in members}) < len(members):
        raise InvalidRequestError("counters", "has a counter twice: each key and name may be there once")
    if len(counters) > 1:
        _check_logs(members)
    return limiter.prepare_counters(op, members), indexes


def _check_logs(members: Sequence[Member]) -> None:
    """Refuse several large logs in one check: it is decided in one step, which may look at all of their entries. A log
    alone may be as large as the store can hold."""
    logs = entries = 0
    for member in members:
        if member.algorithm.keeps_log:
            logs += 1
            entries += member.algorithm.capacity
    if logs > 1 and entries > MAX_LOG_ENTRIES:
        raise InvalidRequestError(
            "counters",
            f"has {logs} sliding window logs of {entries:,} entries together; the maximum is {MAX_LOG_ENTRIES:,}: "
            "send them in several checks, or use sliding_window_counter",
        )


def _members(limiter: AsyncLimiter, op: Op, counter: CounterBody, proof: SettlementAuthorization) -> list[Member]:
    """The counters that one entry stands for: one, or those of a plan."""
    key, cost = counter.key, counter.cost
    try:
        check_input(key, cost)
    except ValueError as error:
        field, reason = field_of(error)
        raise InvalidRequestError(field, reason) from None
    settles = op is Op.GIVE_BACK or op is Op.CHARGE
    if counter.token is not None and not settles:
        raise InvalidRequestError("token", "is only valid with give_back and charge: it identifies what was taken")
    if counter.plan is not None:
        if settles:
            proof.missing = "without the tokens that this caller got for taking it"
        return [Member(key, one, cost, peeks=one.holds) for one in _plan(limiter, counter)]
    if not 0 <= counter.tick <= MAX_SAFE_INTEGER:
        raise InvalidRequestError("tick", f"must be a whole number from 0 to {MAX_SAFE_INTEGER}")
    if not settles:
        if counter.amount:
            raise InvalidRequestError("amount", AMOUNT)
        written_out = _algorithm(counter, True)
        check_duration(written_out, proof.may_write)
        return [Member(key, written_out, cost, counter.binds, peeks=written_out.holds)]
    claimed = None if counter.token is None else proof.tokens.read(counter.token)
    algorithm = _algorithm(counter, claimed is None or claimed.inline)
    proven = proof.add(op, counter, claimed, algorithm)
    tick = counter.tick
    if proven and claimed is not None and op is Op.GIVE_BACK:
        cost, tick = claimed.cost, claimed.tick
    elif not proven and counter.token is not None and counter.amount <= MAX_COST:
        # Without a valid token the cost is not known: the caller needs scope write, and gets a 403 that says so.
        cost = max(cost, counter.amount)
    if not 0 <= counter.amount <= cost or (counter.amount and op is Op.CHARGE):
        raise InvalidRequestError("amount", AMOUNT)
    return [Member(key, algorithm, cost, counter.binds, tick, counter.amount)]


def inline_algorithm(limit: Limit, name: str) -> Algorithm:
    """A limit that a caller defines, under a name that begins with INLINE_PREFIX."""
    algorithm = build(limit, name, INLINE)
    algorithm.inline = True
    return algorithm


def check_duration(algorithm: Algorithm, may_write: bool) -> None:
    """InvalidRequestError for an inline limit whose counters last longer than its caller may have them."""
    if algorithm.recovery_us > MAX_LASTS_US and not may_write:
        raise InvalidRequestError(
            "limit",
            f"has counters that last {algorithm.recovery_us // 86_400_000_000:,} days, and {MAX_DAYS} is the most "
            "without the scope write: write a shorter period or a smaller burst",
        )


def _plan(limiter: AsyncLimiter, counter: CounterBody) -> tuple[Algorithm, ...]:
    name = counter.plan
    assert name is not None
    if (
        counter.limit is not None
        or counter.name is not None
        or counter.token is not None
        or counter.tick
        or counter.amount
        or not counter.binds
    ):
        raise InvalidRequestError("plan", "can only be combined with key and cost; the plan already defines the limits")
    chain = limiter.resolver.plan(name)
    if chain is None:
        raise InvalidRequestError("plan", f"there is no plan {name!r}: make it with POST /api/v1/plans")
    return chain


def _algorithm(counter: CounterBody, inline: bool) -> Algorithm:
    """An inline limit, under the name of its counter: one that only such limits have, or, for a token of the counter of
    a rule or plan, the name that the service returned."""
    text = counter.limit
    if text is None:
        raise InvalidRequestError(
            "limit", "is missing: write a limit such as 100/minute, or the name of a plan as plan"
        )
    counter_name = counter.name
    if not inline and counter_name is None:
        raise InvalidRequestError("name", "is missing: send key, name and limit as the answer to the take has them")
    if counter_name is not None and not 0 < len(counter_name) <= MAX_NAME:
        raise InvalidRequestError("name", f"has {len(counter_name)} characters: write 1 to {MAX_NAME:,}, or omit it")
    name = counter_name or ""
    if inline:
        name = INLINE_PREFIX + name
    elif name.startswith(INLINE_PREFIX):
        raise InvalidRequestError("name", f"begins with {INLINE_PREFIX!r}, as no counter of a rule or a plan does")
    cached_limit = _algorithms.get((inline, name, text))
    if cached_limit is not None:
        return cached_limit
    if len(text) > MAX_LIMIT:
        raise InvalidRequestError("limit", f"has {len(text)} characters; the maximum is {MAX_LIMIT}")
    try:
        limit = Limit.parse(text)
        cached_limit = build(limit, f"{INLINE_PREFIX}{limit}" if counter_name is None else name, INLINE)
        cached_limit.inline = inline
    except ConfigError as error:
        raise InvalidRequestError("limit", str(error)) from None
    _algorithms[inline, name, text] = cached_limit
    return cached_limit


def _refuse_other_fields(check: CheckBody) -> None:
    others = (
        ("dimension", check.dimension),
        ("identifier", check.identifier),
        ("endpoint", check.endpoint),
        ("method", check.method),
        ("context", check.context),
        ("key", check.key),
        ("plans", check.plans),
    )
    for name, value in others:
        if value is not None:
            raise InvalidRequestError(name, "cannot be combined with 'counters'")
    if cost_of(check) != 1:
        raise InvalidRequestError("cost", "must be given for each counter instead")
