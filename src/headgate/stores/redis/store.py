"""Counters in Redis or Valkey: one Lua program decides a whole batch in one call, by the server's clock.

A batch is one EVALSHA (in a cluster one for each hash tag it touches, sent together to each node). A StoreError
says that a batch was not decided or, when an answer was lost on the way, that it may have been: it is then not sent
again, since that could count it twice.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Sequence
from contextlib import suppress

from headgate.core.algorithms import build
from headgate.core.algorithms.algorithm import Algorithm
from headgate.core.limit import Limit
from headgate.errors import StoreClosed, StoreError
from headgate.stores.breaker import Breaker
from headgate.stores.clock import Clock, MachineClock, wall_minus_monotonic
from headgate.stores.driven import DrivenCounters
from headgate.stores.forking import fork_safe_lock
from headgate.stores.port import DEFAULT_PREFIX, Done, Member, Op, Outcome, PartlyAnswered, Replies, Request
from headgate.stores.records import check_kept
from headgate.stores.redis.blocking import MAX_SERVERS, BlockingServers
from headgate.stores.redis.cluster import ClusterTopology
from headgate.stores.redis.nonblocking import LoopServers
from headgate.stores.redis.reply import NOT_REDIS
from headgate.stores.redis.settings import Settings
from headgate.stores.redis.talk import (
    SHORT_REPLY_BYTES,
    Address,
    Call,
    Evaluation,
    Lost,
    Talk,
    Topology,
    error_in,
    error_of,
    evalsha,
    evaluate,
    load_program,
    refuse_nodes_of_a_cluster,
)
from headgate.stores.redis.wire import KINDS, SERVER_TIME, MalformedReplyError, Wire, decode, max_reply_bytes
from headgate.stores.remote import DEFAULT_TIMEOUT_MS, PROBE, RemoteStore
from headgate.stores.spread import spread, unanswered

__all__ = ["RedisStore"]

CONNECT_SECONDS = 5.0
"""The time for the first connection, which no request waits for."""


class RedisStore(RemoteStore):
    """Counters on the servers that `topology` finds. `clock` replaces the server's, for tests.

    As many calls as `pool_size` are under way at once to each server, each on a connection of its own.
    """

    worth_a_call = 50  # measured: with 100 tasks two calls of 50, one made ready while the other is decided, beat one

    def __init__(
        self,
        topology: Topology,
        settings: Settings,
        *,
        prefix: str = DEFAULT_PREFIX,
        timeout_ms: int = DEFAULT_TIMEOUT_MS,
        pool_size: int | None = None,
        clock: Clock | None = None,
    ) -> None:
        self.timeout = timeout_ms / 1000
        self.lanes = self.pool_size = pool_size or self.lanes
        self.clock = clock or MachineClock(wall_minus_monotonic())
        self._given_clock = clock
        self._driven = DrivenCounters() if clock is not None else None
        self._topology = topology
        self._settings = settings
        self.title = f"Redis at {topology.address}"
        self._cluster = topology if isinstance(topology, ClusterTopology) else None
        self._wire = Wire(prefix, self._cluster.tag_of if self._cluster is not None else None)
        self._breakers: dict[Address, Breaker] = {}
        self._blocking = BlockingServers(settings, self.pool_size, self.breaker)
        self._loops: dict[asyncio.AbstractEventLoop, LoopServers] = {}
        self._loops_lock = fork_safe_lock()
        self._closed = False

    def breaker(self, address: Address) -> Breaker:
        """The breaker of one server."""
        breaker = self._breakers.get(address)
        if breaker is not None:
            return breaker
        if len(self._breakers) >= MAX_SERVERS:
            self._breakers = {}  # a cluster that names ever new servers
        return self._breakers.setdefault(address, Breaker())

    def breakers(self) -> dict[str, Breaker]:
        return {f"Redis at {address}": breaker for address, breaker in list(self._breakers.items())}

    def probe_keys(self) -> list[str]:
        return [PROBE] if self._cluster is None else self._cluster.keys_of_all_masters(PROBE)

    def supports(self, algorithm: Algorithm) -> bool:
        return algorithm.limit.algorithm in KINDS

    def connect(self) -> None:
        self._blocking.run(self._prepare(), time.monotonic() + CONNECT_SECONDS)

    async def connect_async(self) -> None:
        connected: asyncio.Future[None] = asyncio.get_running_loop().create_future()

        def done(result: StoreError | None) -> None:
            if connected.done():
                return
            if isinstance(result, StoreError):
                connected.set_exception(result)
            else:
                connected.set_result(None)

        self._on_loop().run(self._prepare(), time.monotonic() + CONNECT_SECONDS, done)
        await connected

    def call(self, batch: Sequence[Request], deadline: float) -> Replies:
        check_kept(batch)
        topology = self._topology
        if topology.can_move() or self._closed or self._driven is not None or not (len(batch) == 1 or self.fits(batch)):
            return self._blocking.run(self._decide(batch), deadline)
        # One server and one piece, the usual case: the same without the conversation.
        keys, body = self._wire.encode(batch, self._now())
        address = topology.address
        max_bytes = max_reply_bytes(batch) + SHORT_REPLY_BYTES
        answer = self._blocking.ask(Call(address, evalsha(keys, body), 1, 1.0, max_bytes), deadline)
        if isinstance(answer, Lost):
            raise StoreError(f"Redis at {address}: {answer.problem}")
        reply = answer[0]
        if isinstance(reply, bytes):
            try:
                return decode(batch, reply)
            except MalformedReplyError:
                self._distrust()
                raise
        problem = error_in(reply)
        if problem is None:
            self._distrust()
            raise error_of(address, NOT_REDIS)
        if problem.startswith("NOSCRIPT"):  # nothing was carried out, and the conversation brings the program
            return self._blocking.run(self._decide(batch), deadline)
        raise error_of(address, problem)

    def begin(self, batch: Sequence[Request], deadline: float, done: Done) -> None:
        check_kept(batch)
        self._on_loop().run(self._decide(batch), deadline, done)

    def close(self) -> None:
        self._closed = True
        self._blocking.close()
        with self._loops_lock:
            loops = list(self._loops.items())
        for loop, servers in loops:
            with suppress(RuntimeError):  # the loop is closed, and its connections are no longer in use
                loop.call_soon_threadsafe(servers.close)

    async def aclose(self) -> None:
        self.close()
        await asyncio.sleep(0)  # the connections of this loop are dropped in its next turn

    def _on_loop(self) -> LoopServers:
        loop = asyncio.get_running_loop()
        servers = self._loops.get(loop)
        if servers is None:
            servers = LoopServers(loop, self._settings, self.pool_size, self.breaker)
            with self._loops_lock:
                for over in [other for other in self._loops if other.is_closed()]:
                    del self._loops[over]  # and with it go its connections
                self._loops[loop] = servers
        return servers

    def _prepare(self) -> Talk[None]:
        """Find the servers, bring them the program, and let it count once: what is wrong is said now."""
        self._check_open()
        yield from self._topology.find()
        cluster = self._cluster
        masters = cluster.masters() if cluster is not None else [self._topology.address_of(0)]
        yield from load_program(masters)
        if not self._topology.can_move():
            yield from refuse_nodes_of_a_cluster(masters[0])
        probe = [Member(PROBE, build(Limit(1_000_000, 1), PROBE), 1)]
        for op in (Op.TAKE, Op.RESET):
            yield from self._decide([Request(op, probe)])

    def _now(self) -> int:
        return SERVER_TIME if self._given_clock is None else self._given_clock.ticks()

    def _decide(self, batch: Sequence[Request]) -> Talk[Replies]:
        self._check_open()
        now = self._now()
        driven = self._driven
        if driven is None:
            return (yield from self._decide_at(batch, now))
        drained = driven.advance(now)
        if drained:
            yield from self._decide_at([Request(Op.RESET, [member]) for member in drained], now)
        replies = yield from self._decide_at(batch, now)
        driven.note(batch, replies, now)
        return replies

    def _decide_at(self, batch: Sequence[Request], now: int) -> Talk[Replies]:
        if self._cluster is not None:
            return (yield from self._decide_in_cluster(self._cluster, batch, now))
        pieces = self.pieces(batch)
        evaluations = [self._evaluation(piece, now, 0) for piece in pieces]
        yield from evaluate(self._topology, evaluations)
        replies = _joined(pieces, [self._replies(p, e) for p, e in zip(pieces, evaluations, strict=True)])
        if isinstance(replies, StoreError):
            raise replies
        return replies

    def _decide_in_cluster(self, cluster: ClusterTopology, batch: Sequence[Request], now: int) -> Talk[Replies]:
        def tag_of(member: Member) -> int:
            return cluster.tag(member.key.encode("utf-8", "surrogatepass"))

        def tag_of_record(name: str) -> int:
            return cluster.tag(name.encode("utf-8", "surrogatepass"))

        return (yield from self._decide_by_place(batch, tag_of, tag_of_record, cluster.slots.__getitem__, now))

    def _decide_key_by_key(self, batch: Sequence[Request], slot: int, now: int) -> Talk[Replies | StoreError]:
        """While a slot is moving, its keys may be on two nodes: no script can have them all, but each finds its own."""
        keys = sorted({(member.algorithm.name, member.key) for request in batch for member in request.members})
        places = {key: place for place, key in enumerate(keys)}
        records = sorted({request.once.name for request in batch if request.once is not None})

        def place_of(member: Member) -> int:
            return places[member.algorithm.name, member.key]

        def place_of_record(name: str) -> int:
            return len(keys) + records.index(name)

        try:
            return (yield from self._decide_by_place(batch, place_of, place_of_record, lambda _: slot, now))
        except StoreError as error:
            return error

    def _decide_by_place(
        self,
        batch: Sequence[Request],
        place_of: Callable[[Member], int],
        place_of_record: Callable[[str], int],
        slot_of: Callable[[int], int],
        now: int,
    ) -> Talk[Replies]:
        """One script call for each place that a batch touches, and further rounds for chains over several."""
        rounds = spread(batch, place_of, place_of_record, self.clock)
        asked = next(rounds, None)
        while asked is not None:
            pieces = [(place, piece) for place, requests in asked.items() for piece in self.pieces(requests)]
            evaluations = [self._evaluation(piece, now, slot_of(place)) for place, piece in pieces]
            yield from evaluate(self._topology, evaluations)
            answers: dict[int, list[Replies | StoreError]] = {place: [] for place in asked}
            for (place, piece), evaluation in zip(pieces, evaluations, strict=True):
                answer = self._replies(piece, evaluation)
                if evaluation.parted:
                    answer = yield from self._decide_key_by_key(piece, evaluation.slot, now)
                answers[place].append(answer)
            joined = {place: _joined(self.pieces(asked[place]), answers[place]) for place in asked}
            try:
                asked = rounds.send(joined)
            except StopIteration as over:
                replies: Replies = over.value
                return replies
        return []

    def _check_open(self) -> None:
        if self._closed:
            raise StoreClosed("this Redis store is closed")

    def _evaluation(self, piece: Sequence[Request], now: int, slot: int) -> Evaluation:
        keys, body = self._wire.encode(piece, now)
        return Evaluation(keys, body, slot, max_reply_bytes(piece))

    def _replies(self, piece: Sequence[Request], evaluation: Evaluation) -> Replies | StoreError:
        answer = evaluation.answer
        if not isinstance(answer, bytes):
            if evaluation.malformed:
                self._distrust()
            return answer or StoreError("Redis was not asked")
        try:
            return decode(piece, answer)
        except PartlyAnswered as partly:
            return partly
        except MalformedReplyError as error:
            self._distrust()
            return error

    def _distrust(self) -> None:
        """A reply was none: close the connections that are not in use, since what they say next may be no better."""
        self._blocking.close_idle()
        with self._loops_lock:
            loops = list(self._loops.items())
        for loop, servers in loops:
            with suppress(RuntimeError):  # the loop is closed
                loop.call_soon_threadsafe(servers.close_idle)


def _joined(pieces: Sequence[Sequence[Request]], answers: Sequence[Replies | StoreError]) -> Replies | StoreError:
    """What came of a batch, from what came of its pieces."""
    if len(answers) == 1:
        return answers[0]
    replies: Replies = []
    partly: list[Sequence[Outcome | StoreError]] = []
    for piece, answer in zip(pieces, answers, strict=True):
        if isinstance(answer, PartlyAnswered):
            partly += answer.replies
        elif isinstance(answer, StoreError):
            partly += [unanswered(len(request.members), answer) for request in piece]
        else:
            replies += answer
            partly += answer
    return replies if len(replies) == len(partly) else PartlyAnswered(partly)
