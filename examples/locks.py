"""Two writers of one client's limit: a lock serializes them, and its version stops a late writer from overwriting."""

import tempfile
import time

from sqlalchemy import Connection, text

from crestgate.locks import LeaseLostError, LockService, open_locks


def limit_of(connection: Connection) -> int:
    return int(connection.execute(text("SELECT most FROM limits WHERE client = '42'")).scalar_one())


def raise_limit(locks: LockService[Connection], by: int) -> None:
    with locks.hold("client:42", wait=5.0, lease=10.0) as lease:
        with locks.guarded(lease) as connection:
            most = limit_of(connection)
        # What takes its time belongs here: nothing in the database is locked now.
        with locks.guarded(lease) as connection:
            connection.execute(text("UPDATE limits SET most = :most WHERE client = '42'"), {"most": most + by})


with tempfile.TemporaryDirectory() as folder, open_locks(f"sqlite:///{folder}/rules.db") as locks:
    with locks.hold("client:42") as lease, locks.guarded(lease) as connection:
        connection.execute(text("CREATE TABLE limits (client TEXT PRIMARY KEY, most INTEGER)"))
        connection.execute(text("INSERT INTO limits VALUES ('42', 100)"))

    raise_limit(locks, by=10)
    with locks.hold("client:42") as lease, locks.guarded(lease) as connection:
        print("raised to", limit_of(connection))

    # A holder that takes too long, as one that was stopped does: its lease ends, and another takes the lock.
    with locks.hold("client:42", lease=0.05) as late:
        time.sleep(0.1)
        raise_limit(locks, by=5)
        try:
            with locks.guarded(late) as connection:
                connection.execute(text("UPDATE limits SET most = 1"))
        except LeaseLostError:
            print("too late: nothing was written")
    with locks.hold("client:42") as lease, locks.guarded(lease) as connection:
        print("it is", limit_of(connection))

    try:
        with locks.hold("client:42"), locks.hold("client:42", wait=0.1):
            pass
    except TimeoutError as error:
        print(str(error).partition(" (")[0])
