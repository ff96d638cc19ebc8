# mypyc: compile
"""Topology of a Redis Cluster: 16,384 slots on several masters, and a bounded number of hash tags.

Keys of different hash tags cannot share a script call. With a tag for every subject, a batch of a hundred checks would
be a hundred calls, so subjects share tags: the CRC-32 of the subject modulo `tags`. All counters of one subject have
one tag, and so one slot; a chain over several subjects may have several (see multi_node.py).
"""

from __future__ import annotations

from binascii import crc_hqx
from collections.abc import Sequence
from typing import final
from zlib import crc32

from crestgate.errors import StoreError
from crestgate.stores.redis.protocol import (
    DISCOVERY_SHARE,
    NO_TIME,
    Call,
    CallFailure,
    Exchange,
    ServerAddress,
    Topology,
    error_in,
    pack,
    parse_address,
)

__all__ = ["DEFAULT_TAGS", "SLOTS", "ClusterTopology"]

SLOTS = 16_384
DEFAULT_TAGS = 1024
MAX_MASTERS = 1000
"""The recommended maximum size of a Redis Cluster. Each master has connections and a breaker of its own."""
MAX_SLOTS_BYTES = 4 * 1024 * 1024
MAX_SLOTS_ELEMENTS = 400_000
"""Of CLUSTER SLOTS: enough for every slot in a range of its own with a replica."""


@final
class ClusterTopology(Topology):
    """The masters by slot, from CLUSTER SLOTS."""

    def __init__(self, seeds: Sequence[ServerAddress], tags: int = DEFAULT_TAGS) -> None:
        super().__init__(seeds[0])
        self.seeds = list(seeds)
        self.tags = tags
        self.names = [b"%d" % tag for tag in range(tags)]
        self.slots = [crc_hqx(name, 0) % SLOTS for name in self.names]
        self.owners: list[ServerAddress | None] = [None] * SLOTS
        self.last_moved_targets: list[ServerAddress] = []  # the target of the last MOVED: it knows the latest changes
        self.stale = True

    def tag(self, subject: bytes) -> int:
        return crc32(subject) % self.tags

    def tag_of(self, subject: bytes) -> bytes:
        """The hash tag of a subject: a number in decimal."""
        return self.names[crc32(subject) % self.tags]

    def address_of(self, slot: int) -> ServerAddress:
        return self.owners[slot] or self.seeds[0]

    def moved(self, slot: int, address: ServerAddress) -> None:
        self.owners[slot] = address
        self.last_moved_targets = [address]
        self.stale = True  # other slots have probably moved, too

    def can_change(self) -> bool:
        return True

    def masters(self) -> list[ServerAddress]:
        return sorted({owner for owner in self.owners if owner is not None})

    def keys_of_all_masters(self, name: str) -> list[str]:
        """Keys that begin with this name, one on each master."""
        keys: dict[ServerAddress, str] = {}
        masters = len({self.address_of(slot) for slot in self.slots})
        for number in range(20 * self.tags):  # enough to hit every tag several times
            if len(keys) == masters:
                break
            key = f"{name}-{number}"
            keys.setdefault(self.address_of(self.slots[self.tag(key.encode())]), key)
        return list(keys.values())

    def discover(self) -> Exchange[None]:
        reasons = []
        known = [address for address in self.masters() if address not in self.seeds]
        last_moved_targets, self.last_moved_targets = self.last_moved_targets, []
        nodes = [*last_moved_targets, *self.seeds, *known]
        for node in nodes:
            share = DISCOVERY_SHARE if node is not nodes[-1] else 1.0
            (result,) = yield [
                Call(
                    node,
                    pack(("CLUSTER", "SLOTS")),
                    1,
                    share,
                    max_bytes=MAX_SLOTS_BYTES,
                    max_elements=MAX_SLOTS_ELEMENTS,
                )
            ]
            if isinstance(result, CallFailure) and result.reason == NO_TIME:
                break
            if isinstance(result, CallFailure):
                reasons.append(f"{node}: {result.reason}")
                if node in self.seeds:  # the next discovery begins with another one
                    self.seeds = [*(other for other in self.seeds if other != node), node]
                continue
            owners = _owners(result[0], node)
            if owners is None:
                reasons.append(f"{node}: {error_in(result[0]) or 'it serves no slots'}")
                continue
            self.owners = owners
            self.stale = False
            return
        raise StoreError(f"no node of the Redis Cluster answered: {'; '.join(reasons)}")


def _owners(ranges: object, node: ServerAddress) -> list[ServerAddress | None] | None:
    """The master of every slot in a reply to CLUSTER SLOTS; None if it is not valid."""
    if not isinstance(ranges, list) or not 0 < len(ranges) <= SLOTS:
        return None
    owners: list[ServerAddress | None] = [None] * SLOTS
    masters: set[ServerAddress] = set()
    left = SLOTS
    for slots in ranges:
        if not isinstance(slots, list) or len(slots) < 3:
            return None
        first, last, master = slots[0], slots[1], slots[2]
        if not isinstance(first, int) or not isinstance(last, int) or not 0 <= first <= last < SLOTS:
            return None
        if not isinstance(master, list) or len(master) < 2:
            return None
        address = parse_address(master[0] or node.host, master[1])
        left -= last + 1 - first  # overlapping ranges are not valid, and many of them would cost much time
        if left < 0:
            return None
        if address is None:  # a node without a known address: other nodes will redirect
            continue
        masters.add(address)
        if len(masters) > MAX_MASTERS:
            return None
        owners[first : last + 1] = [address] * (last + 1 - first)
    return owners if masters else None
