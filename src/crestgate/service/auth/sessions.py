"""Sessions of the dashboard: who has logged in with an API key is known by a signed cookie.

A cookie names the key, never contains it, and is signed with a secret that all workers of one rule database share, so
any worker recognises it and none has to keep a table:

    3f9c02d17ab4.1700043200.9f…2c.Xy…      id of the key, end in unix seconds, random id of the session, signature

The digest of the key's token is part of what is signed. So a session ends at its end, when the key expires or is
revoked, and when CRESTGATE_ADMIN_KEY is changed. A log-out is in force at once on this machine, by a counter that its
workers share, and within seconds everywhere and for good, by a record in the rule database. `form_token` is what forms
of the session carry: another site can neither read nor compute it.
"""

from __future__ import annotations

import secrets
import time
from base64 import urlsafe_b64encode
from collections.abc import Callable
from dataclasses import dataclass, field
from hashlib import sha256
from hmac import compare_digest
from hmac import new as hmac

from crestgate.limiter.limiter import Limiter
from crestgate.rules.port import Actor
from crestgate.service.auth.keys import ApiKeys, Caller
from crestgate.service.auth.log_outs import LogOuts
from crestgate.service.errors import ApiError

__all__ = ["COOKIE", "SESSION_SECONDS", "Session", "Sessions"]

COOKIE = "crestgate_session"
SESSION_SECONDS = 12 * 3600
ENDED = f"1/{SESSION_SECONDS} seconds"
"""A log-out takes this one, and a session whose one is taken has ended."""
MAX_COOKIE = 200
"""Characters. What we issue is shorter."""
PURPOSE = b"crestgate dashboard session"


@dataclass(frozen=True, slots=True)
class Session:
    """A log-in that is still valid."""

    caller: Caller
    session_id: str
    expires_us: int
    form_token: str = field(repr=False)


class Sessions:
    """Issues and verifies cookies."""

    def __init__(
        self,
        secret: bytes,
        keys: ApiKeys,
        node: Limiter,
        log_outs: LogOuts,
        now_us: Callable[[], int] = lambda: time.time_ns() // 1000,
    ) -> None:
        """`secret` is shared by all workers, and may sign other things, too; `node` counts for this machine."""
        self._secret = hmac(secret, PURPOSE, sha256).digest()
        self._keys = keys
        self._ended = node.bind(ENDED)
        self._log_outs = log_outs
        self._now_us = now_us

    def issue(self, caller: Caller) -> str:
        """The cookie of a new session."""
        known = self._keys.by_id(caller.key_id, self._now_us())
        if known is None:
            raise ApiError(401, "this API key was revoked just now")
        payload = f"{caller.key_id}.{self._now_us() // 1_000_000 + SESSION_SECONDS}.{secrets.token_hex(16)}"
        return f"{payload}.{self._sign(payload, known[1])}"

    def find(self, cookie: str) -> Session | None:
        """The session of a cookie; None if it is forged or has ended."""
        parts = cookie.split(".") if len(cookie) <= MAX_COOKIE and cookie.isascii() else []
        if len(parts) != 4:
            return None
        key_id, end, session_id, signature = parts
        now_us = self._now_us()
        known = self._keys.by_id(key_id, now_us)
        if known is None or not compare_digest(signature, self._sign(f"{key_id}.{end}.{session_id}", known[1])):
            return None
        expires_us = int(end) * 1_000_000  # signed, so it is a number
        if expires_us <= now_us or self._log_outs.has(session_id):
            return None
        if not self._ended.peek(_ended_key(session_id)).allowed:
            return None
        return Session(known[0], session_id, expires_us, self._sign(f"form.{session_id}", known[1]))

    def end(self, session: Session, address: str) -> None:
        """Log out: the cookie is worthless from now on. Blocks."""
        self._ended.check(_ended_key(session.session_id))
        actor = Actor(f"key:{session.caller.name}", address)
        self._log_outs.add(session.session_id, session.expires_us // 1_000_000, self._now_us() // 1_000_000, actor)

    def _sign(self, payload: str, key_digest: str) -> str:
        signed = hmac(self._secret, f"{payload}.{key_digest}".encode(), sha256).digest()
        return urlsafe_b64encode(signed).rstrip(b"=").decode()


def _ended_key(session_id: str) -> str:
    return f"session:{session_id}"
