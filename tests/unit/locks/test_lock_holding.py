"""What all locks have in common, with locks that are kept in a dictionary."""

from __future__ import annotations

import logging
from collections.abc import Iterator
from contextlib import contextmanager

import pytest

from headgate.errors import HeadgateError, LeaseLost, StoreClosed, StoreError
from headgate.locks import Lease, LockService
from headgate.locks.holding import Locks, lost


class Dictionary(Locks[dict[str, int]]):
    """Leases that never end."""

    def __init__(self) -> None:
        super().__init__("a dictionary")
        self.held: dict[str, Lease] = {}
        self.version = 0
        self.away = False

    def attempt(self, name: str, holder: str, seconds: float) -> int | None:
        if name in self.held:
            return None
        self.version += 1
        self.held[name] = Lease(name, self.version, holder)
        return self.version

    def release(self, lease: Lease) -> None:
        if self.away:
            raise StoreError("a dictionary: it is away")
        if self.held.get(lease.name) == lease:
            del self.held[lease.name]

    @contextmanager
    def guarded(self, lease: Lease) -> Iterator[dict[str, int]]:
        if self.held.get(lease.name) != lease:
            raise lost(lease)
        yield {}


@pytest.fixture
def locks() -> Dictionary:
    return Dictionary()


def test_it_is_a_lock_service(locks: Dictionary) -> None:
    service: LockService[dict[str, int]] = locks
    with service as same, same.hold("client:42") as lease, same.guarded(lease) as transaction:
        assert (lease.name, lease.version, len(lease.holder), transaction) == ("client:42", 1, 32, {})
    assert locks.held == {}
    with pytest.raises(StoreClosed, match="a dictionary: these locks were closed"), locks.hold("client:42"):
        pass


def test_every_taking_has_a_name_of_its_own(locks: Dictionary) -> None:
    holders = set()
    for _ in range(100):
        with locks.hold("client:42") as lease:
            holders.add(lease.holder)
    assert len(holders) == 100


def test_a_lock_is_given_back_whatever_happens(locks: Dictionary) -> None:
    with pytest.raises(ZeroDivisionError), locks.hold("client:42"):
        raise ZeroDivisionError
    assert locks.held == {}


def test_what_was_done_is_done_even_if_the_lock_cannot_be_given_back(
    locks: Dictionary, caplog: pytest.LogCaptureFixture
) -> None:
    with locks.hold("client:42"):
        locks.away = True
    (record,) = caplog.records
    assert record.levelno == logging.WARNING
    assert record.getMessage() == (
        "a lock could not be given back, and stays until its lease ends: a dictionary: it is away"
    )
    with pytest.raises(ZeroDivisionError), locks.hold("another"):
        raise ZeroDivisionError


def test_waiting_too_long(locks: Dictionary) -> None:
    with locks.hold("client:42"), pytest.raises(TimeoutError) as raised, locks.hold("client:42", wait=0):
        pass
    assert str(raised.value) == "lock 'client:42' was not free within 0 s (a dictionary)"


@pytest.mark.parametrize(("wait", "lease"), [(-1, 1), (float("nan"), 1), (float("inf"), 1), (1, 0), (1, 3601), (1, -1)])
def test_times_that_are_none(locks: Dictionary, wait: float, lease: float) -> None:
    with pytest.raises(ValueError, match="must be seconds"), locks.hold("client:42", wait=wait, lease=lease):
        pass
    assert locks.version == 0


def test_a_lease_that_was_lost_says_what_to_do() -> None:
    error = lost(Lease("client:42", 7, "x"))
    assert isinstance(error, LeaseLost)
    assert isinstance(error, HeadgateError)
    assert str(error) == (
        "lock 'client:42': the lease of version 7 ran out and another has taken the lock since, so nothing was "
        "written; take the lock again, read again, and ask for a longer lease if this happens often"
    )
