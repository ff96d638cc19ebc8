"""The signing key of settlement tokens (see service/checks/tokens.py), one per rule database.

The first service creates it, and stores it beside the API keys as a record that authenticates nobody: it has no scope
and no digest. The audit log shows its creation, never the secret. `crestgate keys revoke settlement` replaces it at the
next start; tokens issued before are then refused.
"""

from __future__ import annotations

import secrets

from crestgate.errors import ConflictError, Problem, ValidationError
from crestgate.rules.port import Actor, Edit, Record, Repository

__all__ = ["SIGNING_KEY", "signing_key"]

SIGNING_KEY = "settlement"
"""Its id. Those of API keys are 12 hexadecimal digits."""
KEY_BYTES = 32


def signing_key(repository: Repository) -> bytes:
    """The key; created if there is none."""
    record = repository.get("key", SIGNING_KEY)
    if record is None:
        body = {"secret": secrets.token_hex(KEY_BYTES)}
        try:
            (record,) = repository.write([Edit("key", SIGNING_KEY, body, 0)], Actor("crestgate"))
        except ConflictError:  # another worker has created it
            record = repository.get("key", SIGNING_KEY)
    return _read(record)


def _read(record: Record | None) -> bytes:
    try:
        key = bytes.fromhex("" if record is None else record.body.get("secret", ""))
    except (TypeError, ValueError):
        key = b""
    if len(key) != KEY_BYTES:
        advice = f"`crestgate keys revoke {SIGNING_KEY}` removes it, and the next start creates another"
        raise ValidationError([Problem(f"key {SIGNING_KEY!r}", f"is stored in an unsupported format: {advice}")])
    return key
