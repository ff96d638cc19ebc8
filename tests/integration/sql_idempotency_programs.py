"""A program that asks for the same things as others do at the same time, under the same names."""

from __future__ import annotations

import random
import threading

from crestgate.core.algorithms import build
from crestgate.core.limit import Limit
from crestgate.runtime.url_options import Options
from crestgate.stores.port import IdempotencyRecord, Member, Op, Request
from crestgate.stores.sql import SqlStore
from crestgate.stores.sql.factory import open_driver
from integration.child_main import hear, say

__all__ = ["KEYS", "MANY", "ask_once"]

BODY = b"a digest of 16 b"
MANY = build(Limit(1_000_000, 86_400 * 365, algorithm="fixed_window"), "many")
KEYS = 12


def ask_once(url: str, prefix: str, names: int, threads: int, seed: int) -> None:
    """Each thread asks for every name once, in an order of its own, in batches with other requests beside: for each
    name two requests on keys in a random order. Says how many were decided, and all remainders that were answered."""
    store = SqlStore(open_driver(Options(url)), prefix=prefix, timeout_ms=60_000)
    store.connect()
    decided = [0] * threads
    besides = [0] * threads
    answers: list[dict[str, list[int]]] = [{} for _ in range(threads)]

    def work(number: int) -> None:
        luck = random.Random(f"{seed} {number}")
        order = [f"name {i}" for i in range(names)]
        luck.shuffle(order)
        while order:
            batch: list[Request] = []
            records: list[IdempotencyRecord] = []
            for _ in range(min(luck.randint(1, 4), len(order))):
                record = IdempotencyRecord(order.pop(), BODY, b"")
                records.append(record)
                # What is asked under one name is the same for all; the order of the keys is not.
                first = int(record.name.split()[1]) % KEYS
                pair = [Member(f"key {first}", MANY, 1), Member(f"key {(first + 5) % KEYS}", MANY, 1)]
                batch += [Request(Op.TAKE, pair, record), Request(Op.TAKE, pair[::-1], record)]
                batch.append(Request(Op.TAKE, [Member(f"key {luck.randrange(KEYS)}", MANY, 1)]))
                besides[number] += 1
            replies = store.apply(batch)
            for record, group in zip(records, [replies[i : i + 2] for i in range(0, len(replies), 3)], strict=True):
                if record.replay is None:
                    decided[number] += 1
                    answers[number][record.name] = [o.decision.remaining for reply in group for o in reply]
                else:
                    assert group == [[], []]
                    answers[number][record.name] = [numbers[1] for numbers in record.replay.numbers]

    workers = [threading.Thread(target=work, args=(number,)) for number in range(threads)]
    say("ready")
    hear()
    for worker in workers:
        worker.start()
    for worker in workers:
        worker.join()
    store.close()
    say({"decided": sum(decided), "besides": sum(besides), "answers": answers})
