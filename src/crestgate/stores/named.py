"""Several stores by name: limits that name one are counted there, all others in the default store.

For hot spots: one busy rule gets a store of its own. A chain over several stores is taken store by store, and given
back when a later one denies: see multi_node.py. Idempotency records are in the default store.
"""

from __future__ import annotations

from collections.abc import Generator, Mapping, Sequence
from typing import final

from crestgate.core.algorithms.algorithm import Algorithm
from crestgate.errors import ConfigError
from crestgate.stores.multi_node import Round, RoundResults, decide_by_node
from crestgate.stores.port import BatchOutcomes, LocalStore, Member, Request
from crestgate.stores.remote_store import COUNTERS, RemoteStore, store_title
from crestgate.stores.store_group import StoreGroup

__all__ = ["NamedStoreGroup"]

DEFAULT = 0


@final
class NamedStoreGroup(StoreGroup):
    """A default store, and others by name."""

    def __init__(self, default: LocalStore | RemoteStore, named: Mapping[str, LocalStore | RemoteStore]) -> None:
        super().__init__([default, *named.values()], f"{len(named) + 1} stores")
        self._nodes: dict[str | None, int] = {None: DEFAULT, **{name: i for i, name in enumerate(named, 1)}}

    def store_names(self) -> list[str]:
        return [name for name in self._nodes if name is not None]

    def title_of(self, member: Member) -> str:
        title = store_title(self.stores[self._node_of_member(member)], member)
        name = member.algorithm.store
        return title if name is None else f"{name}: {title}"

    def parts(self) -> dict[str, LocalStore | RemoteStore]:
        default = self.stores[DEFAULT]
        parts = dict(default.parts()) if isinstance(default, RemoteStore) else {}
        parts = parts or {COUNTERS: default}
        return parts | {f"stores.{name}": self.stores[self._nodes[name]] for name in self.store_names()}

    def supports(self, algorithm: Algorithm) -> bool:
        store = self.stores[self._node(algorithm)]
        return not isinstance(store, RemoteStore) or store.supports(algorithm)

    def rounds(self, batch: Sequence[Request]) -> Generator[Round, RoundResults, BatchOutcomes]:
        return decide_by_node(batch, self._node_of_member, lambda _: DEFAULT, self.clock)

    def counts(self) -> dict[str, int]:
        return self.stores[DEFAULT].counts()

    def _node_of_member(self, member: Member) -> int:
        return self._node(member.algorithm)

    def _node(self, algorithm: Algorithm) -> int:
        node = self._nodes.get(algorithm.store)
        if node is None:  # rules are checked when they are loaded
            raise ConfigError(f"there is no store {algorithm.store!r}")
        return node
