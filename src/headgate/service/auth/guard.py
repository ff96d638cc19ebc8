"""The guard: who may call, from where and how often. It runs on the event loop, so it asks nothing that can be away.

A call is looked at in this order:

1. Admin calls (those that need `read` or `write`) must come from `server.admin_from`, if that names networks: 403.
2. A call that needs a key and has none is 401.
3. A key that was sent must be right: 401 if it is not, also where none is needed. Who sends a key means to be known,
   and is told that it no longer opens anything rather than being let in as a stranger.
4. The key's scope must include what the call needs: 403.
5. Admin calls are counted per key, reads and writes apart: 429.

Failed log-ins are counted per address, and past `server.limits.failed_logins` they are 429 in place of 401. Only those
that fail are refused: a right key works all the same, or else anybody behind the same proxy could lock the operator
out. What makes guessing hopeless is the length of the tokens; the limit keeps it from being loud.

All of it is counted in one store on this machine that all workers share, whatever store the rules use: none of it
waits for a network, and a store that is away leaves the doors as they are.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from ipaddress import ip_address
from math import ceil
from typing import TYPE_CHECKING

from headgate.core.decision import Decision
from headgate.core.limit import Limit
from headgate.engine.limiter import Limiter
from headgate.http.client_address import Networks
from headgate.http.field_values import header_text
from headgate.rules.address import subject_address
from headgate.service.auth.keys import Caller, Keys, Scope, includes

if TYPE_CHECKING:
    from headgate.config.server import Address, Server

__all__ = ["CheckCeiling", "Guard", "Headers", "Refusal", "needed_to_check"]

Headers = Sequence[tuple[bytes, bytes]]
"""As ASGI has them: names in lower case."""
ASK = b"Bearer"
WRONG = b'Bearer error="invalid_token"'
MOST_LEASE = 1000
LEASES = 100
"""A ceiling is given out in so many leases at least, so what lies about unused is a hundredth of it per worker."""


@dataclass(frozen=True, slots=True)
class Refusal:
    """Why a call is turned away: what the answer says."""

    status: int
    detail: str
    headers: tuple[tuple[bytes, bytes], ...] = ()


class Guard:
    """Looks at every call of one worker."""

    def __init__(
        self,
        keys: Keys,
        server: Server,
        node: Limiter,
        now_us: Callable[[], int] = lambda: time.time_ns() // 1000,
    ) -> None:
        """`node` counts in a store that all workers of this machine share, a `shared://` file."""
        self._keys = keys
        self._now_us = now_us
        self._admin_from = Networks(server.admin_from)
        self._limits = server.limits
        self._reads = node.bind(server.limits.reads)
        self._writes = node.bind(server.limits.writes)
        self._failed = node.bind(server.limits.failed_logins)

    def admit(
        self, need: Scope | None, headers: Headers, address: str | None, write: bool = False, *, forwarded: bool = False
    ) -> Caller | Refusal | None:
        """Who calls, or why they may not. None is somebody without a key, where none is needed (`need` is None).

        `address` is the client's, exact and not grouped; `write` says whether an admin call counts as a write.
        `forwarded` is for calls that a proxy makes about a request of somebody else, whose `Authorization` and
        `X-API-Key` are in the headers too: the proxy's own key is in `X-Headgate-Key`.
        """
        admin = need is not None and need != "check"
        if admin and self._admin_from and address not in self._admin_from:
            return Refusal(403, "this may not be called from your address: server.admin_from says from where")
        token = _header(headers, b"x-headgate-key") if forwarded else _token(headers)
        if not token:
            return None if need is None else _ask(forwarded)
        caller = self._keys.find(token, self._now_us())
        if caller is None:
            return self._failure(address)
        if need is None:
            return caller
        if not includes(caller.scope, need):
            return Refusal(403, f"the key {caller.name!r} has the scope {caller.scope}, and this needs {need}")
        return (self._over(caller, write) if admin else None) or caller

    def _failure(self, address: str | None) -> Refusal:
        decision = self._failed.check(f"failed:{subject_address(address) if address else '-'}")
        if decision.allowed:
            detail = "the key that was sent opens nothing: it is unknown, was revoked or has expired"
            return Refusal(401, detail, ((b"www-authenticate", WRONG),))
        return _too_many("keys that open nothing were sent from here too often", self._limits.failed_logins, decision)

    def _over(self, caller: Caller, write: bool) -> Refusal | None:
        """Count an admin call."""
        word, bound, limit = (
            ("writes", self._writes, self._limits.writes) if write else ("reads", self._reads, self._limits.reads)
        )
        decision = bound.check(f"{word}:{caller.key_id}")
        return None if decision.allowed else _too_many(f"the key {caller.name!r} has too many {word}", limit, decision)


class CheckCeiling:
    """How many checks all workers of this node answer together, batch items counted.

    A worker takes a lease of many checks from the store that they share, and counts it down by itself: a check costs
    a subtraction. What it has not used stays its own, so however the workers take turns, no more than the limit and
    one lease of each worker are admitted in any period; and what is refused too early is no more than the leases that
    others hold. For one event loop: two threads could take the same rest.
    """

    def __init__(self, limit: Limit, node: Limiter) -> None:
        self._limit = limit
        self._capacity = limit.count if limit.burst is None else limit.burst
        self._lease = max(1, min(MOST_LEASE, self._capacity // LEASES))
        self._node = node.bind(limit)
        self._left = 0

    def admit(self, checks: int = 1) -> Refusal | None:
        """Count so many checks, all or none."""
        if checks <= self._left:
            self._left -= checks
            return None
        return self._lease_more(checks)

    def give_back(self, checks: int) -> None:
        """So many were counted, and are not answered now."""
        self._left += checks

    def _lease_more(self, checks: int) -> Refusal | None:
        missing = checks - self._left
        lease = max(self._lease, missing)
        decision = self._node.check("checks", lease)
        if decision.allowed:
            self._left += lease - checks
            return None
        if self._limit.count and missing > self._capacity:
            detail = f"{checks} checks at once are more than this node ever takes ({self._limit}): send smaller batches"
            return Refusal(429, detail)
        return _too_many("this node is asked for too many checks", self._limit, decision)


def needed_to_check(server: Server, address: Address) -> Scope | None:
    """What checks need on an address that the service listens on: nothing where they are open.

    Unless it is said, they are open on loopback, where only this machine asks, and to a service that was told to be
    insecure.
    """
    if server.checks is not None:
        return "check" if server.checks == "key" else None
    return None if server.insecure or is_loopback(address.host) else "check"


def is_loopback(host: str) -> bool:
    """Whether only this machine reaches it. A name other than localhost may be anything.

    >>> [is_loopback(host) for host in ("127.0.0.1", "::1", "localhost", "0.0.0.0", "::", "example.org")]
    [True, True, True, False, False, False]
    """
    try:
        return ip_address(host.partition("%")[0]).is_loopback
    except ValueError:
        return host.lower() == "localhost"


def _token(headers: Headers) -> str:
    """The token of `Authorization: Bearer …`, else of `X-API-Key`; empty without. Other schemes are not ours."""
    scheme, _, token = _header(headers, b"authorization").partition(" ")
    return (token.strip() if scheme.lower() == "bearer" else "") or _header(headers, b"x-api-key")


def _header(headers: Headers, wanted: bytes) -> str:
    for name, value in headers:
        if name == wanted:
            return header_text(value) or ""
    return ""


def _ask(forwarded: bool) -> Refusal:
    where = "in X-Headgate-Key" if forwarded else "as `Authorization: Bearer …`, or in X-API-Key"
    return Refusal(401, f"this needs a key: send it {where}", ((b"www-authenticate", ASK),))


def _too_many(what: str, limit: Limit, decision: Decision) -> Refusal:
    seconds = None if decision.retry_after is None else max(ceil(decision.retry_after), 1)
    if seconds is None:
        return Refusal(429, f"{what}: the limit is {limit}")
    retry = ((b"retry-after", str(seconds).encode()),)
    return Refusal(429, f"{what}: the limit is {limit}, so try again in {seconds} s", retry)
