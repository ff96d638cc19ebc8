# mypyc: compile
"""The commands that check, peek and reset, as store requests.

    CL.THROTTLE key max_burst count period [quantity]      as redis-cell has it
    RL.CHECK key [limit …] [COST n]                        RL.PEEK likewise
    RL.RESET key [limit …]

A limit is the name of a plan, or notation such as `100/minute`, also several with `;` between them; all limits of one
command are decided together, all or nothing. Without limits the policy of the key applies. Limits that are written out
are inline limits, as in a batch over HTTP (see checks/inline_counters.py): they reach no counter of a rule or a plan.

All limits that CL.THROTTLE is called with share one counter of a key, as redis-cell keeps one value for a key: a limit
can be changed on the fly, and keeps what was used.
"""

from __future__ import annotations

import re
from time import time
from typing import Final, final

from crestgate.core.algorithms.algorithm import Algorithm
from crestgate.core.bounded_cache import BoundedCache
from crestgate.core.bounds import MAX_COST, check_input
from crestgate.core.limit import Limit
from crestgate.core.plans import INLINE_PREFIX
from crestgate.errors import ConfigError, InvalidRequestError, field_of
from crestgate.limiter.pending_check import PendingCheck
from crestgate.service.checks.forms import prepare_check
from crestgate.service.checks.inline_counters import (
    SettlementAuthorization,
    check_duration,
    inline_algorithm,
    prepare_counters,
)
from crestgate.service.checks.schemas import CheckBody, CounterBody
from crestgate.service.checks.service import CheckService
from crestgate.service.checks.tokens import Tokens
from crestgate.stores.port import Member, Op

__all__ = ["MAX_LIMITS", "USAGES", "CheckCommands"]

THROTTLE_COUNTER: Final = f"{INLINE_PREFIX}cl.throttle"
"""The name of the counters of CL.THROTTLE. Over HTTP they are inline counters of the name `cl.throttle`."""
MAX_CACHED: Final = 4096
MAX_LIMITS: Final = 20
"""Of one command: all are decided in one step, and everybody else waits for it."""
MAX_TEXT: Final = 256
"""Characters of the limits in one argument that are remembered."""
MAX_SHOWN: Final = 40
"""Bytes of an argument in an error."""
COST: Final = b"COST"
USAGES: Final = {
    "CL.THROTTLE": "CL.THROTTLE key max_burst count period [quantity]",
    "RL.CHECK": "RL.CHECK key [limit …] [COST n]",
    "RL.PEEK": "RL.PEEK key [limit …] [COST n]",
    "RL.RESET": "RL.RESET key [limit …]",
}
_INTEGER: Final = re.compile(rb"-?[0-9]{1,19}")


@final
class CheckCommands:
    """Prepares the commands of one worker."""

    def __init__(self, checks: CheckService) -> None:
        self.limiter = checks.limiter
        self.metrics = checks.metrics
        self.pressure = checks.backend.pressure
        self._tokens = Tokens(checks.dependencies.token_key)
        self._throttles: dict[tuple[bytes, bytes, bytes], Algorithm] = BoundedCache(MAX_CACHED)
        """By max_burst, count and period, as they are written."""
        self._chains: dict[str, tuple[str, ...]] = BoundedCache(MAX_CACHED)
        """The limits in one argument, each in its own notation."""

    def throttle(self, command: list[bytes], may_write: bool) -> PendingCheck:
        """CL.THROTTLE. InvalidRequestError for anything that is wrong with it."""
        count = len(command)
        if not 5 <= count <= 6:
            raise wrong_arguments("CL.THROTTLE")
        algorithm = self._throttles.get((command[2], command[3], command[4]))
        if algorithm is None:
            algorithm = self._throttle(command[2], command[3], command[4])
        check_duration(algorithm, may_write)
        quantity = 1 if count == 5 else integer("quantity", command[5], 0, MAX_COST)
        return PendingCheck(self.pressure, Op.TAKE, [Member(key_of(command[1]), algorithm, quantity)])

    def _throttle(self, max_burst: bytes, count: bytes, period: bytes) -> Algorithm:
        burst = integer("max_burst", max_burst, 0) + 1
        requests = integer("count", count, 1)
        seconds = integer("period", period, 1)
        try:
            algorithm = inline_algorithm(Limit(requests, seconds, burst, "gcra"), THROTTLE_COUNTER)
        except ConfigError as error:
            raise InvalidRequestError("", str(error)) from None
        self._throttles[max_burst, count, period] = algorithm
        return algorithm

    def check(self, op: Op, name: str, command: list[bytes], may_write: bool) -> PendingCheck:
        """RL.CHECK, RL.PEEK or RL.RESET, which is `name`."""
        end = len(command)
        if end < 2:
            raise wrong_arguments(name)
        cost = 0 if op is Op.RESET else 1
        if op is not Op.RESET and end > 3 and command[end - 2].upper() == COST:
            cost = integer("cost", command[end - 1], 0, MAX_COST)
            end -= 2
        key = key_of(command[1])
        if end == 2:
            self._record_key(op, key)
            return prepare_check(self.limiter, op, CheckBody(key=key, cost=cost))
        counters: list[CounterBody] = []
        for index in range(2, end):
            self._add_counters(counters, key, text_of("limit", command[index]), cost)
        if len(counters) > MAX_LIMITS:
            raise InvalidRequestError("limit", f"there are {len(counters)}, and a command may have {MAX_LIMITS}")
        if all(counter.limit is None for counter in counters):
            self._record_key(op, key)
        proof = SettlementAuthorization(self._tokens, "", int(time()), may_write)
        try:
            return prepare_counters(self.limiter, op, CheckBody(counters=counters), proof)[0]
        except InvalidRequestError as error:
            path, _, field = error.field.rpartition(".")
            raise InvalidRequestError(field if path else "limit", error.message) from None

    def _record_key(self, op: Op, key: str) -> None:
        """Note a key that a plan or policy is checked for, for the admin lists."""
        if op is Op.TAKE:
            self.metrics.keys.record(key, self.limiter.clock.ticks())

    def _add_counters(self, counters: list[CounterBody], key: str, text: str, cost: int) -> None:
        """Add the counters of one argument: of a plan, or of limits that are written out."""
        if self.limiter.resolver.plan(text) is not None or not text[:1].isdigit():
            counters.append(CounterBody(key, plan=text, cost=cost))
            return
        chain = self._chains.get(text)
        if chain is None:
            try:
                chain = tuple([str(limit) for limit in Limit.parse_chain(text)])
            except ConfigError as error:
                raise InvalidRequestError("limit", str(error)) from None
            if len(text) <= MAX_TEXT:
                self._chains[text] = chain
        counters += [CounterBody(key, limit=limit, cost=cost) for limit in chain]


def key_of(argument: bytes) -> str:
    """A key; InvalidRequestError if it cannot be one."""
    key = text_of("key", argument)
    if not 0 < len(key) <= 256:
        try:
            check_input(key, 0)
        except ValueError as error:
            raise InvalidRequestError(*field_of(error)) from None
    return key


def text_of(name: str, argument: bytes) -> str:
    try:
        return argument.decode()
    except UnicodeDecodeError:
        raise InvalidRequestError(name, f"must be text in UTF-8, not {shown(argument)}") from None


def integer(name: str, argument: bytes, minimum: int, maximum: int = 2**63 - 1) -> int:
    """A whole number in these bounds; InvalidRequestError for anything else."""
    if _INTEGER.fullmatch(argument) is not None:
        number = int(argument)
        if minimum <= number <= maximum:
            return number
    bounds = f"of {minimum} or more" if maximum == 2**63 - 1 else f"from {minimum} to {maximum}"
    raise InvalidRequestError(name, f"must be a whole number {bounds}, not {shown(argument)}")


def wrong_arguments(name: str) -> InvalidRequestError:
    """For a command with too few or too many arguments, in the words that clients know from Redis."""
    message = f"wrong number of arguments for '{name.lower()}' command"
    usage = USAGES.get(name)
    return InvalidRequestError("", message if usage is None else f"{message}: write {usage}")


def shown(argument: bytes) -> str:
    """An argument in an error."""
    text = argument[:MAX_SHOWN].decode("utf-8", "replace")
    return repr(text if len(argument) <= MAX_SHOWN else f"{text}…")
