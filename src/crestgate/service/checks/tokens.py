# mypyc: compile
"""Tokens that let a caller settle what it took, and nothing else.

A caller with scope `check` may take. To give back without having taken would lift a limit, and to charge would lock
somebody out. So an `exact` take is answered with a token for each counter that it charged, and whoever gives back or
charges the difference shows it:

    i18a4c5f20.5b0e1f7c2d9a11d3-2a.3.6605a1b2c3d4e.1f0c…      flag and second of issue, take, cost, tick, MAC

The MAC is over these, the caller, the counter and its limit, so a token is good for one caller and one counter alone.
Its key is stored in the rule database (see auth/token_keys.py): every worker and every instance knows the tokens of the
others. A token counts once: whoever settles writes an idempotency record of the take, in the same step. All tokens of
one take share that record.

Records last five minutes, so a give-back must come within four: it could be repeated otherwise. A charge may
come within a day, and repeating it gains nothing: the debt of a counter is bounded.
"""

from __future__ import annotations

import re
from hashlib import blake2b
from hmac import compare_digest
from itertools import count
from secrets import token_hex
from typing import Final, NamedTuple, final

from crestgate.core.algorithms.algorithm import MAX_SAFE_INTEGER, Algorithm
from crestgate.core.bounded_cache import BoundedCache
from crestgate.core.bounds import MAX_COST
from crestgate.core.plans import INLINE_PREFIX
from crestgate.stores.port import Op

__all__ = ["TokenClaims", "Tokens", "is_expired"]

MAX_TOKEN: Final = 200
"""Characters."""
GIVE_BACK_SECONDS: Final = 240
"""A minute less than records last, for clocks that differ."""
CHARGE_SECONDS: Final = 86_400
INLINE: Final = "i"
STORED: Final = "s"
"""The counter of a rule or a plan."""
MAX_CACHED: Final = 4096

_HEX: Final = "0|[1-9a-f][0-9a-f]"
_TOKEN: Final = re.compile(
    rf"(([{INLINE}{STORED}])({_HEX}{{0,11}})\.([0-9a-f]{{16}}-(?:{_HEX}{{0,15}}))\.({_HEX}{{0,7}})\.({_HEX}{{0,13}}))"
    r"\.([0-9a-f]{32})"
)
"""Exactly what `issue` writes. int() alone would take signs, underscores, blanks and numbers of any size."""


class TokenClaims(NamedTuple):
    """What a token says of itself."""

    head: str
    inline: bool
    issued: int
    take: str
    cost: int
    tick: int
    mac: str


@final
class Tokens:
    """Issues and checks the tokens of one worker."""

    def __init__(self, key: bytes) -> None:
        self._key = key
        self._process = token_hex(8)
        self._takes = count()
        self._names: dict[Algorithm, tuple[str, str]] = BoundedCache(MAX_CACHED)
        """Of counters: the flag of their tokens, and what the MAC is over."""

    def next_take(self) -> str:
        """A name for one take, like no other of any worker."""
        return f"{self._process}-{next(self._takes):x}"

    def issue(self, take: str, now: int, caller: str, key: str, algorithm: Algorithm, cost: int, tick: int) -> str:
        """The token for one counter that was charged. `now` is in unix seconds."""
        flag, name = self._names.get(algorithm) or self._named(algorithm)
        head = f"{flag}{now:x}.{take}.{cost:x}.{tick:x}"
        return f"{head}.{self._mac(head, caller, name, key)}"

    def read(self, token: str) -> TokenClaims | None:
        """A token taken apart, to be believed after `check`; None for what is none."""
        if len(token) > MAX_TOKEN:
            return None
        match = _TOKEN.fullmatch(token)
        if match is None:
            return None
        head, flag, issued, take, cost, tick, mac = match.groups()
        claimed = TokenClaims(head, flag == INLINE, int(issued, 16), take, int(cost, 16), int(tick, 16), mac)
        return claimed if claimed.cost <= MAX_COST and claimed.tick <= MAX_SAFE_INTEGER else None

    def check(self, claimed: TokenClaims, caller: str, key: str, algorithm: Algorithm) -> bool:
        """Whether this token was issued to this caller, for this counter."""
        _, name = self._names.get(algorithm) or self._named(algorithm)
        return compare_digest(claimed.mac, self._mac(claimed.head, caller, name, key))

    def _named(self, algorithm: Algorithm) -> tuple[str, str]:
        flag = INLINE if algorithm.name.startswith(INLINE_PREFIX) else STORED
        name = self._names[algorithm] = flag, f"{len(algorithm.name)} {algorithm.name}{algorithm.limit}"
        return name

    def _mac(self, head: str, caller: str, name: str, key: str) -> str:
        """Over fields that cannot be confused: ids of callers have no line ends."""
        text = f"{head}\n{caller}\n{name}\n{key}"
        return blake2b(text.encode("utf-8", "surrogatepass"), digest_size=16, key=self._key).hexdigest()


def is_expired(op: Op, issued: int, now: int) -> bool:
    """Whether a token is too old for this operation."""
    return now - issued > (GIVE_BACK_SECONDS if op is Op.GIVE_BACK else CHARGE_SECONDS)
