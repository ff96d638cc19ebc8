"""Checks that name their counters themselves, one by one: what Headgate's own library asks a service.

    {"op": "take", "counters": [{"key": "user:42", "name": "api", "limit": "100/minute", "cost": 1},
                                {"key": "user:42", "plan": "gold", "cost": 1}]}

All of a check's counters are one request to the store, all or nothing. `op` is what is to be done with them, `take`
unless said; it may also stand beside a context, or a key. What clients make up never becomes a label: all limits that
were written out are counted as one rule, INLINE. Nor does it ever name a counter of a rule or a plan: the names of such
counters all begin with INLINE_PREFIX, which those of rules and plans never do.

To give back or charge needs the token of the take (see tokens.py), which may be of a rule's counter, or a plan's. What
comes without one is `unproven`, and for callers with scope `write`.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final, final

from headgate.core.algorithms import build
from headgate.core.algorithms.algorithm import LARGEST, Algorithm
from headgate.core.limit import Limit
from headgate.embedded.asking import Prepared, PreparedChain, PreparedMembers
from headgate.embedded.async_limiter import AsyncLimiter
from headgate.engine.bound import MAX_COST, check_input
from headgate.engine.plans import INLINE_PREFIX
from headgate.errors import ConfigError
from headgate.service.data.bodies import MOST_COUNTERS, cost_of, prepare, way, wrong
from headgate.service.data.shapes import CheckBody, CounterBody
from headgate.service.data.tokens import Claimed, Tokens, is_expired
from headgate.stores.port import Member, Op

__all__ = ["INLINE", "Proof", "op_of", "prepare_item"]

INLINE: Final = "inline"
MAX_LOG_ENTRIES: Final = 32_768
"""Of all sliding logs of one check, if it has several. Redis takes about 25 ms to look at so many, and answers nobody
else meanwhile."""
MOST_REMEMBERED: Final = 4096
LONGEST_NAME: Final = 1024
"""Characters of a counter's name."""
LONGEST_LIMIT: Final = 256
MAX_DAYS: Final = 366
"""For how long a counter of a limit that is written out may count. Callers make up as many as they like, and a server
such as Redis keeps each of them for that long."""
MAX_LASTS_US: Final = MAX_DAYS * 86_400_000_000
OPS: Final = {"take": Op.TAKE, "peek": Op.PEEK, "charge": Op.CHARGE, "give_back": Op.GIVE_BACK, "reset": Op.RESET}
AMOUNT: Final = "is what is given back of the cost: 0, or no more than that"
OF_RULES: Final = (Op.TAKE, Op.PEEK, Op.RESET)

_built: dict[tuple[bool, str, str], Algorithm] = {}
"""By whether the limit is inline, the name of its counter and its text."""


@final
class Proof:
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

    def add(self, op: Op, counter: CounterBody, claimed: Claimed | None, algorithm: Algorithm) -> bool:
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


def op_of(check: CheckBody, at: str) -> Op:
    """What is to be done, as a check of a batch says it."""
    told = check.op
    if told is None:
        return Op.TAKE
    op = OPS.get(told)
    if op is None:
        raise wrong(way(at, "op"), f"must be one of {', '.join(OPS)}, not {told!r}")
    if check.counters is None and op not in OF_RULES:
        raise wrong(way(at, "op"), f"{told!r} goes with counters: what was charged is told for each by name")
    return op


def prepare_item(
    limiter: AsyncLimiter, op: Op, check: CheckBody, at: str, proof: Proof
) -> tuple[Prepared | PreparedChain, Sequence[int]]:
    """What is to be asked about a check of a batch; for each member which of the counters it names that is of."""
    if check.counters is None:
        return prepare(limiter, op, check, at), ()
    _alone(check, at)
    counters = check.counters
    if not 0 < len(counters) <= MOST_COUNTERS:
        raise wrong(way(at, "counters"), f"has {len(counters)} counters: name 1 to {MOST_COUNTERS:,}")
    members: list[Member] = []
    places: list[int] = []
    for place, counter in enumerate(counters):
        found = _members(limiter, op, counter, f"{at}.counters[{place}]", proof)
        members += found
        places += [place] * len(found)
    if len(members) > 1 and len({(member.key, member.algorithm.name) for member in members}) < len(members):
        raise wrong(way(at, "counters"), "has a counter twice: each key and name may be there once")
    if len(counters) > 1:
        _check_logs(members, at)
    return PreparedMembers(limiter._engine, op, members), places


def _check_logs(members: Sequence[Member], at: str) -> None:
    """Refuse several large logs in one check: it is decided in one step, which may look at all of their entries. A log
    alone may be as large as the store can hold."""
    logs = entries = 0
    for member in members:
        if member.algorithm.keeps_log:
            logs += 1
            entries += member.algorithm.capacity
    if logs > 1 and entries > MAX_LOG_ENTRIES:
        raise wrong(
            way(at, "counters"),
            f"has {logs} sliding window logs of {entries:,} entries together, and may have {MAX_LOG_ENTRIES:,}: "
            "send them in several checks, or use sliding_window_counter",
        )


def _members(limiter: AsyncLimiter, op: Op, counter: CounterBody, at: str, proof: Proof) -> list[Member]:
    """The counters that one entry stands for: one, or those of a plan."""
    key, cost = counter.key, counter.cost
    try:
        check_input(key, cost)
    except ValueError as error:
        field = str(error).partition(" ")[0]
        raise wrong(way(at, field), str(error).removeprefix(f"{field} ")) from None
    settles = op is Op.GIVE_BACK or op is Op.CHARGE
    if counter.token is not None and not settles:
        raise wrong(way(at, "token"), "goes with give_back and charge alone: it says what was taken")
    if counter.plan is not None:
        if settles:
            proof.missing = "without the tokens that this caller got for taking it"
        return [Member(key, algorithm, cost) for algorithm in _plan(limiter, counter, at)]
    if not 0 <= counter.tick <= LARGEST:
        raise wrong(way(at, "tick"), f"must be a whole number from 0 to {LARGEST}")
    if not settles:
        if counter.amount:
            raise wrong(way(at, "amount"), AMOUNT)
        written_out = _algorithm(counter, at, True)
        if written_out.lasts_us > MAX_LASTS_US and not proof.may_write:
            raise wrong(
                way(at, "limit"),
                f"has counters that last {written_out.lasts_us // 86_400_000_000:,} days, and {MAX_DAYS} is the most "
                "without the scope write: write a shorter period or a smaller burst",
            )
        return [Member(key, written_out, cost, counter.binds)]
    claimed = None if counter.token is None else proof.tokens.read(counter.token)
    algorithm = _algorithm(counter, at, claimed is None or claimed.inline)
    proven = proof.add(op, counter, claimed, algorithm)
    tick = counter.tick
    if proven and claimed is not None and op is Op.GIVE_BACK:
        cost, tick = claimed.cost, claimed.tick
    elif not proven and counter.token is not None and counter.amount <= MAX_COST:
        # Without a token that counts, nobody knows the cost: the caller needs scope write, and is told so (403).
        cost = max(cost, counter.amount)
    if not 0 <= counter.amount <= cost or (counter.amount and op is Op.CHARGE):
        raise wrong(way(at, "amount"), AMOUNT)
    return [Member(key, algorithm, cost, counter.binds, tick, counter.amount)]


def _plan(limiter: AsyncLimiter, counter: CounterBody, at: str) -> tuple[Algorithm, ...]:
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
        raise wrong(way(at, "plan"), "stands alone with key and cost: its limits are known here")
    chain = limiter._resolver.plan(name)
    if chain is None:
        raise wrong(way(at, "plan"), f"there is no plan {name!r}: make it with POST /api/v1/plans")
    return chain


def _algorithm(counter: CounterBody, at: str, inline: bool) -> Algorithm:
    """The limit that was written out, under the name of its counter: one that only such limits have, or, for a token of
    the counter of a rule or plan, the name that the service told."""
    text = counter.limit
    if text is None:
        raise wrong(way(at, "limit"), "is missing: write a limit such as 100/minute, or the name of a plan as plan")
    told = counter.name
    if not inline and told is None:
        raise wrong(way(at, "name"), "is missing: send key, name and limit as the answer to the take has them")
    if told is not None and not 0 < len(told) <= LONGEST_NAME:
        raise wrong(way(at, "name"), f"has {len(told)} characters: write 1 to {LONGEST_NAME:,}, or leave it out")
    name = told or ""
    if inline:
        name = INLINE_PREFIX + name
    elif name.startswith(INLINE_PREFIX):
        raise wrong(way(at, "name"), f"begins with {INLINE_PREFIX!r}, as no counter of a rule or a plan does")
    known = _built.get((inline, name, text))
    if known is not None:
        return known
    if len(text) > LONGEST_LIMIT:
        raise wrong(way(at, "limit"), f"has {len(text)} characters, and may have {LONGEST_LIMIT}")
    try:
        limit = Limit.parse(text)
        known = build(limit, f"{INLINE_PREFIX}{limit}" if told is None else name, INLINE)
        known.inline = inline
    except ConfigError as error:
        raise wrong(way(at, "limit"), str(error)) from None
    if len(_built) >= MOST_REMEMBERED:
        _built.clear()
    _built[inline, name, text] = known
    return known


def _alone(check: CheckBody, at: str) -> None:
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
            raise wrong(way(at, name), "does not go with 'counters', which name all that there is")
    if cost_of(check) != 1:
        raise wrong(way(at, "cost"), "is written beside each of the counters")
