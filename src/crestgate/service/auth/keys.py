"""API keys: created, listed, revoked, and looked up for each call.

A key is a record of kind `key` in the rule database, so every instance learns of a new or revoked one as soon as of a
changed rule. Its token is shown once, when it is created, and stored nowhere:

    cg_3f9c02d17ab4_wVq0…       cg, the key's id, and 43 random characters

Stored is the SHA-256 digest of the token. A slow, salted hash, as for passwords, would add nothing: it makes guessing
expensive where secrets are few and chosen by people, and these are 256 random bits. And each call would pay for it. The
digest is compared in constant time, and a token that names no key is compared as well, so response times reveal neither
digests nor which keys exist.

The admin key (CRESTGATE_ADMIN_KEY) is text that the operator chooses, and no record: it has scope write, and is changed
where it is set. It is only as strong as it is hard to guess.
"""

from __future__ import annotations

import re
import secrets
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from hashlib import sha256
from hmac import compare_digest
from typing import Any, Literal, get_args

from crestgate.errors import ConfigError, NotFoundError, Problem, ValidationError
from crestgate.loader.fields import describe
from crestgate.rules.diff import all_records
from crestgate.rules.port import Actor, Edit, Record, Repository
from crestgate.rules.timestamps import format_timestamp
from crestgate.service.auth.log_outs import LOG_OUTS
from crestgate.service.auth.token_keys import SIGNING_KEY

__all__ = [
    "SCOPES",
    "TOKEN",
    "ApiKey",
    "ApiKeys",
    "Caller",
    "Scope",
    "create_key",
    "includes",
    "key_id_of",
    "list_keys",
    "revoke_key",
    "rotate_key",
]

Scope = Literal["check", "read", "write"]
"""Make checks; also read rules, counters and the audit log; also change them. Each includes those before."""
SCOPES: tuple[Scope, ...] = get_args(Scope)
ADMIN = "admin"
"""Name and id of the admin key. Ids of others have 12 hexadecimal digits."""
MIN_ADMIN_KEY = 16
"""Characters."""
MAX_NAME = 100
MAX_GRACE_US = 366 * 86_400 * 1_000_000
"""How long a replaced key may still work."""
NOT_KEYS = (SIGNING_KEY, LOG_OUTS)
"""Records beside the keys."""
_RANK = {scope: rank for rank, scope in enumerate(SCOPES)}
TOKEN = re.compile("cg_([0-9a-f]{12})_[A-Za-z0-9_-]{43}")
_DIGEST = re.compile("[0-9a-f]{64}")
_NO_DIGEST = "0" * 64
"""The digest of no known token, for comparison where there is no key."""


@dataclass(frozen=True, slots=True)
class ApiKey:
    """An API key as it is stored."""

    key_id: str
    name: str
    scope: Scope
    digest: str = field(repr=False)
    """SHA-256 of the token, as 64 hexadecimal digits."""
    created_us: int
    expires_us: int | None = None
    """In microseconds since the epoch. A day later the record is removed."""

    def to_data(self) -> dict[str, Any]:
        """As it is shown: without the digest."""
        return {
            "key_id": self.key_id,
            "name": self.name,
            "scope": self.scope,
            "created_at": format_timestamp(self.created_us),
            "expires_at": format_timestamp(self.expires_us),
        }


@dataclass(frozen=True, slots=True)
class Caller:
    """An authenticated caller."""

    name: str
    scope: Scope
    key_id: str
    expires_us: int | None = None
    """When its key expires. A key that it creates expires no later."""


def create_key(
    repository: Repository, actor: Actor, name: str, scope: Scope, expires_us: int | None = None
) -> tuple[ApiKey, str]:
    """Create a key; returns it and its token, which is stored nowhere. Two keys may have the same name."""
    if scope not in SCOPES:
        raise ConfigError(f"a key's scope must be one of {', '.join(SCOPES)}, not {scope!r}", field="scope")
    if not isinstance(name, str) or not name.strip() or not name.isprintable() or len(name) > MAX_NAME:
        message = f"a key's name must be 1 to {MAX_NAME} printable characters, not {describe(name)}"
        raise ConfigError(message, field="name")
    edit, token = _new_key(name, scope, expires_us)
    (record,) = repository.write([edit], actor)
    assert record is not None
    return key_of(record), token


def rotate_key(
    repository: Repository,
    actor: Actor,
    key_id: str,
    *,
    now_us: int,
    grace_us: int,
    expires_us: int | None = None,
    latest_us: int | None = None,
) -> tuple[ApiKey, ApiKey, str]:
    """Create a key with the name and scope of another, which expires after the grace, or when it would have: both, or
    neither. Returns the new key, the old one, and the new token. NotFoundError if there is no such key.

    The new one expires at `expires_us`, by default with the old one; ConfigError if that is over, or after `latest_us`.
    """
    record = None if key_id in NOT_KEYS else repository.get("key", key_id)
    if record is None:
        raise _no_key(repository, key_id)
    if not 0 <= grace_us <= MAX_GRACE_US:
        raise ConfigError(f"the grace must be 0 to {MAX_GRACE_US // 86_400_000_000} days", field="grace_seconds")
    old = key_of(record)
    expires_us = old.expires_us if expires_us is None else expires_us
    if expires_us is not None and expires_us <= now_us:
        at = format_timestamp(expires_us)
        message = f"key {key_id!r} expired at {at}, and so would the new one: give that an expiry in the future"
        raise ConfigError(message, field="expires_at")
    if latest_us is not None and (expires_us is None or expires_us > latest_us):
        message = (
            f"key {key_id!r} would work after {format_timestamp(latest_us)}, when yours expires: give the new one an "
            "earlier expiry, or use a key that lasts longer"
        )
        raise ConfigError(message, field="expires_at")
    edit, token = _new_key(old.name, old.scope, expires_us)
    ends_us = now_us + grace_us if old.expires_us is None else min(now_us + grace_us, old.expires_us)
    ending = Edit("key", key_id, {**record.body, "expires_us": ends_us}, record.version, expires_us=ends_us)
    created, ended = repository.write([edit, ending], actor)
    assert created is not None
    assert ended is not None
    return key_of(created), key_of(ended), token


def _new_key(name: str, scope: Scope, expires_us: int | None) -> tuple[Edit, str]:
    key_id = secrets.token_hex(6)
    token = f"cg_{key_id}_{secrets.token_urlsafe(32)}"
    body = {"name": name, "scope": scope, "digest": digest_of(token), "expires_us": expires_us}
    return Edit("key", key_id, body, 0, expires_us=expires_us), token


def list_keys(repository: Repository) -> list[ApiKey]:
    """All keys, including expired ones that are not removed yet, oldest first."""
    records = [record for record in all_records(repository, "key") if record.id not in NOT_KEYS]
    return sorted(map(key_of, records), key=lambda key: (key.created_us, key.key_id))


def revoke_key(repository: Repository, actor: Actor, key_id: str) -> None:
    """Take a key away; NotFoundError if there is none of this id. Log-outs stay: cookies would work again."""
    if key_id == LOG_OUTS:
        raise _no_key(repository, key_id)
    try:
        repository.write([Edit("key", key_id, None)], actor)
    except NotFoundError:
        raise _no_key(repository, key_id) from None


def key_id_of(text: str) -> str:
    """The id of a key. Of a whole token only the id is used, so that the rest is shown nowhere."""
    token = TOKEN.fullmatch(text)
    return text if token is None else token[1]


def _no_key(repository: Repository, key_id: str) -> NotFoundError:
    """The error for an unknown id, with the ids of the keys that have this name."""
    named = [record.id for record in all_records(repository, "key") if record.body.get("name") == key_id]
    if not named:
        return NotFoundError(f"there is no key {key_id!r}")
    ids = f"the id {named[0]}" if len(named) == 1 else f"the ids {', '.join(named)}"
    return NotFoundError(f"there is no key {key_id!r}: the key with this name has {ids}")


def key_of(record: Record) -> ApiKey:
    """The key that a record keeps; ValidationError, with the record's name, if it is none."""
    body = record.body
    if not _is_key(body):
        advice = f"`crestgate keys revoke {record.id}` removes it"
        raise ValidationError([Problem(f"key {record.id!r}", f"is kept in a way that cannot be read: {advice}")])
    return ApiKey(record.id, body["name"], body["scope"], body["digest"], record.created_us, body.get("expires_us"))


def includes(given: Scope, needed: Scope) -> bool:
    """Whether one scope includes another.

    >>> includes("write", "check"), includes("read", "read"), includes("check", "read")
    (True, True, False)
    """
    return _RANK[given] >= _RANK[needed]


def digest_of(token: str) -> str:
    return sha256(token.encode("utf-8", "surrogatepass")).hexdigest()


class ApiKeys:
    """All valid keys: those of the rule database, and the admin key."""

    def __init__(self, keys: Callable[[], Mapping[str, Mapping[str, Any]]], admin_key: str | None = None) -> None:
        """`keys` returns the record bodies by id; `admin_key` is CRESTGATE_ADMIN_KEY, if it is set."""
        self._keys = keys
        self._admin_digest = None if admin_key is None else digest_of(_check_admin_key(admin_key))
        self._admin = Caller(ADMIN, "write", ADMIN)
        self._cached: tuple[Mapping[str, Mapping[str, Any]], dict[str, tuple[Caller, str]]] = ({}, {})
        """The last mapping of all records, and the callers and digests of the valid ones among them."""

    def find(self, token: str, now_us: int) -> Caller | None:
        """The caller with this token; None if it is unknown, revoked or expired. All take the same comparisons."""
        digest = digest_of(token)
        match = TOKEN.fullmatch(token)
        key_id = match[1] if match is not None else ""
        stored = self._valid().get(key_id)
        is_admin = compare_digest(digest, self._admin_digest or _NO_DIGEST)
        is_stored = compare_digest(digest, _NO_DIGEST if stored is None else stored[1])
        if is_admin:
            return self._admin
        if not is_stored or stored is None or _is_expired(stored[0], now_us):
            return None
        return stored[0]

    def by_id(self, key_id: str, now_us: int) -> tuple[Caller, str] | None:
        """The caller with the key of this id, and the digest of its token; None if it is unknown, revoked or expired.
        For sessions, which were authenticated by the token before."""
        if key_id == ADMIN:
            return None if self._admin_digest is None else (self._admin, self._admin_digest)
        stored = self._valid().get(key_id)
        return None if stored is None or _is_expired(stored[0], now_us) else stored

    def _valid(self) -> Mapping[str, tuple[Caller, str]]:
        """The callers and digests of the records that are well formed. They are read when the records change, and not
        for each call."""
        keys = self._keys()
        read = self._cached
        if read[0] is not keys:
            valid = {key_id: (_caller(key_id, body), body["digest"]) for key_id, body in keys.items() if _is_key(body)}
            read = self._cached = (keys, valid)
        return read[1]

    def admins(self, now_us: int) -> int:
        """How many keys have scope write."""
        callers = [caller for caller, _ in self._valid().values()]
        stored = [caller for caller in callers if caller.scope == "write" and not _is_expired(caller, now_us)]
        return len(stored) + (self._admin_digest is not None)


def _caller(key_id: str, body: Mapping[str, Any]) -> Caller:
    return Caller(body["name"], body["scope"], key_id, body.get("expires_us"))


def _is_expired(caller: Caller, now_us: int) -> bool:
    return caller.expires_us is not None and caller.expires_us <= now_us


def _is_key(body: Mapping[str, Any]) -> bool:
    name, scope, digest, expires_us = (body.get(field) for field in ("name", "scope", "digest", "expires_us"))
    return (
        isinstance(name, str)
        and scope in SCOPES
        and isinstance(digest, str)
        and _DIGEST.fullmatch(digest) is not None
        and (expires_us is None or (isinstance(expires_us, int) and not isinstance(expires_us, bool)))
    )


def _check_admin_key(text: str) -> str:
    """The admin key, stripped, as headers are; ConfigError, without showing it, if it is too weak."""
    key = text.strip()
    if len(key) < MIN_ADMIN_KEY:
        raise ConfigError(
            f"CRESTGATE_ADMIN_KEY has {len(key)} characters: write at least {MIN_ADMIN_KEY} that nobody guesses, "
            "such as those of `openssl rand -base64 32`"
        )
    if not key.isascii() or not key.isprintable() or " " in key:
        raise ConfigError("CRESTGATE_ADMIN_KEY goes into a header: write letters, digits and signs of ASCII, no blanks")
    return key
