"""The signing key of settlement tokens: shared by all users of a rule database, and never revealed."""

from __future__ import annotations

from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from pathlib import Path

import pytest

from crestgate.errors import ValidationError
from crestgate.rules.port import Actor, AuditQuery, Edit, Repository
from crestgate.rules.storage.factory import open_repository
from crestgate.service.auth.keys import ApiKeys, create_key, list_keys, revoke_key
from crestgate.service.auth.token_keys import SIGNING_KEY, signing_key

OPS = Actor("ops")


@pytest.fixture
def url(tmp_path: Path) -> str:
    return f"sqlite:///{tmp_path / 'rules.db'}?timeout_ms=30000"


@pytest.fixture
def repository(url: str) -> Iterator[Repository]:
    with closing(open_repository(url)) as opened:
        yield opened


def test_concurrent_starts_share_one_signing_key(repository: Repository, url: str) -> None:
    def find(_: int) -> bytes:
        with closing(open_repository(url)) as other:
            return signing_key(other)

    with ThreadPoolExecutor(6) as pool:
        keys = set(pool.map(find, range(6)))
    assert keys == {signing_key(repository)}
    assert len(keys.pop()) == 32


def test_signing_key_authenticates_nobody_and_is_not_listed(repository: Repository) -> None:
    secret = signing_key(repository).hex()
    made, token = create_key(repository, OPS, "ci", "check")
    assert list_keys(repository) == [made]
    record = repository.get("key", SIGNING_KEY)
    assert record is not None
    keys = ApiKeys(lambda: {SIGNING_KEY: record.body})
    assert keys.find(secret, 0) is None
    assert keys.find(token, 0) is None
    assert keys.admins(0) == 0
    assert all(secret not in repr(entry) for entry in repository.audit(AuditQuery()))


def test_revoked_key_is_replaced(repository: Repository) -> None:
    first = signing_key(repository)
    revoke_key(repository, OPS, SIGNING_KEY)
    assert signing_key(repository) not in (first, b"")


@pytest.mark.parametrize("body", [{}, {"secret": "00"}, {"secret": "x" * 64}, {"secret": 7}])
def test_malformed_signing_key_names_the_remedy(repository: Repository, body: dict[str, object]) -> None:
    repository.write([Edit("key", SIGNING_KEY, body)], OPS)
    with pytest.raises(ValidationError, match="crestgate keys revoke settlement"):
        signing_key(repository)
