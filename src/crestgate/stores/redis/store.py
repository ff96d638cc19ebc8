# mypyc: compile
"""Store in Redis or Valkey: one Lua script decides a whole batch in one call, by the server's clock.

A batch is one EVALSHA (in a cluster one for each hash tag, pipelined to each node). A StoreError means that a batch was
not decided or, if a reply was lost, that it may have been: it is not sent again then, since that could charge twice.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from functools import partial

from crestgate.core.algorithms import build
from crestgate.core.algorithms.algorithm import Algorithm
from crestgate.core.bounds import DEFAULT_PREFIX
from crestgate.core.limit import Limit
from crestgate.errors import StoreClosedError, StoreError
from crestgate.runtime.clock import Clock, MachineClock, wall_minus_monotonic
from crestgate.runtime.fork_safety import fork_safe_lock
from crestgate.stores.breaker import Breaker
from crestgate.stores.idempotency import check_record_size
from crestgate.stores.multi_node import decide_by_node, failed_outcomes
from crestgate.stores.port import BatchCallback, BatchOutcomes, Member, Op, Outcome, PartialStoreError, Request
from crestgate.stores.redis.async_client import AsyncClient
from crestgate.stores.redis.cluster import ClusterTopology
from crestgate.stores.redis.codec import KINDS, SERVER_TIME, BatchEncoder, MalformedReplyError, decode
from crestgate.stores.redis.protocol import (
    SHORT_REPLY_BYTES,
    Call,
    CallFailure,
    CallResult,
    Evaluation,
    Exchange,
    ServerAddress,
    Topology,
    error_in,
    error_of,
    evaluate,
    load_script,
    pack,
    refuse_cluster_node,
)
from crestgate.stores.redis.reply import NOT_REDIS
from crestgate.stores.redis.script import SCRIPT_SHA
from crestgate.stores.redis.settings import RedisSettings
from crestgate.stores.redis.sync_client import MAX_SERVERS, SyncClient
from crestgate.stores.remote_store import DEFAULT_TIMEOUT_MS, PROBE, RemoteStore
from crestgate.stores.virtual_expiry import VirtualExpiry

__all__ = ["RedisStore"]

CONNECT_SECONDS = 5.0
"""Time limit of `connect`, which no request waits for."""


class RedisStore(RemoteStore):
    """Counters on the servers of a topology. `clock` replaces the server's, for tests.

    Each server has up to `pool_size` connections, each with one call at a time.
    """

    min_shared_batch = 50  # measured: for 100 tasks two calls of 50, one encoded while the other is decided, beat one

    def __init__(
        self,
        topology: Topology,
        settings: RedisSettings,
        *,
        prefix: str = DEFAULT_PREFIX,
        timeout_ms: int = DEFAULT_TIMEOUT_MS,
        pool_size: int | None = None,
        clock: Clock | None = None,
    ) -> None:
        self.timeout = timeout_ms / 1000
        self.max_concurrent_batches = self.pool_size = pool_size or self.max_concurrent_batches
        self.clock = clock or MachineClock(wall_minus_monotonic())
        self._virtual_expiry = VirtualExpiry(clock) if clock is not None else None
        self._topology = topology
        self._settings = settings
        self.title = f"Redis at {topology.address}"
        self._cluster = topology if isinstance(topology, ClusterTopology) else None
        self.several_nodes = self._cluster is not None
        self._encoder = BatchEncoder(prefix, self._cluster.tag_of if self._cluster is not None else None, self.clock)
        self._single = clock is None and not topology.can_change()
        """Most batches are one command for one known server, and need no exchange."""
        self._breakers: dict[ServerAddress, Breaker] = {}
        self._sync_client = SyncClient(settings, self.pool_size, self.breaker, self.timeout / 2)
        self._async_clients: dict[asyncio.AbstractEventLoop, AsyncClient] = {}
        self._async_lock = fork_safe_lock()
        self._closed = False

    def breaker(self, address: ServerAddress) -> Breaker:
        """The breaker of one server."""
        breaker = self._breakers.get(address)
        if breaker is not None:
            return breaker
        if len(self._breakers) >= MAX_SERVERS:
            self._breakers = {}  # a cluster that names new servers again and again
        return self._breakers.setdefault(address, Breaker())

    def breakers(self) -> dict[str, Breaker]:
        return {f"Redis at {address}": breaker for address, breaker in list(self._breakers.items())}

    def probe_keys(self) -> list[str]:
        return [PROBE] if self._cluster is None else self._cluster.keys_of_all_masters(PROBE)

    def supports(self, algorithm: Algorithm) -> bool:
        return algorithm.limit.algorithm in KINDS

    def connect(self) -> None:
        self._sync_client.run(self._prepare(), time.monotonic() + CONNECT_SECONDS)

    async def connect_async(self) -> None:
        connected: asyncio.Future[None] = asyncio.get_running_loop().create_future()

        def done(result: StoreError | None) -> None:
            if connected.done():
                return
            if isinstance(result, StoreError):
                connected.set_exception(result)
            else:
                connected.set_result(None)

        self._async_client().run(self._prepare(), time.monotonic() + CONNECT_SECONDS, done)
        await connected

    def call(self, batch: Sequence[Request], deadline: float) -> BatchOutcomes:
        plain = len(batch) == 1 and batch[0].record is None
        if not plain:
            check_record_size(batch)
        if not self._single or self._closed or not (plain or self.fits(batch)):
            return self._sync_client.run(self._decide(batch), deadline)
        arguments, max_bytes = self._encoder.encode(batch, SERVER_TIME)
        command = pack(("EVALSHA", SCRIPT_SHA, *arguments))
        address = self._topology.address
        result = self._sync_client.call(Call(address, command, 1, 1.0, max_bytes + SHORT_REPLY_BYTES), deadline)
        reply = None if isinstance(result, CallFailure) else result[0]
        if isinstance(reply, bytes):
            try:
                return decode(batch, reply)
            except MalformedReplyError:
                self._close_idle()
                raise
        error = self._error_in(result)
        if error is None:
            return self._sync_client.run(self._decide(batch), deadline)
        raise error

    def begin(self, batch: Sequence[Request], deadline: float, done: BatchCallback) -> None:
        plain = len(batch) == 1 and batch[0].record is None
        if not plain:
            check_record_size(batch)
        client = self._async_clients.get(asyncio.get_running_loop()) or self._async_client()
        if self._single and not self._closed and (plain or self.fits(batch)):
            arguments, max_bytes = self._encoder.encode(batch, SERVER_TIME)
            command = pack(("EVALSHA", SCRIPT_SHA, *arguments))
            on_result = partial(self._finish, batch, deadline, done)
            if client.try_send(self._topology.address, command, max_bytes + SHORT_REPLY_BYTES, deadline, on_result):
                return
        client.run(self._decide(batch), deadline, done)

    def _finish(self, batch: Sequence[Request], deadline: float, done: BatchCallback, result: CallResult) -> None:
        """The result of a batch that was one command."""
        reply = None if isinstance(result, CallFailure) else result[0]
        outcomes: BatchOutcomes | StoreError | None
        if isinstance(reply, bytes):
            try:
                outcomes = decode(batch, reply)
            except StoreError as error:
                if isinstance(error, MalformedReplyError):
                    self._close_idle()
                outcomes = error
            except Exception as unexpected:  # noqa: BLE001 - whatever it is, the caller must get it
                outcomes = StoreError(f"cannot parse the Redis reply: {unexpected!r}")
        else:
            outcomes = self._error_in(result)
        if outcomes is None:
            self._async_client().run(self._decide(batch), deadline, done)
        else:
            done(outcomes)

    def _error_in(self, result: CallResult) -> StoreError | None:
        """Why a batch that was one command has no outcomes; None if the server does not have the script."""
        address = self._topology.address
        if isinstance(result, CallFailure):
            return StoreError(f"Redis at {address}: {result.reason}")
        reason = error_in(result[0])
        if reason is None:
            self._close_idle()
            return error_of(address, NOT_REDIS)
        return None if reason.startswith("NOSCRIPT") else error_of(address, reason)

    def close(self) -> None:
        self._closed = True
        self._sync_client.close()
        with self._async_lock:
            clients = list(self._async_clients.items())
        for loop, client in clients:
            with suppress(RuntimeError):  # the loop is closed, and its connections are no longer in use
                loop.call_soon_threadsafe(client.close)

    async def aclose(self) -> None:
        self.close()
        await asyncio.sleep(0)  # the connections of this loop are dropped in its next iteration

    def _async_client(self) -> AsyncClient:
        loop = asyncio.get_running_loop()
        client = self._async_clients.get(loop)
        if client is None:
            client = AsyncClient(loop, self._settings, self.pool_size, self.breaker, self.timeout / 2)
            with self._async_lock:
                for closed in [other for other in self._async_clients if other.is_closed()]:
                    del self._async_clients[closed]  # and with it its connections
                self._async_clients[loop] = client
        return client

    def _prepare(self) -> Exchange[None]:
        """Discover the servers, load the script, and decide a probe: configuration errors surface now."""
        self._check_open()
        yield from self._topology.discover()
        cluster = self._cluster
        masters = cluster.masters() if cluster is not None else [self._topology.address_of(0)]
        yield from load_script(masters)
        if not self._topology.can_change():
            yield from refuse_cluster_node(masters[0])
        probe = [Member(PROBE, build(Limit(1_000_000, 1), PROBE), 1)]
        for op in (Op.TAKE, Op.RESET):
            yield from self._decide([Request(op, probe)])

    def _decide(self, batch: Sequence[Request]) -> Exchange[BatchOutcomes]:
        self._check_open()
        expiry = self._virtual_expiry
        if expiry is None:
            return (yield from self._decide_at(batch, SERVER_TIME))
        peeks = expiry.peeks()
        if peeks:
            resets = expiry.resets(peeks, (yield from self._decide_at(peeks, expiry.ticks())))
            if resets:
                yield from self._decide_at(resets, expiry.ticks())
        expiry.note(batch)
        return (yield from self._decide_at(batch, expiry.ticks()))

    def _decide_at(self, batch: Sequence[Request], now: int) -> Exchange[BatchOutcomes]:
        if self._cluster is not None:
            return (yield from self._decide_in_cluster(self._cluster, batch, now))
        pieces = self.pieces(batch)
        evaluations = [self._evaluation(piece, now, 0) for piece in pieces]
        yield from evaluate(self._topology, evaluations)
        outcomes = _joined(pieces, [self._outcomes(p, e) for p, e in zip(pieces, evaluations, strict=True)])
        if isinstance(outcomes, StoreError):
            raise outcomes
        return outcomes

    def _decide_in_cluster(
        self, cluster: ClusterTopology, batch: Sequence[Request], now: int
    ) -> Exchange[BatchOutcomes]:
        def tag_of(member: Member) -> int:
            return cluster.tag(member.key.encode("utf-8", "surrogatepass"))

        def tag_of_record(name: str) -> int:
            return cluster.tag(name.encode("utf-8", "surrogatepass"))

        return (yield from self._decide_by_node(batch, tag_of, tag_of_record, cluster.slots.__getitem__, now))

    def _decide_key_by_key(self, batch: Sequence[Request], slot: int, now: int) -> Exchange[BatchOutcomes | StoreError]:
        """While a slot is migrated its keys may be on two nodes: no script call reaches all of them, but one each."""
        keys = sorted({(member.algorithm.name, member.key) for request in batch for member in request.members})
        index_of = {key: index for index, key in enumerate(keys)}
        records = sorted({request.record.name for request in batch if request.record is not None})

        def node_of(member: Member) -> int:
            return index_of[member.algorithm.name, member.key]

        def node_of_record(name: str) -> int:
            return len(keys) + records.index(name)

        try:
            return (yield from self._decide_by_node(batch, node_of, node_of_record, lambda _: slot, now))
        except StoreError as error:
            return error

    def _decide_by_node(
        self,
        batch: Sequence[Request],
        node_of: Callable[[Member], int],
        node_of_record: Callable[[str], int],
        slot_of: Callable[[int], int],
        now: int,
    ) -> Exchange[BatchOutcomes]:
        """One script call for each hash tag (or key) of a batch, and further rounds for chains over several."""
        rounds = decide_by_node(batch, node_of, node_of_record, self.clock)
        round_ = next(rounds, None)
        while round_ is not None:
            pieces = [(node, piece) for node, requests in round_.items() for piece in self.pieces(requests)]
            evaluations = [self._evaluation(piece, now, slot_of(node)) for node, piece in pieces]
            yield from evaluate(self._topology, evaluations)
            results: dict[int, list[BatchOutcomes | StoreError]] = {node: [] for node in round_}
            for (node, piece), evaluation in zip(pieces, evaluations, strict=True):
                result = self._outcomes(piece, evaluation)
                if evaluation.split:
                    result = yield from self._decide_key_by_key(piece, evaluation.slot, now)
                results[node].append(result)
            joined = {node: _joined(self.pieces(round_[node]), results[node]) for node in round_}
            try:
                round_ = rounds.send(joined)
            except StopIteration as finished:
                outcomes: BatchOutcomes = finished.value
                return outcomes
        return []

    def _check_open(self) -> None:
        if self._closed:
            raise StoreClosedError("this Redis store is closed")

    def _evaluation(self, piece: Sequence[Request], now: int, slot: int) -> Evaluation:
        arguments, max_bytes = self._encoder.encode(piece, now)
        return Evaluation(arguments, slot, max_bytes)

    def _outcomes(self, piece: Sequence[Request], evaluation: Evaluation) -> BatchOutcomes | StoreError:
        reply = evaluation.reply
        if not isinstance(reply, bytes):
            if evaluation.malformed:
                self._close_idle()
            return reply or StoreError("the request was not sent to Redis")
        try:
            return decode(piece, reply)
        except StoreError as error:
            if isinstance(error, MalformedReplyError):
                self._close_idle()
            return error

    def _close_idle(self) -> None:
        """After a malformed reply: close the connections that are not in use, since they may be no better."""
        self._sync_client.close_idle()
        with self._async_lock:
            clients = list(self._async_clients.items())
        for loop, client in clients:
            with suppress(RuntimeError):  # the loop is closed
                loop.call_soon_threadsafe(client.close_idle)


def _joined(
    pieces: Sequence[Sequence[Request]], results: Sequence[BatchOutcomes | StoreError]
) -> BatchOutcomes | StoreError:
    """The result of a batch, from those of its pieces."""
    if len(results) == 1:
        return results[0]
    outcomes: BatchOutcomes = []
    partial_outcomes: list[Sequence[Outcome | StoreError]] = []
    for piece, result in zip(pieces, results, strict=True):
        if isinstance(result, PartialStoreError):
            partial_outcomes += result.outcomes
        elif isinstance(result, StoreError):
            partial_outcomes += [failed_outcomes(len(request.members), result) for request in piece]
        else:
            outcomes += result
            partial_outcomes += result
    return outcomes if len(outcomes) == len(partial_outcomes) else PartialStoreError(partial_outcomes)
