"""What a batch touches: its counters and records, each once, in the order in which every transaction locks them.

A counter's id is a digest of its prefix, name and key. So ids are short and equally long whatever the key is, no
collation ever compares them, and different keys never meet in one row.
"""

from __future__ import annotations

from collections.abc import Sequence
from hashlib import blake2b
from typing import final

from headgate.core.algorithms.algorithm import Algorithm
from headgate.stores.port import Op, Request

__all__ = ["LONGEST_SHOWN", "Counter", "Identities", "Plan"]

LONGEST_SHOWN = 255
"""Bytes of a prefix or name that the table shows to people; the id is made of all of them."""


@final
class Identities:
    """Makes the ids of one prefix."""

    def __init__(self, prefix: str) -> None:
        self.prefix = prefix.encode("utf-8", "surrogatepass")
        self.heads: dict[str, bytes] = {}

    def digits(self, name: str, key: str) -> str:
        """The id as hexadecimal digits. The two lengths in front keep ("a", "bc") and ("ab", "c") apart."""
        head = self.heads.get(name)
        if head is None:
            if len(self.heads) >= 10_000:
                self.heads.clear()
            label = name.encode("utf-8", "surrogatepass")
            head = b"%d %d %b%b" % (len(self.prefix), len(label), self.prefix, label)
            self.heads[name] = head
        return blake2b(head + key.encode("utf-8", "surrogatepass"), digest_size=16).hexdigest()


@final
class Counter:
    """One counter of a batch, and what the batch will want to know of it."""

    def __init__(self, digits: str, name: str, key: str) -> None:
        self.digits = digits
        self.name = name
        self.key = key
        self.charges = False
        """Whether it may be charged: then its row must be there, or there is nothing to lock."""
        self.keeps_log = False
        self.cost = 0
        self.ticks: list[int] = []
        """Ticks at which something is given back."""

    def note(self, op: Op, algorithm: Algorithm, cost: int, tick: int) -> None:
        if (op is Op.TAKE or op is Op.CHARGE) and cost and algorithm.capacity:
            self.charges = True
        if algorithm.keeps_log:
            self.keeps_log = True
            self.cost += cost
            if op is Op.GIVE_BACK:
                self.ticks.append(tick)

    def shown(self, prefix: bytes) -> tuple[str, str, str, str]:
        """The columns that never change, as hexadecimal digits."""
        label = self.name.encode("utf-8", "surrogatepass")
        key = self.key.encode("utf-8", "surrogatepass")
        return self.digits, prefix[:LONGEST_SHOWN].hex(), label[:LONGEST_SHOWN].hex(), key.hex()


@final
class Plan:
    """The counters of a batch, sorted, and for each request where its members' counters are."""

    def __init__(self, batch: Sequence[Request], identities: Identities) -> None:
        self.batch = batch
        self.identities = identities
        self.only_looks = True
        self.now = 0
        """When it was decided, once it is."""
        counters: dict[str, Counter] = {}
        self.records: dict[str, str] = {}
        """The names of what is decided once, and the digits of their ids."""
        self.places: list[list[str]] = []
        for request in batch:
            if request.once is not None:
                self.only_looks = False
                self.records[request.once.name] = identities.digits("", request.once.name)
            if request.op is not Op.PEEK:
                self.only_looks = False
            place = []
            for member in request.members:
                algorithm = member.algorithm
                digits = identities.digits(algorithm.name, member.key)
                counter = counters.get(digits)
                if counter is None:
                    counter = counters[digits] = Counter(digits, algorithm.name, member.key)
                counter.note(request.op, algorithm, member.cost, member.tick)
                place.append(digits)
            self.places.append(place)
        self.counters = {digits: counters[digits] for digits in sorted(counters)}
        self.logs = [counter for counter in self.counters.values() if counter.keeps_log]
