"""The sans-I/O protocol: redirections, discovery, and what is never sent twice."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import hiredis
import pytest

from crestgate import StoreError
from crestgate.stores.redis.cluster import SLOTS, ClusterTopology
from crestgate.stores.redis.protocol import (
    Call,
    CallFailure,
    CallResult,
    Evaluation,
    Exchange,
    ServerAddress,
    Topology,
    evaluate,
    pack,
)
from crestgate.stores.redis.sentinel import SentinelTopology
from crestgate.stores.redis.settings import RedisSettings

A, B, C = (ServerAddress("10.0.0.1", port) for port in (7001, 7002, 7003))
SENTINEL, OTHER_SENTINEL = (ServerAddress("10.0.0.9", port, sentinel=True) for port in (26379, 26380))
DONE = b"answer"
GONE = CallFailure("it closed the connection", sent=True)
AWAY = CallFailure("it refuses connections", sent=False)


def error(text: str) -> hiredis.ReplyError:
    return hiredis.ReplyError(text)


def slots(*owners: tuple[int, int, ServerAddress]) -> list[object]:
    """An answer to CLUSTER SLOTS."""
    return [[[first, last, [node.host.encode(), node.port, b"id"]] for first, last, node in owners]]


class Servers:
    """Fake servers: each call to one returns its next answer."""

    def __init__(self, answers: dict[ServerAddress, Sequence[CallResult]]) -> None:
        self.answers = {address: list(of_one) for address, of_one in answers.items()}
        self.calls: list[Call] = []

    def run(self, exchange: Exchange[None]) -> None:
        try:
            calls = next(exchange)
            while True:
                self.calls += calls
                calls = exchange.send([self.answers[call.address].pop(0) for call in calls])
        except StopIteration:
            pass

    def sent(self) -> list[tuple[ServerAddress, str]]:
        """The addresses, with the first word of each command sent to them."""
        return [(call.address, call.commands.split(b"\r\n")[2].decode()) for call in self.calls]


def run(topology: Topology, answers: dict[ServerAddress, Sequence[CallResult]]) -> tuple[Evaluation, Servers]:
    evaluation = Evaluation((1, b"key", b"batch"), 5)
    servers = Servers(answers)
    servers.run(evaluate(topology, [evaluation]))
    return evaluation, servers


def cluster(*seeds: ServerAddress, owner: ServerAddress | None = None) -> ClusterTopology:
    topology = ClusterTopology(seeds or (A, B, C))
    if owner is not None:
        topology.owners = [owner] * SLOTS
        topology.stale = False
    return topology


def test_address_as_text() -> None:
    texts = [str(address) for address in (A, ServerAddress("::1", 6379), ServerAddress("", 0, path="/run/redis.sock"))]
    assert texts == ["10.0.0.1:7001", "[::1]:6379", "/run/redis.sock"]


def test_noscript_is_answered_with_eval() -> None:
    evaluation, servers = run(Topology(A), {A: [[error("NOSCRIPT No matching script.")], [DONE]]})
    assert evaluation.reply == DONE
    assert servers.sent() == [(A, "EVALSHA"), (A, "EVAL")]


@pytest.mark.parametrize("topology", [Topology(A), cluster(owner=A)])
def test_command_that_may_have_been_executed_is_not_retried(topology: Topology) -> None:
    evaluation, servers = run(topology, {A: [GONE]})
    assert isinstance(evaluation.reply, StoreError)
    assert str(evaluation.reply) == "Redis at 10.0.0.1:7001: it closed the connection"
    assert servers.sent() == [(A, "EVALSHA")]


def test_single_server_has_no_discovery() -> None:
    evaluation, _ = run(Topology(A), {A: [AWAY]})
    assert isinstance(evaluation.reply, StoreError)


def test_moved_is_followed_without_discovery() -> None:
    """MOVED is newer than the slot table of a node that does not know of the move yet."""
    topology = cluster(owner=A)
    evaluation, servers = run(topology, {A: [[error("MOVED 5 10.0.0.1:7002")]], B: [[DONE]]})
    assert evaluation.reply == DONE
    assert servers.sent() == [(A, "EVALSHA"), (B, "EVALSHA")]
    # Before the next batch it discovers other moved slots, and asks the new owner first.
    evaluation, servers = run(topology, {B: [slots((0, SLOTS - 1, B)), [DONE]]})
    assert servers.sent() == [(B, "CLUSTER"), (B, "EVALSHA")]
    assert topology.masters() == [B]


def test_moved_without_a_host_means_the_same_host() -> None:
    evaluation, _ = run(cluster(owner=A), {A: [[error("MOVED 5 :7002")]], B: [[DONE]]})
    assert evaluation.reply == DONE


def test_ask_applies_to_one_call() -> None:
    topology = cluster(owner=A)
    evaluation, servers = run(topology, {A: [[error("ASK 5 10.0.0.1:7002")]], B: [[b"OK", DONE]]})
    assert evaluation.reply == DONE
    assert servers.sent() == [(A, "EVALSHA"), (B, "ASKING")]
    assert servers.calls[1].commands.startswith(pack(("ASKING",)) + b"*5\r\n$7\r\nEVALSHA")
    assert topology.address_of(5) == A


def test_ask_followed_by_noscript() -> None:
    answers: dict[ServerAddress, Sequence[CallResult]] = {
        A: [[error("ASK 5 10.0.0.1:7002")]] * 2,
        B: [[b"OK", error("NOSCRIPT No matching script.")], [b"OK", DONE]],
    }
    assert run(cluster(owner=A), answers)[0].reply == DONE


def test_ask_for_a_node_that_is_down_starts_again() -> None:
    answers: dict[ServerAddress, Sequence[CallResult]] = {
        A: [[error("ASK 5 10.0.0.1:7002")], slots((0, SLOTS - 1, A)), [error("ASK 5 10.0.0.1:7002")]],
        B: [AWAY, [b"OK", DONE]],
    }
    assert run(cluster(owner=A), answers)[0].reply == DONE


def test_tryagain_marks_split_keys() -> None:
    evaluation, _ = run(cluster(owner=A), {A: [[error("TRYAGAIN Multiple keys request during rehashing of slot")]]})
    assert evaluation.split


@pytest.mark.parametrize("problem", ["CLUSTERDOWN The cluster is down", "READONLY You can't write", "MASTERDOWN Link"])
def test_node_that_is_no_master_triggers_discovery(problem: str) -> None:
    answers: dict[ServerAddress, Sequence[CallResult]] = {A: [[error(problem)], slots((0, SLOTS - 1, B))], B: [[DONE]]}
    evaluation, servers = run(cluster(owner=A), answers)
    assert evaluation.reply == DONE
    assert servers.sent() == [(A, "EVALSHA"), (A, "CLUSTER"), (B, "EVALSHA")]


def test_node_that_is_down_triggers_discovery() -> None:
    answers: dict[ServerAddress, Sequence[CallResult]] = {A: [AWAY, AWAY], B: [slots((0, SLOTS - 1, C))], C: [[DONE]]}
    evaluation, servers = run(cluster(owner=A), answers)
    assert evaluation.reply == DONE
    assert servers.sent()[-1] == (C, "EVALSHA")


def test_other_errors_are_returned() -> None:
    evaluation, servers = run(cluster(owner=A), {A: [[error("OOM command not allowed")]]})
    assert str(evaluation.reply) == "Redis at 10.0.0.1:7001: OOM command not allowed"
    assert len(servers.calls) == 1


def test_failed_discovery_is_not_repeated_immediately() -> None:
    topology = cluster(A, B)
    evaluation, _ = run(topology, {A: [AWAY], B: [AWAY]})
    assert "10.0.0.1:7001: it refuses connections; 10.0.0.1:7002: it refuses" in str(evaluation.reply)
    evaluation, servers = run(topology, {})
    assert "topology discovery failed recently" in str(evaluation.reply)
    assert servers.calls == []


def test_discovery_without_a_change_is_not_repeated() -> None:
    topology = cluster(B, owner=A)
    evaluation, servers = run(topology, {A: [AWAY], B: [slots((0, SLOTS - 1, A))]})
    assert str(evaluation.reply) == "Redis at 10.0.0.1:7001: it refuses connections"
    assert servers.sent() == [(A, "EVALSHA"), (B, "CLUSTER")]
    evaluation, servers = run(topology, {A: [AWAY]})
    assert len(servers.calls) == 1, "nor by the next batch, a moment later"


def test_node_that_is_down_does_not_affect_others() -> None:
    topology = cluster(B, owner=A)
    topology.owners[9] = B
    same = slots((0, 8, A), (9, 9, B), (10, SLOTS - 1, A))
    servers = Servers({A: [AWAY] * 3, B: [[DONE], same, [DONE], [DONE]]})
    for _ in range(3):
        lost, reached = (Evaluation((1, b"key", b"batch"), slot) for slot in (5, 9))
        servers.run(evaluate(topology, [lost, reached]))
        assert isinstance(lost.reply, StoreError)
        assert reached.reply == DONE


def test_nodes_are_called_concurrently() -> None:
    topology = cluster(owner=A)
    topology.owners[9] = B
    one, two, three = (Evaluation((1, b"key", b"batch"), slot) for slot in (5, 9, 6))
    servers = Servers({A: [[b"one", b"three"]], B: [[b"two"]]})
    servers.run(evaluate(topology, [one, two, three]))
    assert (one.reply, two.reply, three.reply) == (b"one", b"two", b"three")
    assert len(servers.calls) == 2


# -- sentinels --------------------------------------------------------------------------------------------------------

MASTER: CallResult = [[b"master", 100, []]]
REPLICA: CallResult = [[b"slave", b"10.0.0.1", 7002, b"connected", 100]]


def names(address: ServerAddress) -> CallResult:
    return [[address.host.encode(), str(address.port).encode()]]


def watched() -> SentinelTopology:
    return SentinelTopology([SENTINEL, OTHER_SENTINEL], "mymaster")


@pytest.mark.parametrize(
    "first",
    [
        lambda: {SENTINEL: [AWAY], OTHER_SENTINEL: [names(A)], A: [MASTER]},
        lambda: {SENTINEL: [[error("ERR no")]], OTHER_SENTINEL: [names(A)], A: [MASTER]},
        lambda: {SENTINEL: [[None]], OTHER_SENTINEL: [names(A)], A: [MASTER]},
        lambda: {SENTINEL: [names(B)], B: [REPLICA], OTHER_SENTINEL: [names(A)], A: [MASTER]},
        lambda: {SENTINEL: [names(B)], B: [AWAY], OTHER_SENTINEL: [names(A)], A: [MASTER]},
    ],
)
def test_master_is_confirmed_by_role(
    first: Callable[[], dict[ServerAddress, Sequence[CallResult]]],
) -> None:
    topology = watched()
    Servers(first()).run(topology.discover())
    assert topology.address == A
    assert not topology.stale


def test_unknown_master() -> None:
    with pytest.raises(StoreError, match=r"no master named 'mymaster'.*10.0.0.9:26379 knows no.*10.0.0.1:7002, which"):
        Servers({SENTINEL: [[None]], OTHER_SENTINEL: [names(B)], B: [REPLICA]}).run(watched().discover())


def test_demoted_master_triggers_discovery() -> None:
    topology = watched()
    topology.address, topology.stale = B, False
    answers: dict[ServerAddress, Sequence[CallResult]] = {
        B: [[error("READONLY You can't write against a read only replica.")]],
        SENTINEL: [names(A)],
        A: [MASTER, [DONE]],
    }
    assert run(topology, answers)[0].reply == DONE


# -- settings ---------------------------------------------------------------------------------------------------------


def test_sentinels_have_their_own_password() -> None:
    settings = RedisSettings("user", "secret", 3, "watcher", "other")
    assert settings.handshake(A) == [pack(("AUTH", "user", "secret")), pack(("SELECT", 3))]
    assert settings.handshake(SENTINEL) == [pack(("AUTH", "watcher", "other"))]
    assert RedisSettings(password="secret").handshake(SENTINEL) == []
    assert "secret" not in repr(settings)
    assert "other" not in repr(settings)
