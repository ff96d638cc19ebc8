"""A Redis Cluster: 16,384 slots on several masters, and a bounded number of hash tags so that batches exist.

Keys of different hash tags cannot share a call. A tag for every subject would make a batch of a hundred checks a
hundred calls, so subjects share tags: the CRC-32 of the subject modulo `tags`. All counters of one subject have one
tag, and so one slot; a chain over several subjects may have several (see spread.py).
"""

from __future__ import annotations

from binascii import crc_hqx
from collections.abc import Sequence
from typing import final
from zlib import crc32

from headgate.errors import StoreError
from headgate.stores.redis.talk import NO_TIME, PART, Address, Call, Lost, Talk, Topology, address_in, error_in, pack

__all__ = ["DEFAULT_TAGS", "SLOTS", "ClusterTopology"]

SLOTS = 16_384
DEFAULT_TAGS = 1024
MAX_MASTERS = 1000
"""As many nodes as a Redis Cluster is made for. Each has connections and a breaker of its own here."""
MAX_SLOTS_BYTES = 4 * 1024 * 1024
MAX_SLOTS_ELEMENTS = 400_000
"""Of CLUSTER SLOTS: enough for every slot in a range of its own with a replica."""


@final
class ClusterTopology(Topology):
    """The masters of a cluster by slot, as its nodes tell."""

    def __init__(self, seeds: Sequence[Address], tags: int = DEFAULT_TAGS) -> None:
        super().__init__(seeds[0])
        self.seeds = list(seeds)
        self.tags = tags
        self.names = [b"%d" % tag for tag in range(tags)]
        self.slots = [crc_hqx(name, 0) % SLOTS for name in self.names]
        self.owners: list[Address | None] = [None] * SLOTS
        self.informed: list[Address] = []  # who was last said to have a slot: it knows of the latest moves
        self.doubtful = True

    def tag(self, subject: bytes) -> int:
        return crc32(subject) % self.tags

    def tag_of(self, subject: bytes) -> bytes:
        """The hash tag of a subject: a number in decimal."""
        return self.names[crc32(subject) % self.tags]

    def address_of(self, slot: int) -> Address:
        return self.owners[slot] or self.seeds[0]

    def moved(self, slot: int, address: Address) -> None:
        self.owners[slot] = address
        self.informed = [address]
        self.doubtful = True  # one slot that moved is seldom alone

    def can_move(self) -> bool:
        return True

    def masters(self) -> list[Address]:
        return sorted({owner for owner in self.owners if owner is not None})

    def keys_of_all_masters(self, name: str) -> list[str]:
        """Keys that begin with this name, one on each master that any tag leads to."""
        found: dict[Address, str] = {}
        masters = len({self.address_of(slot) for slot in self.slots})
        for number in range(20 * self.tags):  # in which every tag is met several times
            if len(found) == masters:
                break
            key = f"{name}-{number}"
            found.setdefault(self.address_of(self.slots[self.tag(key.encode())]), key)
        return list(found.values())

    def find(self) -> Talk[None]:
        problems = []
        known = [address for address in self.masters() if address not in self.seeds]
        informed, self.informed = self.informed, []
        nodes = [*informed, *self.seeds, *known]
        for node in nodes:
            share = PART if node is not nodes[-1] else 1.0
            (answer,) = yield [
                Call(
                    node,
                    pack(("CLUSTER", "SLOTS")),
                    1,
                    share,
                    max_bytes=MAX_SLOTS_BYTES,
                    max_elements=MAX_SLOTS_ELEMENTS,
                )
            ]
            if isinstance(answer, Lost) and answer.problem == NO_TIME:
                break
            if isinstance(answer, Lost):
                problems.append(f"{node}: {answer.problem}")
                if node in self.seeds:  # the next search begins with another one
                    self.seeds = [*(other for other in self.seeds if other != node), node]
                continue
            owners = _owners(answer[0], node)
            if owners is None:
                problems.append(f"{node}: {error_in(answer[0]) or 'it serves no slots'}")
                continue
            self.owners = owners
            self.doubtful = False
            return
        raise StoreError(f"no node of the Redis Cluster answered: {'; '.join(problems)}")


def _owners(ranges: object, node: Address) -> list[Address | None] | None:
    """The master of every slot, as CLUSTER SLOTS tells; None when it tells nothing of the kind."""
    if not isinstance(ranges, list) or not 0 < len(ranges) <= SLOTS:
        return None
    owners: list[Address | None] = [None] * SLOTS
    masters: set[Address] = set()
    left = SLOTS
    for found in ranges:
        if not isinstance(found, list) or len(found) < 3:
            return None
        first, last, master = found[0], found[1], found[2]
        if not isinstance(first, int) or not isinstance(last, int) or not 0 <= first <= last < SLOTS:
            return None
        if not isinstance(master, list) or len(master) < 2:
            return None
        address = address_in(master[0] or node.host, master[1])
        left -= last + 1 - first  # slots that are named twice are no table, and many such ranges are much work
        if left < 0:
            return None
        if address is None:  # a node without a known name: others will say where its slots are
            continue
        masters.add(address)
        if len(masters) > MAX_MASTERS:
            return None
        owners[first : last + 1] = [address] * (last + 1 - first)
    return owners if masters else None
