"""Keys of the service: what one is, how it is made, listed and revoked, and who it says is calling.

A key is a record of kind `key` in the rule database, so every instance knows of a new one, or of one that was revoked,
as soon as of a changed rule. Its token is shown once, when it is made, and kept nowhere:

    hg_3f9c02d17ab4_wVq0…       hg, the key's id, and 43 characters that nobody can guess

What is kept is the SHA-256 digest of the token. A slow hash with a salt, as passwords need, would buy nothing here: it
makes guessing dear where secrets are few and chosen by people, and these are 256 random bits, more than anybody can
try. And it would be paid with every call. The digest is compared in constant time, and a token that names no key is
compared all the same, so how long an answer takes tells neither what is kept nor which keys there are.

The first key (HEADGATE_ADMIN_KEY) is the operator's own text, and is no record: it may do everything and is changed
where it is set. It is only as good as the text is hard to guess.
"""

from __future__ import annotations

import re
import secrets
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from hashlib import sha256
from hmac import compare_digest
from typing import Any, Literal, get_args

from headgate.errors import ConfigError, Invalid, Problem
from headgate.reading.fields import kind_of
from headgate.rules.comparing import all_records
from headgate.rules.repositories.port import Actor, Edit, Record, Repository
from headgate.service.auth.signing import SIGNING_KEY

__all__ = ["SCOPES", "TOKEN", "ApiKey", "Caller", "Keys", "Scope", "create_key", "includes", "list_keys", "revoke_key"]

Scope = Literal["check", "read", "write"]
"""Ask for decisions; also look at rules, counters and the audit log; also change them. Each includes those before."""
SCOPES: tuple[Scope, ...] = get_args(Scope)
FIRST = "admin"
"""The name and the id of the first key. Ids of others are of 12 digits."""
LEAST_FIRST = 16
"""Characters of the first key."""
MOST_NAME = 100
_RANK = {scope: rank for rank, scope in enumerate(SCOPES)}
TOKEN = re.compile("hg_([0-9a-f]{12})_[A-Za-z0-9_-]{43}")
_DIGEST = re.compile("[0-9a-f]{64}")
_NOBODY = "0" * 64
"""The digest of no token that anybody will find: what is compared where there is no key."""


@dataclass(frozen=True, slots=True)
class ApiKey:
    """A key as it is kept."""

    key_id: str
    name: str
    scope: Scope
    digest: str = field(repr=False)
    """SHA-256 of the token, as 64 hexadecimal digits."""
    created_us: int
    expires_us: int | None = None
    """From when on it opens nothing, in microseconds since the epoch. A day later it is removed."""


@dataclass(frozen=True, slots=True)
class Caller:
    """Who calls, by the key that was given."""

    name: str
    scope: Scope
    key_id: str


def create_key(
    repository: Repository, actor: Actor, name: str, scope: Scope, expires_us: int | None = None
) -> tuple[ApiKey, str]:
    """Make a key: the key, and its token, which is nowhere else. Names are for people; two keys may have the same."""
    if scope not in SCOPES:
        raise ConfigError(f"a key's scope is one of {', '.join(SCOPES)}, not {scope!r}")
    if not isinstance(name, str) or not name.strip() or not name.isprintable() or len(name) > MOST_NAME:
        raise ConfigError(f"a key's name must be 1 to {MOST_NAME} printable characters, not {kind_of(name)}")
    key_id = secrets.token_hex(6)
    token = f"hg_{key_id}_{secrets.token_urlsafe(32)}"
    body = {"name": name, "scope": scope, "digest": digest_of(token), "expires_us": expires_us}
    (record,) = repository.write([Edit("key", key_id, body, 0, expires_us=expires_us)], actor)
    assert record is not None
    return key_of(record), token


def list_keys(repository: Repository) -> list[ApiKey]:
    """All keys there are, also those that have expired and were not removed yet, the oldest first."""
    records = [record for record in all_records(repository, "key") if record.id != SIGNING_KEY]
    return sorted(map(key_of, records), key=lambda key: (key.created_us, key.key_id))


def revoke_key(repository: Repository, actor: Actor, key_id: str) -> None:
    """Take a key away; NotFound if there is none of this id."""
    repository.write([Edit("key", key_id, None)], actor)


def key_of(record: Record) -> ApiKey:
    """The key that a record keeps; Invalid, with the record's name, if it is none."""
    body = record.body
    if not _is_key(body):
        advice = f"`headgate keys revoke {record.id}` removes it"
        raise Invalid([Problem(f"key {record.id!r}", f"is kept in a way that cannot be read: {advice}")])
    return ApiKey(record.id, body["name"], body["scope"], body["digest"], record.created_us, body.get("expires_us"))


def includes(given: Scope, needed: Scope) -> bool:
    """Whether who has one scope may do what needs the other.

    >>> includes("write", "check"), includes("read", "read"), includes("check", "read")
    (True, True, False)
    """
    return _RANK[given] >= _RANK[needed]


def digest_of(token: str) -> str:
    return sha256(token.encode("utf-8", "surrogatepass")).hexdigest()


class Keys:
    """All keys that are in force: those of the rule database as it stands, and the first."""

    def __init__(self, keys: Callable[[], Mapping[str, Mapping[str, Any]]], first: str | None = None) -> None:
        """`keys` gives the bodies of the records by their ids; `first` is HEADGATE_ADMIN_KEY, if it is set."""
        self._keys = keys
        self._first = None if first is None else digest_of(_check_first(first))
        self._read: tuple[Mapping[str, Mapping[str, Any]], dict[str, Mapping[str, Any]]] = ({}, {})
        """The keys that were read last, as they came, and those of them that are keys: each is looked at once."""

    def find(self, token: str, now_us: int) -> Caller | None:
        """Who has this token; None for an unknown, revoked, expired or broken one. They all take the same compares."""
        digest = digest_of(token)
        match = TOKEN.fullmatch(token)
        key_id = match[1] if match is not None else ""
        kept = self._good().get(key_id)
        is_first = compare_digest(digest, self._first or _NOBODY)
        is_kept = compare_digest(digest, kept["digest"] if kept is not None else _NOBODY)
        if is_first:
            return Caller(FIRST, "write", FIRST)
        if not is_kept or kept is None:
            return None
        if _is_over(kept, now_us):
            return None
        return Caller(kept["name"], kept["scope"], key_id)

    def _good(self) -> Mapping[str, Mapping[str, Any]]:
        """The keys that can be read; what is broken opens nothing."""
        keys = self._keys()
        read = self._read
        if read[0] is not keys:
            read = self._read = (keys, {key_id: body for key_id, body in keys.items() if _is_key(body)})
        return read[1]

    def admins(self, now_us: int) -> int:
        """How many keys may do everything now: who may start to listen to others asks."""
        kept = [body for body in self._good().values() if body["scope"] == "write" and not _is_over(body, now_us)]
        return len(kept) + (self._first is not None)


def _is_over(body: Mapping[str, Any], now_us: int) -> bool:
    expires_us: int | None = body.get("expires_us")
    return expires_us is not None and expires_us <= now_us


def _is_key(body: Mapping[str, Any]) -> bool:
    name, scope, digest, expires_us = (body.get(field) for field in ("name", "scope", "digest", "expires_us"))
    return (
        isinstance(name, str)
        and scope in SCOPES
        and isinstance(digest, str)
        and _DIGEST.fullmatch(digest) is not None
        and (expires_us is None or (isinstance(expires_us, int) and not isinstance(expires_us, bool)))
    )


def _check_first(text: str) -> str:
    """The operator's key without blanks around it, which no header keeps; ConfigError, without showing it."""
    key = text.strip()
    if len(key) < LEAST_FIRST:
        raise ConfigError(
            f"HEADGATE_ADMIN_KEY has {len(key)} characters: write at least {LEAST_FIRST} that nobody guesses, such as "
            "those of `openssl rand -base64 32`"
        )
    if not key.isascii() or not key.isprintable() or " " in key:
        raise ConfigError("HEADGATE_ADMIN_KEY goes into a header: write letters, digits and signs of ASCII, no blanks")
    return key
