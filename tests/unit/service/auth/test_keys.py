"""API keys: created, listed, revoked, found by token only, and never revealed."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from typing import Any

import pytest

from crestgate.errors import ConfigError, NotFoundError, ReadOnlyError, ValidationError
from crestgate.rules.catalog import Catalog
from crestgate.rules.port import Actor, AuditQuery, Edit
from crestgate.rules.storage.files import FileRepository
from crestgate.service.auth import keys as module
from crestgate.service.auth.keys import ApiKeys, Caller, Scope, create_key, includes, list_keys, revoke_key
from unit.rules.memory_repository import MemoryRepository

ALICE = Actor("alice", "192.0.2.1")
NOW = 1_700_000_000_000_000
FIRST = "correct-horse-battery"


@pytest.fixture
def repository() -> MemoryRepository:
    return MemoryRepository()


def in_force(repository: MemoryRepository, first: str | None = None) -> ApiKeys:
    """The keys, read from the repository each time."""

    def bodies() -> Mapping[str, Mapping[str, Any]]:
        return {record.id: record.body for record in repository.list("key")}

    return ApiKeys(bodies, first)


def test_only_the_exact_token_finds_its_key(repository: MemoryRepository) -> None:
    ci, token = create_key(repository, ALICE, "ci", "read")
    ops, other = create_key(repository, ALICE, "ops", "write")
    assert re.fullmatch("cg_[0-9a-f]{12}_[A-Za-z0-9_-]{43}", token)
    assert (ci.name, ci.scope, ci.expires_us) == ("ci", "read", None)
    assert ci.created_us == repository.clock.ticks()
    keys = in_force(repository)
    assert keys.find(token, NOW) == Caller("ci", "read", ci.key_id)
    assert keys.find(other, NOW) == Caller("ops", "write", ops.key_id)
    wrong = [
        *("", " ", "cg", "cg_", ci.key_id, ci.digest, token[:-1], token + "A", token.upper(), f" {token}", "\ud800"),
        f"cg_{ci.key_id}_{other.rpartition(ops.key_id)[2][1:]}",  # the secret of another key
        token.replace(ci.key_id, ops.key_id),
        token.replace(ci.key_id, "0" * 12),
        token[:-1] + ("A" if token[-1] != "A" else "B"),
    ]
    assert [keys.find(text, NOW) for text in wrong] == [None] * len(wrong)


def test_keys_are_listed_oldest_first_and_revoked_by_id(repository: MemoryRepository) -> None:
    made = []
    for name in ("one", "two", "three"):
        made.append(create_key(repository, ALICE, name, "check"))
        repository.clock.advance(1)
    assert list_keys(repository) == [key for key, _ in made]
    (one, token), (two, other), _ = made
    revoke_key(repository, ALICE, one.key_id)
    assert [key.name for key in list_keys(repository)] == ["two", "three"]
    keys = in_force(repository)
    assert keys.find(token, NOW) is None
    assert keys.find(other, NOW) == Caller("two", "check", two.key_id)
    with pytest.raises(NotFoundError, match=f"there is no key '{one.key_id}'"):
        revoke_key(repository, ALICE, one.key_id)


def test_expired_key_is_unknown(repository: MemoryRepository) -> None:
    _, token = create_key(repository, ALICE, "ci", "check", NOW + 10)
    keys = in_force(repository)
    assert keys.find(token, NOW + 9) is not None
    assert keys.find(token, NOW + 10) is None
    (record,) = repository.list("key")
    assert record.expires_us == NOW + 10, "so the repository removes it, a day later"


def test_admin_key_is_the_operators_text(repository: MemoryRepository) -> None:
    keys = in_force(repository, f"{FIRST}\n")
    assert keys.find(FIRST, NOW) == Caller("admin", "write", "admin")
    assert keys.find(FIRST[:-1], NOW) is None
    assert in_force(repository).find(FIRST, NOW) is None
    _, token = create_key(repository, ALICE, "ci", "check")
    assert keys.find(token, NOW) is not None, "it is one of several"


def test_admin_key_may_look_like_a_token(repository: MemoryRepository) -> None:
    text = "cg_0123456789ab_" + "x" * 43
    assert in_force(repository, text).find(text, NOW) == Caller("admin", "write", "admin")


def test_admins_counts_valid_write_keys(repository: MemoryRepository) -> None:
    assert in_force(repository).admins(NOW) == 0
    assert in_force(repository, FIRST).admins(NOW) == 1
    create_key(repository, ALICE, "ci", "check")
    create_key(repository, ALICE, "board", "read")
    assert in_force(repository).admins(NOW) == 0, "none of these can write rules"
    create_key(repository, ALICE, "ops", "write")
    create_key(repository, ALICE, "visitor", "write", NOW + 10)
    assert [in_force(repository, FIRST).admins(NOW + later) for later in (0, 9, 10)] == [3, 3, 2]


@pytest.mark.parametrize(
    ("first", "text"),
    [
        ("", "has 0 characters: write at least 16"),
        ("fifteen-letters", "has 15 characters: write at least 16"),
        ("   fifteen-letters   ", "has 15 characters"),
        ("sixteen letters of words", "no blanks"),
        ("sixteen-létters-of-words", "of ASCII"),
        ("sixteen-letters\x07-of-words", "of ASCII"),
    ],
)
def test_invalid_admin_key_is_not_shown(first: str, text: str) -> None:
    with pytest.raises(ConfigError) as caught:
        ApiKeys(dict, first)
    assert text in str(caught.value)
    assert not first.strip() or first.strip() not in str(caught.value)


@pytest.mark.parametrize("name", ["", "  ", "a\nb", "\x1b[31m", "n" * 101, 5])
def test_key_names_must_be_printable(repository: MemoryRepository, name: Any) -> None:
    with pytest.raises(ConfigError, match="a key's name must be 1 to 100 printable characters, not "):
        create_key(repository, ALICE, name, "check")
    assert list_keys(repository) == []


def test_unknown_scope_is_refused(repository: MemoryRepository) -> None:
    wrong: Any = "admin"
    with pytest.raises(ConfigError, match="a key's scope must be one of check, read, write, not 'admin'"):
        create_key(repository, ALICE, "ci", wrong)


def test_each_scope_includes_those_before_it() -> None:
    scopes: tuple[Scope, ...] = ("check", "read", "write")
    assert [[includes(given, needed) for needed in scopes] for given in scopes] == [
        [True, False, False],
        [True, True, False],
        [True, True, True],
    ]


BROKEN: list[Mapping[str, Any]] = [
    {},
    {"name": "ci", "scope": "write"},
    {"name": "ci", "scope": "write", "digest": None},
    {"name": "ci", "scope": "write", "digest": ""},
    {"name": "ci", "scope": "write", "digest": "0" * 63},
    {"name": "ci", "scope": "all", "digest": "0" * 64},
    {"name": 5, "scope": "write", "digest": "0" * 64},
    {"name": "ci", "scope": "write", "digest": "0" * 64, "expires_us": "never"},
    {"name": "ci", "scope": "write", "digest": "0" * 64, "expires_us": True},
]


@pytest.mark.parametrize("body", BROKEN)
def test_malformed_record_authenticates_nobody_and_names_the_remedy(
    repository: MemoryRepository, body: Mapping[str, Any]
) -> None:
    repository.write([Edit("key", "0123456789ab", body)], ALICE)
    assert in_force(repository).find("cg_0123456789ab_" + "x" * 43, NOW) is None
    with pytest.raises(ValidationError, match="`crestgate keys revoke 0123456789ab` removes it"):
        list_keys(repository)


def test_token_comparison_takes_constant_time(repository: MemoryRepository, monkeypatch: pytest.MonkeyPatch) -> None:
    key, token = create_key(repository, ALICE, "ci", "check")
    _, expired = create_key(repository, ALICE, "old", "check", 1)
    for first in (None, FIRST):
        keys = in_force(repository, first)
        compared: list[tuple[int, int]] = []

        def compare(a: str, b: str, lengths: list[tuple[int, int]] = compared) -> bool:
            lengths.append((len(a), len(b)))
            return a == b

        monkeypatch.setattr(module, "compare_digest", compare)
        for text in (token, expired, token[:-1] + "!", f"cg_{key.key_id}_{'x' * 43}", f"cg_{'0' * 12}_{'x' * 43}", "x"):
            compared.clear()
            keys.find(text, NOW)
            assert compared == [(64, 64), (64, 64)], text


def test_token_is_stored_nowhere(repository: MemoryRepository) -> None:
    key, token = create_key(repository, ALICE, "ci", "check")
    secret = token.rpartition(key.key_id)[2][1:]
    (record,) = repository.list("key")
    (entry,) = repository.audit(AuditQuery())
    assert (entry.actor, entry.action, entry.subject) == ("alice", "create", f"key:{key.key_id}")
    assert entry.after == {"name": "ci", "scope": "check", "expires_us": None}
    keys = in_force(repository, FIRST)
    outputs = [repr(key), repr(keys), repr(keys.find(token, NOW)), json.dumps(dict(record.body)), repr(record)]
    assert not [text for text in outputs if secret in text or FIRST in text]
    assert not [text for text in (repr(key), repr(keys), repr(entry)) if key.digest in text]


def test_catalog_provides_keys(repository: MemoryRepository) -> None:
    _, token = create_key(repository, ALICE, "ci", "check")
    catalog = Catalog([repository], refresh_seconds=3600)
    try:
        keys = ApiKeys(lambda: catalog.keys)
        assert keys.find(token, NOW) is not None
        revoke_key(repository, ALICE, list_keys(repository)[0].key_id)
        catalog.refresh()
        assert keys.find(token, NOW) is None
    finally:
        catalog.close()


def test_log_files_contain_no_keys() -> None:
    files = FileRepository([])
    assert list_keys(files) == []
    with pytest.raises(ReadOnlyError):
        create_key(files, ALICE, "ci", "check")
