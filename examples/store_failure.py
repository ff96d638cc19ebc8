"""What happens when a store hangs: every check is answered by its deadline, and soon the store is left alone.

    pip install '.[sqlite]'
    python examples/store_failure.py

The store is a SQLite file, which another program keeps locked for a while: to a limiter that is a server that hangs.
"""

import logging
import sqlite3
import tempfile
import time

from crestgate import Limiter, StoreError

logging.getLogger("crestgate").setLevel(logging.ERROR)  # failures are logged as warnings; here they are printed instead


def keep_locked(file: str) -> sqlite3.Connection:
    """Begins a transaction and does not end it."""
    other = sqlite3.connect(file, isolation_level=None)
    other.execute("BEGIN IMMEDIATE")
    return other


def show(limiter: Limiter) -> None:
    decisions = [limiter.check("user:42", "3/minute") for _ in range(4)]
    print([f"{decision.reason}: {'allowed' if decision else 'denied'}" for decision in decisions])


with tempfile.TemporaryDirectory() as folder:
    file = f"{folder}/counters.db"
    url = f"sqlite:///{file}?timeout_ms=200"  # the deadline of a check; 100 ms unless said
    with (
        Limiter(url) as lenient,  # on_store_error="open"
        Limiter(url, on_store_error="closed") as strict,
        Limiter(url, on_store_error="local") as careful,
        Limiter(url, on_store_error="local", fallback_instances=3) as one_of_three,
    ):
        print("before:", lenient.check("user:42", "3/minute").reason)
        other = keep_locked(file)

        show(lenient)  # the first three wait for their deadline, then the breaker is open
        started = time.monotonic()
        for _ in range(100):
            lenient.check("user:42", "3/minute")  # the store is not asked, and nobody waits
        print(f"100 checks took about {time.monotonic() - started:.1f} s")
        print("failures:", lenient.store_failures)
        try:
            lenient.reset("user:42", "3/minute")
        except StoreError:
            print("a reset is an error: nothing was forgotten")

        show(strict)
        show(careful)  # a limiter of the same limits in this process has taken over
        show(one_of_three)  # each of the three admits a third

        other.close()  # the store is back
        time.sleep(1.1)  # a second after the last failure, one check is let through as a probe
        print("after:", lenient.check("user:42", "3/minute").reason)
