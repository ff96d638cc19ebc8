"""A child program that reserves and settles from several threads, and dies at chosen points, too.

It records each step before it is done and after it, so a killed process leaves its last steps without a result.
"""

from __future__ import annotations

import os
import random
import signal
import threading
import time
from struct import Struct
from typing import Literal

from crestgate import Limiter, RateLimitExceeded
from crestgate.errors import StoreError
from crestgate.reservations.port import ReservationBook, ReservationRow
from integration.child_main import send
from integration.kill_runs import BinaryJournal

__all__ = [
    "CHARGED",
    "DENIED",
    "PLANS",
    "RECORD",
    "RECORDED",
    "RESERVED",
    "RESERVING",
    "SETTLED",
    "SETTLING",
    "TIGHT_LIMIT",
    "TTL",
    "key_name",
    "reserve_and_settle",
]

RECORD = Struct("<BBHIIIq22s")
"""The step; a flag; the key; the amounts of both plans; the number of the reservation; when; its id."""
RESERVING, RESERVED, DENIED, SETTLING, SETTLED, CHARGED, RECORDED = range(7)
"""CHARGED: the process dies now, after the charge and before the reservation is recorded. RECORDED: just after that.
The flag is `release` of RESERVING, and `late` of SETTLED."""
TTL = 2
TIGHT_LIMIT = 60
PLANS = {"tight": f"{TIGHT_LIMIT}/year using fixed_window", "wide": "1000000000/year using fixed_window"}
"""Windows that do not end while a test runs: what is used in the end is exact arithmetic."""
THREADS = 4
KEYS = 3
"""At a time; every three seconds there are others, because the tight limit is used up by then."""
EXPIRIES: tuple[Literal["keep", "release"], ...] = ("keep", "release")


def key_name(key: int) -> str:
    return f"key:{key}"


class FatalBook(ReservationBook):
    """A book whose process is killed, now and then, just before or just after a change of a row."""

    def __init__(self, book: ReservationBook, journal: BinaryJournal, seed: int) -> None:
        self._book = book
        self._journal = journal
        self._rolls = random.Random(f"{seed} book")
        self.waits = book.waits
        self.current = threading.local()
        """`number`: the reservation that this thread makes."""

    def add(self, row: ReservationRow, max_open: int) -> bool:
        self._maybe_die(0.003, CHARGED)
        added = self._book.add(row, max_open)
        self._maybe_die(0.003, RECORDED)
        return added

    def replace(self, row: ReservationRow) -> bool:
        self._maybe_die(0.002)
        replaced = self._book.replace(row)
        self._maybe_die(0.002)
        return replaced

    def find(self, reservation_id: str) -> ReservationRow | None:
        return self._book.find(reservation_id)

    def delete(self, row: ReservationRow) -> bool:
        return self._book.delete(row)

    def due(self, now_us: int, count: int) -> list[ReservationRow]:
        return self._book.due(now_us, count)

    def close(self) -> None:
        self._book.close()

    def _maybe_die(self, chance: float, step: int | None = None) -> None:
        if self._rolls.random() < chance:
            if step is not None:
                self._journal.write(step, 0, 0, 0, 0, self.current.number, time.monotonic_ns(), b"")
            os.kill(os.getpid(), signal.SIGKILL)


def reserve_and_settle(url: str, path: str, seed: int) -> None:
    """Reserve, and settle, release, extend or abandon, until killed."""
    journal = BinaryJournal(path, RECORD)
    limiter = Limiter(url, plans=PLANS, on_store_error="closed")
    stored = limiter.reservations.open()
    book = stored.book = FatalBook(stored.book, journal, seed)
    threads = [threading.Thread(target=_work, args=(limiter, book, journal, seed, n)) for n in range(THREADS)]
    for thread in threads:
        thread.start()
    send("ready")
    for thread in threads:
        thread.join()


def _work(limiter: Limiter, book: FatalBook, journal: BinaryJournal, seed: int, thread: int) -> None:
    rolls = random.Random(f"{seed} {thread}")
    number = thread
    while True:
        number += THREADS
        book.current.number = number
        try:
            _one(limiter, journal, rolls, number)
        except RateLimitExceeded as error:
            if error.decision.reason == "limited":  # otherwise the store failed, and may have charged it
                journal.write(DENIED, 0, 0, 0, 0, number, time.monotonic_ns(), b"")
            time.sleep(0.02)
        except StoreError:
            pass  # its last step stays without a result


def _one(limiter: Limiter, journal: BinaryJournal, rolls: random.Random, number: int) -> None:
    key = KEYS * (int(time.monotonic() / 3) % 8000) + rolls.randrange(KEYS)
    tight, wide, release = rolls.randint(1, 20), rolls.randint(1, 1000), rolls.randrange(2)
    journal.write(RESERVING, release, key, tight, wide, number, time.monotonic_ns(), b"")
    costs = {"tight": tight, "wide": wide}
    reservation = limiter.reserve(key_name(key), costs, ttl=TTL, on_expiry=EXPIRIES[release])
    assert reservation.id is not None
    journal.write(RESERVED, 0, 0, 0, 0, number, time.monotonic_ns(), reservation.id.encode())
    time.sleep(0.05 * rolls.random())
    chosen = rolls.random()
    if chosen < 0.2:
        return  # abandoned
    if chosen < 0.3:
        reservation.extend(TTL)
    used_tight, used_wide = (0, 0) if chosen < 0.4 else (rolls.randint(0, tight), rolls.randint(0, 2 * wide))
    journal.write(SETTLING, 0, 0, used_tight, used_wide, number, time.monotonic_ns(), b"")
    if chosen < 0.4:
        settlement = reservation.release()
    else:
        settlement = reservation.settle({"tight": used_tight, "wide": used_wide})
    assert settlement.settled
    journal.write(SETTLED, settlement.late, 0, 0, 0, number, time.monotonic_ns(), b"")
