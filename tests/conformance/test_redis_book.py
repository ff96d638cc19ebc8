"""The book of reservations in Redis, when the server has deleted rows."""

from __future__ import annotations

from uuid import uuid4

import pytest

from crestgate.databases.redis_client import open_client
from crestgate.reservations.factory import open_book
from crestgate.reservations.port import ReservationRow
from crestgate.runtime.url_options import Options

MAX_OPEN = 5


def row(reservation_id: str, version: int = 1, is_open: bool = True) -> ReservationRow:
    return ReservationRow(reservation_id, "owner", version, 10, is_open, "[]")


@pytest.mark.parametrize("kind", ["redis_server", "redis_cluster"])
def test_rows_that_the_server_has_deleted_are_not_open(kind: str, request: pytest.FixtureRequest) -> None:
    prefix = uuid4().hex[:8]
    url: str = request.getfixturevalue(kind).url
    url += f"{'&' if '?' in url else '?'}prefix={prefix}&timeout_ms=5000"
    book, (client, _) = open_book(url), open_client(Options(url), 5.0)
    for number in range(MAX_OPEN):
        assert book.add(row(f"r{number}"), MAX_OPEN)
    assert not book.add(row("more"), MAX_OPEN)
    for number in (1, 3):
        client.delete(f"{{{prefix}}}:reservation:r{number}")
    assert book.add(row("more"), MAX_OPEN)
    assert book.replace(row("r0", 2, is_open=False))
    assert book.add(row("fourth"), MAX_OPEN)
    assert book.add(row("fifth"), MAX_OPEN)
    assert not book.add(row("sixth"), MAX_OPEN)
    book.close()
    client.close()
