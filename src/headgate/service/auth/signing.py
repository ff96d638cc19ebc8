"""The key that settlement tokens are signed with (see service/data/tokens.py): one for all that share a rule database.

It is made by whoever first needs it, and kept beside the API keys as a record that opens nothing: it has no scope and
no digest. The audit log shows that it was made, and never the secret. `headgate keys revoke settlement` replaces it at
the next start; tokens issued before are then refused.
"""

from __future__ import annotations

import secrets

from headgate.errors import Conflict, Invalid, Problem
from headgate.rules.repositories.port import Actor, Edit, Record, Repository

__all__ = ["SIGNING_KEY", "signing_key"]

SIGNING_KEY = "settlement"
"""Its id. Those of API keys are 12 hexadecimal digits."""
KEY_BYTES = 32


def signing_key(repository: Repository) -> bytes:
    """The key; made now if there is none."""
    record = repository.get("key", SIGNING_KEY)
    if record is None:
        body = {"secret": secrets.token_hex(KEY_BYTES)}
        try:
            (record,) = repository.write([Edit("key", SIGNING_KEY, body, 0)], Actor("headgate"))
        except Conflict:  # another worker was faster
            record = repository.get("key", SIGNING_KEY)
    return _read(record)


def _read(record: Record | None) -> bytes:
    try:
        key = bytes.fromhex("" if record is None else record.body.get("secret", ""))
    except (TypeError, ValueError):
        key = b""
    if len(key) != KEY_BYTES:
        advice = f"`headgate keys revoke {SIGNING_KEY}` removes it, and the next start makes another"
        raise Invalid([Problem(f"key {SIGNING_KEY!r}", f"is kept in a way that cannot be read: {advice}")])
    return key
