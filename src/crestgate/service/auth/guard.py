"""Authenticates and authorizes calls. It runs on the event loop, so it never waits for a network.

A call is checked in this order:

1. Admin calls (those that need `read` or `write`) must come from `server.admin_from`, if that lists networks: 403.
2. A call that needs an API key and has none: 401.
3. An API key must be valid: 401 if it is not, also where none is needed. Whoever sends a key expects to be
   authenticated, and must learn that the key is no longer valid.
4. The key's scope must include the one that the call needs: 403.
5. Admin calls are limited per key, reads and writes apart: 429.

Failed authentications are limited per address: past `server.limits.failed_logins` they are 429 instead of 401. A valid
key still works, or anybody behind the same proxy could lock the operator out. Guessing is hopeless because of the
length of the tokens; the limit only keeps it quiet.

All this is counted in one store that the workers of this machine share, whatever store the rules use: it works while
that store is down.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass
from ipaddress import ip_address
from math import ceil
from typing import TYPE_CHECKING

from crestgate.core.decision import Decision
from crestgate.core.limit import Limit
from crestgate.http.client_address import Networks
from crestgate.http.field_values import header_text
from crestgate.limiter.limiter import Limiter
from crestgate.rules.address import subject_address
from crestgate.service.auth.keys import ApiKeys, Caller, Scope, includes
from crestgate.service.context import Headers

if TYPE_CHECKING:
    from crestgate.config.server import Address, ServerSettings

__all__ = ["READ_CALLS", "CheckCeiling", "Guard", "Refusal", "required_check_scope"]

READ_CALLS = ("/api/v1/simulate",)
"""Calls of the admin API with a body that change nothing: the scope read is enough."""
CHALLENGE = b"Bearer"
INVALID_TOKEN = b'Bearer error="invalid_token"'
MAX_LEASE = 1000
MIN_LEASES = 100
"""A lease is at most a hundredth of the limit, which bounds what a worker holds unused."""


@dataclass(frozen=True, slots=True)
class Refusal:
    """Status, message and headers of the response to a refused call."""

    status: int
    detail: str
    headers: tuple[tuple[bytes, bytes], ...] = ()


class Guard:
    """Checks the calls of one worker."""

    def __init__(
        self,
        keys: ApiKeys,
        server: ServerSettings,
        node: Limiter,
        now_us: Callable[[], int] = lambda: time.time_ns() // 1000,
    ) -> None:
        """`node` uses a `shared://` store of all workers of this machine."""
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
        """The caller, or a refusal. None for a call without a key that needs none (`need` is None).

        `address` is that of the client, not grouped; `write` says whether an admin call counts as a write. `forwarded`
        is for calls of a proxy about a request of its client, whose `Authorization` and `X-API-Key` are in the headers
        too: the proxy's own key is in `X-Crestgate-Key`.
        """
        admin = need is not None and need != "check"
        if admin and self._admin_from and address not in self._admin_from:
            return Refusal(403, "admin calls are not allowed from your address: see server.admin_from")
        token = _header(headers, b"x-crestgate-key") if forwarded else _token(headers)
        if not token:
            return None if need is None else _key_required(forwarded)
        caller = self._keys.find(token, self._now_us())
        if caller is None:
            return self._authentication_failed(address)
        if need is None:
            return caller
        if not includes(caller.scope, need):
            return Refusal(403, f"the API key {caller.name!r} has scope {caller.scope}, and this call needs {need}")
        return (self._over_limit(caller, write) if admin else None) or caller

    def admit_token(self, token: str, address: str | None) -> Caller | Refusal:
        """The caller who logs in to the dashboard with a token: as an admin call that reads."""
        admitted = self.admit("read", [(b"x-api-key", token.encode("latin-1", "replace"))], address)
        return _key_required(False) if admitted is None else admitted

    def admit_session(self, caller: Caller, need: Scope, address: str | None) -> Refusal | None:
        """A refusal of a caller who has logged in: the same checks as for one who sends the key."""
        if self._admin_from and address not in self._admin_from:
            return Refusal(403, "admin calls are not allowed from your address: see server.admin_from")
        if not includes(caller.scope, need):
            return Refusal(403, f"the API key {caller.name!r} has scope {caller.scope}, and this needs {need}")
        return self._over_limit(caller, need == "write")

    def _authentication_failed(self, address: str | None) -> Refusal:
        decision = self._failed.check(f"failed:{subject_address(address) if address else '-'}")
        if decision.allowed:
            detail = "unknown API key: it does not exist, was revoked or has expired"
            return Refusal(401, detail, ((b"www-authenticate", INVALID_TOKEN),))
        return _too_many(
            "too many calls with an unknown API key from this address", self._limits.failed_logins, decision
        )

    def _over_limit(self, caller: Caller, write: bool) -> Refusal | None:
        """Count an admin call; a refusal if that exceeds the limit."""
        kind, bound, limit = (
            ("writes", self._writes, self._limits.writes) if write else ("reads", self._reads, self._limits.reads)
        )
        decision = bound.check(f"{kind}:{caller.key_id}")
        return (
            None
            if decision.allowed
            else _too_many(f"the API key {caller.name!r} has made too many {kind}", limit, decision)
        )


class CheckCeiling:
    """Limits the checks of all workers of this node together; batch items count one each.

    A worker leases many checks at a time from the shared store and counts them down locally, so a check costs a
    subtraction. Unused checks stay with the worker: in any period no more than the limit and one lease per worker are
    admitted, and no more than the leases of the others are refused too early. Not thread-safe.
    """

    def __init__(self, limit: Limit, node: Limiter) -> None:
        self._limit = limit
        self._capacity = limit.count if limit.burst is None else limit.burst
        self._lease = max(1, min(MAX_LEASE, self._capacity // MIN_LEASES))
        self._node = node.bind(limit)
        self._left = 0

    def admit(self, checks: int = 1) -> Refusal | None:
        """Count checks, all or none; a refusal if that exceeds the limit."""
        if checks <= self._left:
            self._left -= checks
            return None
        return self._lease_more(checks)

    def refund(self, checks: int) -> None:
        """Return checks that were counted and not made."""
        self._left += checks

    def _lease_more(self, checks: int) -> Refusal | None:
        missing = checks - self._left
        lease = max(self._lease, missing)
        decision = self._node.check("checks", lease)
        if decision.allowed:
            self._left += lease - checks
            return None
        if self._limit.count and missing > self._capacity:
            detail = (
                f"{checks} checks at once are more than the limit of this node ({self._limit}): send smaller batches"
            )
            return Refusal(429, detail)
        return _too_many("too many checks on this node", self._limit, decision)


def required_check_scope(server: ServerSettings, address: Address) -> Scope | None:
    """The scope that checks need on a listen address; None if they need no key.

    By default they need none on loopback, and with `server.insecure`.
    """
    if server.checks is not None:
        return "check" if server.checks == "key" else None
    return None if server.insecure or is_loopback(address.host) else "check"


def is_loopback(host: str) -> bool:
    """Whether only this machine can reach it. Of names, only localhost counts.

    >>> [is_loopback(host) for host in ("127.0.0.1", "::1", "localhost", "0.0.0.0", "::", "example.org")]
    [True, True, True, False, False, False]
    """
    try:
        return ip_address(host.partition("%")[0]).is_loopback
    except ValueError:
        return host.lower() == "localhost"


def _token(headers: Headers) -> str:
    """The token of `Authorization: Bearer …`, else of `X-API-Key`; empty without. Other schemes are ignored."""
    scheme, _, token = _header(headers, b"authorization").partition(" ")
    return (token.strip() if scheme.lower() == "bearer" else "") or _header(headers, b"x-api-key")


def _header(headers: Headers, header_name: bytes) -> str:
    for name, value in headers:
        if name == header_name:
            return header_text(value) or ""
    return ""


def _key_required(forwarded: bool) -> Refusal:
    where = "in X-Crestgate-Key" if forwarded else "as `Authorization: Bearer …`, or in X-API-Key"
    return Refusal(401, f"API key required: send it {where}", ((b"www-authenticate", CHALLENGE),))


def _too_many(message: str, limit: Limit, decision: Decision) -> Refusal:
    seconds = None if decision.retry_after is None else max(ceil(decision.retry_after), 1)
    if seconds is None:
        return Refusal(429, f"{message}: the limit is {limit}")
    retry = ((b"retry-after", str(seconds).encode()),)
    return Refusal(429, f"{message}: the limit is {limit}, retry in {seconds} s", retry)
