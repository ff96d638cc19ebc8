"""The base class of locks, with locks in a dictionary."""

from __future__ import annotations

import logging
from collections.abc import Iterator
from contextlib import contextmanager

import pytest

from crestgate.errors import CrestgateError, LeaseLostError, StoreClosedError, StoreError
from crestgate.locks import Lease, LockService
from crestgate.locks.lock import Locks, lease_lost


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
            raise lease_lost(lease)
        yield {}


@pytest.fixture
def locks() -> Dictionary:
    return Dictionary()


def test_implements_the_port(locks: Dictionary) -> None:
    service: LockService[dict[str, int]] = locks
    with service as same, same.hold("client:42") as lease, same.guarded(lease) as transaction:
        assert (lease.name, lease.version, len(lease.holder), transaction) == ("client:42", 1, 32, {})
    assert locks.held == {}
    with pytest.raises(StoreClosedError, match="a dictionary: these locks were closed"), locks.hold("client:42"):
        pass


def test_every_lease_has_a_random_holder(locks: Dictionary) -> None:
    holders = set()
    for _ in range(100):
        with locks.hold("client:42") as lease:
            holders.add(lease.holder)
    assert len(holders) == 100


def test_lock_is_released_after_an_exception(locks: Dictionary) -> None:
    with pytest.raises(ZeroDivisionError), locks.hold("client:42"):
        raise ZeroDivisionError
    assert locks.held == {}


def test_failed_release_is_logged_and_not_raised(locks: Dictionary, caplog: pytest.LogCaptureFixture) -> None:
    with locks.hold("client:42"):
        locks.away = True
    (record,) = caplog.records
    assert record.levelno == logging.WARNING
    assert record.getMessage() == ("lock release failed, the lock stays until its lease ends: a dictionary: it is away")
    with pytest.raises(ZeroDivisionError), locks.hold("another"):
        raise ZeroDivisionError


def test_wait_timeout(locks: Dictionary) -> None:
    with locks.hold("client:42"), pytest.raises(TimeoutError) as raised, locks.hold("client:42", wait=0):
        pass
    assert str(raised.value) == "lock 'client:42' was not free within 0 s (a dictionary)"


@pytest.mark.parametrize(("wait", "lease"), [(-1, 1), (float("nan"), 1), (float("inf"), 1), (1, 0), (1, 3601), (1, -1)])
def test_invalid_times(locks: Dictionary, wait: float, lease: float) -> None:
    with pytest.raises(ValueError, match="must be seconds"), locks.hold("client:42", wait=wait, lease=lease):
        pass
    assert locks.version == 0


def test_lease_lost_message_names_the_remedy() -> None:
    error = lease_lost(Lease("client:42", 7, "x"))
    assert isinstance(error, LeaseLostError)
    assert isinstance(error, CrestgateError)
    assert str(error) == (
        "lock 'client:42': the lease of version 7 expired and another holder took the lock, so nothing was "
        "written; take the lock again, read again, and use a longer lease if this happens often"
    )
