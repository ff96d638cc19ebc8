"""What is said to which server, without any server: answers that send elsewhere, and what is never said twice."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import hiredis
import pytest

from headgate import StoreError
from headgate.stores.redis.cluster import SLOTS, ClusterTopology
from headgate.stores.redis.sentinel import SentinelTopology
from headgate.stores.redis.settings import Settings
from headgate.stores.redis.talk import Address, Answer, Call, Evaluation, Lost, Talk, Topology, evaluate, pack

A, B, C = (Address("10.0.0.1", port) for port in (7001, 7002, 7003))
SENTINEL, OTHER_SENTINEL = (Address("10.0.0.9", port, sentinel=True) for port in (26379, 26380))
DONE = b"answer"
GONE = Lost("it closed the connection", sent=True)
AWAY = Lost("it refuses connections", sent=False)


def error(text: str) -> hiredis.ReplyError:
    return hiredis.ReplyError(text)


def slots(*owners: tuple[int, int, Address]) -> list[object]:
    """An answer to CLUSTER SLOTS."""
    return [[[first, last, [node.host.encode(), node.port, b"id"]] for first, last, node in owners]]


class Servers:
    """Plays the servers: each call to one takes its next answer."""

    def __init__(self, answers: dict[Address, Sequence[Answer]]) -> None:
        self.answers = {address: list(of_one) for address, of_one in answers.items()}
        self.calls: list[Call] = []

    def run(self, talk: Talk[None]) -> None:
        try:
            calls = next(talk)
            while True:
                self.calls += calls
                calls = talk.send([self.answers[call.address].pop(0) for call in calls])
        except StopIteration:
            pass

    def asked(self) -> list[tuple[Address, str]]:
        """Who was told what, by its first word."""
        return [(call.address, call.commands.split(b"\r\n")[2].decode()) for call in self.calls]


def run(topology: Topology, answers: dict[Address, Sequence[Answer]]) -> tuple[Evaluation, Servers]:
    evaluation = Evaluation([b"key"], b"batch", 5)
    servers = Servers(answers)
    servers.run(evaluate(topology, [evaluation]))
    return evaluation, servers


def cluster(*seeds: Address, owner: Address | None = None) -> ClusterTopology:
    topology = ClusterTopology(seeds or (A, B, C))
    if owner is not None:
        topology.owners = [owner] * SLOTS
        topology.doubtful = False
    return topology


def test_addresses_as_they_are_shown() -> None:
    shown = [str(address) for address in (A, Address("::1", 6379), Address("", 0, path="/run/redis.sock"))]
    assert shown == ["10.0.0.1:7001", "[::1]:6379", "/run/redis.sock"]


def test_a_program_that_is_not_known_is_sent_whole() -> None:
    evaluation, servers = run(Topology(A), {A: [[error("NOSCRIPT No matching script.")], [DONE]]})
    assert evaluation.answer == DONE
    assert servers.asked() == [(A, "EVALSHA"), (A, "EVAL")]


@pytest.mark.parametrize("topology", [Topology(A), cluster(owner=A)])
def test_what_may_have_been_carried_out_is_not_said_again(topology: Topology) -> None:
    evaluation, servers = run(topology, {A: [GONE]})
    assert isinstance(evaluation.answer, StoreError)
    assert str(evaluation.answer) == "Redis at 10.0.0.1:7001: it closed the connection"
    assert servers.asked() == [(A, "EVALSHA")]


def test_a_single_server_that_is_away_is_away() -> None:
    evaluation, _ = run(Topology(A), {A: [AWAY]})
    assert isinstance(evaluation.answer, StoreError)


def test_a_node_that_says_moved_is_believed_at_once() -> None:
    """It knows better than the table of a node that has not heard of it yet."""
    topology = cluster(owner=A)
    evaluation, servers = run(topology, {A: [[error("MOVED 5 10.0.0.1:7002")]], B: [[DONE]]})
    assert evaluation.answer == DONE
    assert servers.asked() == [(A, "EVALSHA"), (B, "EVALSHA")]
    # Before the next batch it looks for more that has moved, and asks the one first who must know.
    evaluation, servers = run(topology, {B: [slots((0, SLOTS - 1, B)), [DONE]]})
    assert servers.asked() == [(B, "CLUSTER"), (B, "EVALSHA")]
    assert topology.masters() == [B]


def test_moved_without_a_host_means_the_same_host() -> None:
    evaluation, _ = run(cluster(owner=A), {A: [[error("MOVED 5 :7002")]], B: [[DONE]]})
    assert evaluation.answer == DONE


def test_ask_is_for_this_once() -> None:
    topology = cluster(owner=A)
    evaluation, servers = run(topology, {A: [[error("ASK 5 10.0.0.1:7002")]], B: [[b"OK", DONE]]})
    assert evaluation.answer == DONE
    assert servers.asked() == [(A, "EVALSHA"), (B, "ASKING")]
    assert servers.calls[1].commands.startswith(pack(("ASKING",)) + b"*5\r\n$7\r\nEVALSHA")
    assert topology.address_of(5) == A


def test_ask_and_then_a_program_that_is_not_known() -> None:
    answers: dict[Address, Sequence[Answer]] = {
        A: [[error("ASK 5 10.0.0.1:7002")]] * 2,
        B: [[b"OK", error("NOSCRIPT No matching script.")], [b"OK", DONE]],
    }
    assert run(cluster(owner=A), answers)[0].answer == DONE


def test_ask_for_a_node_that_is_away_is_asked_anew() -> None:
    answers: dict[Address, Sequence[Answer]] = {
        A: [[error("ASK 5 10.0.0.1:7002")], slots((0, SLOTS - 1, A)), [error("ASK 5 10.0.0.1:7002")]],
        B: [AWAY, [b"OK", DONE]],
    }
    assert run(cluster(owner=A), answers)[0].answer == DONE


def test_keys_on_two_nodes_are_noted() -> None:
    evaluation, _ = run(cluster(owner=A), {A: [[error("TRYAGAIN Multiple keys request during rehashing of slot")]]})
    assert evaluation.parted


@pytest.mark.parametrize("problem", ["CLUSTERDOWN The cluster is down", "READONLY You can't write", "MASTERDOWN Link"])
def test_a_node_that_is_not_in_charge_makes_it_look_again(problem: str) -> None:
    answers: dict[Address, Sequence[Answer]] = {A: [[error(problem)], slots((0, SLOTS - 1, B))], B: [[DONE]]}
    evaluation, servers = run(cluster(owner=A), answers)
    assert evaluation.answer == DONE
    assert servers.asked() == [(A, "EVALSHA"), (A, "CLUSTER"), (B, "EVALSHA")]


def test_a_node_that_is_away_makes_it_look_again() -> None:
    answers: dict[Address, Sequence[Answer]] = {A: [AWAY, AWAY], B: [slots((0, SLOTS - 1, C))], C: [[DONE]]}
    evaluation, servers = run(cluster(owner=A), answers)
    assert evaluation.answer == DONE
    assert servers.asked()[-1] == (C, "EVALSHA")


def test_other_errors_are_errors() -> None:
    evaluation, servers = run(cluster(owner=A), {A: [[error("OOM command not allowed")]]})
    assert str(evaluation.answer) == "Redis at 10.0.0.1:7001: OOM command not allowed"
    assert len(servers.calls) == 1


def test_a_search_in_vain_is_not_repeated_at_once() -> None:
    topology = cluster(A, B)
    evaluation, _ = run(topology, {A: [AWAY], B: [AWAY]})
    assert "10.0.0.1:7001: it refuses connections; 10.0.0.1:7002: it refuses" in str(evaluation.answer)
    evaluation, servers = run(topology, {})
    assert "not found a moment ago" in str(evaluation.answer)
    assert servers.calls == []


def test_a_search_that_finds_the_same_server_is_not_repeated() -> None:
    topology = cluster(B, owner=A)
    evaluation, servers = run(topology, {A: [AWAY], B: [slots((0, SLOTS - 1, A))]})
    assert str(evaluation.answer) == "Redis at 10.0.0.1:7001: it refuses connections"
    assert servers.asked() == [(A, "EVALSHA"), (B, "CLUSTER")]
    evaluation, servers = run(topology, {A: [AWAY]})
    assert len(servers.calls) == 1, "nor by the next batch, a moment later"


def test_a_node_that_is_away_does_not_take_the_others_along() -> None:
    topology = cluster(B, owner=A)
    topology.owners[9] = B
    same = slots((0, 8, A), (9, 9, B), (10, SLOTS - 1, A))
    servers = Servers({A: [AWAY] * 3, B: [[DONE], same, [DONE], [DONE]]})
    for _ in range(3):
        lost, kept = (Evaluation([b"key"], b"batch", slot) for slot in (5, 9))
        servers.run(evaluate(topology, [lost, kept]))
        assert isinstance(lost.answer, StoreError)
        assert kept.answer == DONE


def test_two_nodes_work_at_the_same_time() -> None:
    topology = cluster(owner=A)
    topology.owners[9] = B
    one, two, three = (Evaluation([b"key"], b"batch", slot) for slot in (5, 9, 6))
    servers = Servers({A: [[b"one", b"three"]], B: [[b"two"]]})
    servers.run(evaluate(topology, [one, two, three]))
    assert (one.answer, two.answer, three.answer) == (b"one", b"two", b"three")
    assert len(servers.calls) == 2


# -- sentinels --------------------------------------------------------------------------------------------------------

MASTER: Answer = [[b"master", 100, []]]
REPLICA: Answer = [[b"slave", b"10.0.0.1", 7002, b"connected", 100]]


def names(address: Address) -> Answer:
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
def test_the_master_is_believed_when_it_says_so_itself(first: Callable[[], dict[Address, Sequence[Answer]]]) -> None:
    topology = watched()
    Servers(first()).run(topology.find())
    assert topology.address == A
    assert not topology.doubtful


def test_nobody_knows_the_master() -> None:
    with pytest.raises(StoreError, match=r"no master named 'mymaster'.*10.0.0.9:26379 knows no.*10.0.0.1:7002, which"):
        Servers({SENTINEL: [[None]], OTHER_SENTINEL: [names(B)], B: [REPLICA]}).run(watched().find())


def test_a_master_that_became_a_replica_makes_it_look_again() -> None:
    topology = watched()
    topology.address, topology.doubtful = B, False
    answers: dict[Address, Sequence[Answer]] = {
        B: [[error("READONLY You can't write against a read only replica.")]],
        SENTINEL: [names(A)],
        A: [MASTER, [DONE]],
    }
    assert run(topology, answers)[0].answer == DONE


# -- settings ---------------------------------------------------------------------------------------------------------


def test_sentinels_are_greeted_with_their_own_password() -> None:
    settings = Settings("user", "secret", 3, "watcher", "other")
    assert settings.greeting(A) == [pack(("AUTH", "user", "secret")), pack(("SELECT", 3))]
    assert settings.greeting(SENTINEL) == [pack(("AUTH", "watcher", "other"))]
    assert Settings(password="secret").greeting(SENTINEL) == []
    assert "secret" not in repr(settings)
    assert "other" not in repr(settings)
