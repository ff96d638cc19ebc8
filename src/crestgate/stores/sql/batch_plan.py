# mypyc: compile
"""The rows that a batch touches: its counters and records, in the order in which every transaction locks them.

A counter's id is a digest of its prefix, name and key. So ids are short and of equal length whatever the key is, no
collation compares them, and different keys never share a row.
"""

from __future__ import annotations

from collections.abc import Sequence
from hashlib import blake2b
from typing import final

from crestgate.core.algorithms.algorithm import Algorithm
from crestgate.core.bounded_cache import BoundedCache
from crestgate.stores.port import Op, Request

__all__ = ["MAX_SHOWN_BYTES", "BatchPlan", "CounterIds", "PlannedCounter"]

MAX_SHOWN_BYTES = 255
"""Bytes of a prefix or name that the table has in readable columns; the id is computed from all of them."""


@final
class CounterIds:
    """Computes the ids of one prefix."""

    def __init__(self, prefix: str) -> None:
        self.prefix = prefix.encode("utf-8", "surrogatepass")
        self.heads: dict[str, bytes] = BoundedCache(10_000)

    def hex_id(self, name: str, key: str) -> str:
        """The id in hexadecimal. The two lengths in front keep ("a", "bc") and ("ab", "c") apart."""
        head = self.heads.get(name)
        if head is None:
            label = name.encode("utf-8", "surrogatepass")
            head = b"%d %d %b%b" % (len(self.prefix), len(label), self.prefix, label)
            self.heads[name] = head
        return blake2b(head + key.encode("utf-8", "surrogatepass"), digest_size=16).hexdigest()


@final
class PlannedCounter:
    """One counter of a batch, and what the batch needs of it."""

    def __init__(self, hex_id: str, name: str, key: str) -> None:
        self.hex_id = hex_id
        self.name = name
        self.key = key
        self.charges = False
        """Whether it may be charged: then its row must exist, or there is nothing to lock."""
        self.keeps_log = False
        self.cost = 0
        self.ticks: list[int] = []
        """Ticks of the give-backs and renewals."""

    def add(self, op: Op, algorithm: Algorithm, cost: int, tick: int, peeks: bool) -> None:
        if (op is Op.TAKE or op is Op.CHARGE) and cost and algorithm.capacity and not peeks:
            self.charges = True
        if algorithm.keeps_log:
            self.keeps_log = True
            self.cost += cost
            if op is Op.GIVE_BACK or op is Op.RENEW:
                self.ticks.append(tick)

    def columns(self, prefix: bytes) -> tuple[str, str, str, str]:
        """The columns that never change, in hexadecimal."""
        label = self.name.encode("utf-8", "surrogatepass")
        key = self.key.encode("utf-8", "surrogatepass")
        return self.hex_id, prefix[:MAX_SHOWN_BYTES].hex(), label[:MAX_SHOWN_BYTES].hex(), key.hex()


@final
class BatchPlan:
    """The counters of a batch, sorted by id, and for each request the ids of its members' counters."""

    def __init__(self, batch: Sequence[Request], counter_ids: CounterIds) -> None:
        self.batch = batch
        self.counter_ids = counter_ids
        self.is_read_only = True
        self.now = 0
        """The time of the decision, when there is one."""
        counters: dict[str, PlannedCounter] = {}
        self.records: dict[str, str] = {}
        """The ids of the idempotency records, by name."""
        self.member_ids: list[list[str]] = []
        for request in batch:
            if request.record is not None:
                self.is_read_only = False
                self.records[request.record.name] = counter_ids.hex_id("", request.record.name)
            if request.op is not Op.PEEK:
                self.is_read_only = False
            ids = []
            for member in request.members:
                algorithm = member.algorithm
                hex_id = counter_ids.hex_id(algorithm.name, member.key)
                counter = counters.get(hex_id)
                if counter is None:
                    counter = counters[hex_id] = PlannedCounter(hex_id, algorithm.name, member.key)
                counter.add(request.op, algorithm, member.cost, member.tick, member.peeks)
                ids.append(hex_id)
            self.member_ids.append(ids)
        self.counters = {hex_id: counters[hex_id] for hex_id in sorted(counters)}
        self.logs = [counter for counter in self.counters.values() if counter.keeps_log]
