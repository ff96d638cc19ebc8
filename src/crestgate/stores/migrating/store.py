"""Two stores as one, while counters move from one to the other: see carrier.py for how, share.py for which."""

from __future__ import annotations

import logging
from collections.abc import Generator, Mapping, Sequence
from typing import final

from crestgate.errors import StoreError
from crestgate.stores.idempotency import check_record_size
from crestgate.stores.migrating.carrier import FROM, MIN_STAY_US, TO, Carrier
from crestgate.stores.migrating.share import Share
from crestgate.stores.migrating.steps import Steps, as_rounds, run_together
from crestgate.stores.multi_node import Round, RoundResults, decide_by_node, failed_outcomes
from crestgate.stores.port import BatchOutcomes, LocalStore, Member, Op, Outcome, PartialStoreError, Request
from crestgate.stores.remote_store import PROBE, RemoteStore, store_title
from crestgate.stores.store_group import StoreGroup

__all__ = ["MigratingStore"]

_log = logging.getLogger("crestgate")
_DECISIONS = (Op.TAKE, Op.PEEK)
RECORDS = 2
"""The node of idempotency records. No member is there, so that each is claimed before anything is decided: a request
may be decided several times until its counters are where they belong, but is answered once."""
MAX_MEMBERS = 100
"""Of a batch: with gates and carries it is several times as many for a store."""


@final
class MigratingStore(StoreGroup):
    """Counters of `share` in the store `to`, all others in `source`; state is carried over when that changes."""

    max_members = MAX_MEMBERS

    def __init__(
        self,
        source: LocalStore | RemoteStore,
        to: LocalStore | RemoteStore,
        share: Share,
        min_stay_us: int = MIN_STAY_US,
    ) -> None:
        super().__init__([source, to], f"{_title(source)}, moving to {_title(to)}")
        self.timeout = sum(store.timeout for store in self.stores) or 0.1  # a carry waits for both
        self.share = share
        self.carrier = Carrier(self.desired, self._decide_again, self.clock, min_stay_us)

    def desired(self, member: Member) -> int:
        """Where a counter is meant to be."""
        share = self.share
        return TO if share.has_limit(member.algorithm) and share.has_subject(member.key) else FROM

    def title_of(self, member: Member) -> str:
        """Of the store in which the counter is looked for first."""
        return store_title(self.stores[self.carrier.node_of(member)], member)

    def parts(self) -> dict[str, LocalStore | RemoteStore]:
        return {"migrate.from": self.stores[FROM], "migrate.to": self.stores[TO]}

    def probe_keys(self) -> list[str]:
        """Reaching one store is enough where all subjects are in one."""
        keys: dict[bool, str] = {}
        for number in range(10 * 100):
            key = f"{PROBE}-{number}"
            keys.setdefault(self.share.has_subject(key), key)
        return list(keys.values())

    def counts(self) -> dict[str, int]:
        counts = self.carrier.counts
        return {
            "migrate_carried": counts.carried[TO],
            "migrate_carried_back": counts.carried[FROM],
            "migrate_followed": counts.followed,
            "migrate_from_errors": counts.failed[FROM],
            "migrate_to_errors": counts.failed[TO],
        }

    def connect(self) -> None:
        """One of the two is enough: counters of the other are decided by the failure policy, as when it fails later."""
        self._check_open()
        failed: list[StoreError] = []
        for store in self.stores:
            try:
                if isinstance(store, RemoteStore):
                    store.connect()
            except StoreError as error:
                failed.append(error)
        self._report(failed)

    async def connect_async(self) -> None:
        failed: list[StoreError] = []
        for store in self.stores:
            try:
                if isinstance(store, RemoteStore):
                    await store.connect_async()
            except StoreError as error:
                failed.append(error)
        self._report(failed)

    def _report(self, failed: list[StoreError]) -> None:
        if len(failed) == len(self.stores):
            raise failed[0]
        for error in failed:
            _log.warning("a store of the migration is unreachable: %s", error)

    def rounds(self, batch: Sequence[Request]) -> Generator[Round, RoundResults, BatchOutcomes]:
        return as_rounds(self._decide_pieces(batch))

    def _decide_pieces(self, batch: Sequence[Request]) -> Steps[BatchOutcomes]:
        """One caller may send a batch that is too large. What is carried must not be split by the stores."""
        pieces = self.pieces(batch)
        if len(pieces) == 1:
            return (yield from self._decide(batch, 0))
        check_record_size(batch)
        decided: BatchOutcomes = []
        outcomes: list[Sequence[Outcome | StoreError]] = []
        for piece in pieces:
            try:
                replies = yield from self._decide(piece, 0)
                decided += replies
                outcomes += replies
            except PartialStoreError as error:
                outcomes += error.outcomes
        if len(decided) < len(outcomes):
            raise PartialStoreError(outcomes)
        return decided

    def _decide(self, batch: Sequence[Request], tries: int) -> Steps[BatchOutcomes]:
        takes = [member for request in batch if request.op in _DECISIONS for member in request.members]
        errors = (yield from self.carrier.prepare(takes)) if not tries else {}
        rounds = decide_by_node(batch, self.carrier.node_of, lambda _: RECORDS, self.clock)
        try:
            round_ = next(rounds)
            while True:
                sent = [(node, request) for node, requests in round_.items() for request in requests]
                results = yield from run_together([self._decide_at(node, one, tries, errors) for node, one in sent])
                round_ = rounds.send(_by_node(sent, results))
        except StopIteration as finished:
            outcomes: BatchOutcomes = finished.value
            return outcomes

    def _decide_again(self, request: Request, tries: int) -> Steps[list[Outcome | StoreError]]:
        try:
            return list((yield from self._decide([request], tries))[0])
        except PartialStoreError as error:
            return list(error.outcomes[0])

    def _decide_at(
        self, node: int, request: Request, tries: int, errors: Mapping[tuple[str, str], StoreError]
    ) -> Steps[list[Outcome | StoreError]]:
        if node == RECORDS:
            assert request.record is not None
            (reply,) = yield [(TO if self.share.has_subject(request.record.name) else FROM, request)]
            return list(reply)
        if request.op in _DECISIONS:
            members = request.members
            if not errors:
                return (yield from self.carrier.take(node, request.op, members, tries))
            failed = [errors.get((member.key, member.algorithm.name)) for member in members]
            reached = [member for member, error in zip(members, failed, strict=True) if error is None]
            decided = (yield from self.carrier.take(node, request.op, reached, tries)) if reached else []
            rest = iter(decided)
            return [next(rest) if error is None else error for error in failed]
        return (yield from self.carrier.settle(node, request.op, request.members))


def _title(store: LocalStore | RemoteStore) -> str:
    return store.title if isinstance(store, RemoteStore) else "local memory"


def _by_node(
    sent: Sequence[tuple[int, Request]], results: Sequence[list[Outcome | StoreError] | StoreError]
) -> RoundResults:
    """The results of a round, by node. Each request may fail by itself."""
    by_node: dict[int, list[Sequence[Outcome | StoreError]]] = {}
    for (node, request), result in zip(sent, results, strict=True):
        outcomes = failed_outcomes(len(request.members), result) if isinstance(result, StoreError) else result
        by_node.setdefault(node, []).append(outcomes)
    return {node: PartialStoreError(replies) for node, replies in by_node.items()}
