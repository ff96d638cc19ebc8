"""A child program that sends the same idempotent requests as others at the same time."""

from __future__ import annotations

import random
import threading

from crestgate.core.algorithms import build
from crestgate.core.limit import Limit
from crestgate.runtime.url_options import Options
from crestgate.stores.port import IdempotencyRecord, Member, Op, Request
from crestgate.stores.sql import SqlStore
from crestgate.stores.sql.factory import open_driver
from integration.child_main import receive, send

__all__ = ["KEYS", "LIMIT", "take_once"]

BODY = b"a digest of 16 b"
LIMIT = build(Limit(1_000_000, 86_400 * 365, algorithm="fixed_window"), "many")
KEYS = 12


def take_once(url: str, prefix: str, names: int, threads: int, seed: int) -> None:
    """Each thread sends every idempotency name once, in its own order, in batches with other requests: for each name
    two requests on keys in a random order. Sends how many were decided, and all remaining counts."""
    store = SqlStore(open_driver(Options(url)), prefix=prefix, timeout_ms=60_000)
    store.connect()
    decided = [0] * threads
    other_takes = [0] * threads
    remaining_by_name: list[dict[str, list[int]]] = [{} for _ in range(threads)]

    def work(number: int) -> None:
        chance = random.Random(f"{seed} {number}")
        order = [f"name {i}" for i in range(names)]
        chance.shuffle(order)
        while order:
            batch: list[Request] = []
            records: list[IdempotencyRecord] = []
            for _ in range(min(chance.randint(1, 4), len(order))):
                record = IdempotencyRecord(order.pop(), BODY, b"")
                records.append(record)
                # The requests of one name are the same for all threads; the order of the keys is not.
                first = int(record.name.split()[1]) % KEYS
                pair = [Member(f"key {first}", LIMIT, 1), Member(f"key {(first + 5) % KEYS}", LIMIT, 1)]
                batch += [Request(Op.TAKE, pair, record), Request(Op.TAKE, pair[::-1], record)]
                batch.append(Request(Op.TAKE, [Member(f"key {chance.randrange(KEYS)}", LIMIT, 1)]))
                other_takes[number] += 1
            replies = store.apply(batch)
            for record, group in zip(records, [replies[i : i + 2] for i in range(0, len(replies), 3)], strict=True):
                if record.replay is None:
                    decided[number] += 1
                    remaining_by_name[number][record.name] = [o.decision.remaining for reply in group for o in reply]
                else:
                    assert group == [[], []]
                    remaining_by_name[number][record.name] = [numbers[1] for numbers in record.replay.numbers]

    workers = [threading.Thread(target=work, args=(number,)) for number in range(threads)]
    send("ready")
    receive()
    for worker in workers:
        worker.start()
    for worker in workers:
        worker.join()
    store.close()
    send({"decided": sum(decided), "other_takes": sum(other_takes), "remaining": remaining_by_name})
