"""Several stores as one, sharded by consistent hashing of the subject.

Every store has many points on a hash ring, and a subject belongs to the next point after its own hash. Removing one of
N stores moves only its own subjects, about 1/N of all. All counters of a subject are in one store, so its chains are
atomic; for chains over several subjects see multi_node.py. An idempotency record is in the store of its name, as if
that were a subject.

A store's points depend on its address, without user, password and options: those may change. The order of the list
does not matter.
"""

from __future__ import annotations

from bisect import bisect
from collections.abc import Generator, Mapping, Sequence
from hashlib import blake2b
from typing import final

from crestgate.errors import ConfigError
from crestgate.stores.multi_node import Round, RoundResults, decide_by_node
from crestgate.stores.port import BatchOutcomes, LocalStore, Member, Request
from crestgate.stores.remote_store import PROBE, RemoteStore, store_title
from crestgate.stores.store_group import StoreGroup

__all__ = ["ShardedStore"]

POINTS = 512
"""Points on the ring per store: enough that shares differ by a few percent only."""


@final
class ShardedStore(StoreGroup):
    """Several stores by address; at least one."""

    def __init__(self, stores: Mapping[str, LocalStore | RemoteStore]) -> None:
        if not stores:
            raise ConfigError("a sharded store needs at least one store")
        super().__init__([stores[address] for address in sorted(stores)], f"{len(stores)} stores")
        ring = sorted(
            (_hash(f"{address}\0{point}".encode()), node)
            for node, address in enumerate(sorted(stores))
            for point in range(POINTS)
        )
        self._hashes = [point for point, _ in ring]
        self._nodes = [node for _, node in ring]

    def node_of(self, subject: str) -> int:
        """The index in `stores` of a subject's store."""
        at = bisect(self._hashes, _hash(subject.encode("utf-8", "surrogatepass")))
        return self._nodes[at % len(self._nodes)]

    def title_of(self, member: Member) -> str:
        return store_title(self.stores[self.node_of_member(member)], member)

    def probe_keys(self) -> list[str]:
        """One for each store; of a cluster in the list, only one node is probed."""
        keys_by_node: dict[int, str] = {}
        number = 0
        while len(keys_by_node) < len(self.stores):  # every store has a share of the keys
            key = f"{PROBE}-{number}"
            keys_by_node.setdefault(self.node_of(key), key)
            number += 1
        return list(keys_by_node.values())

    def rounds(self, batch: Sequence[Request]) -> Generator[Round, RoundResults, BatchOutcomes]:
        return decide_by_node(batch, self.node_of_member, self.node_of, self.clock)

    def node_of_member(self, member: Member) -> int:
        return self.node_of(member.key)


def _hash(text: bytes) -> int:
    return int.from_bytes(blake2b(text, digest_size=8).digest())
