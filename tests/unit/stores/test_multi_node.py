"""Requests over several nodes: rounds, give-backs, and errors of nodes that are down.

The nodes are memory stores; a node that is down answers with an error.
"""

from __future__ import annotations

from collections.abc import Sequence

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from crestgate.core.algorithms import Algorithm, build
from crestgate.core.limit import Limit
from crestgate.errors import StoreError
from crestgate.stores.memory import MemoryStore
from crestgate.stores.multi_node import Round, decide_by_node
from crestgate.stores.port import BatchOutcomes, IdempotencyRecord, Member, Op, Outcome, PartialStoreError, Request
from crestgate.testing import FakeClock
from example_counts import examples

DOWN = StoreError("away")


class Nodes:
    """Memory stores by number; a member's node is the number that its key ends with."""

    def __init__(self, *, down: Sequence[int] = ()) -> None:
        self.clock = FakeClock(1_700_000_000)
        self.stores = {number: MemoryStore(clock=self.clock) for number in range(10)}
        self.down = set(down)
        self.rounds: list[Round] = []

    def decide(self, *batch: Request) -> BatchOutcomes:
        rounds = decide_by_node(batch, node_of, node_of_record, self.clock)
        try:
            sent = next(rounds)
            while True:
                self.rounds.append(sent)
                sent = rounds.send({node: self.answer(node, requests) for node, requests in sent.items()})
        except StopIteration as over:
            replies: BatchOutcomes = over.value
            return replies

    def answer(self, node: int, requests: list[Request]) -> BatchOutcomes | StoreError:
        return DOWN if node in self.down else self.stores[node].apply(requests)

    def left(self, algorithm: Algorithm, key: str) -> int:
        return self.stores[int(key[-1])].apply([Request(Op.PEEK, [Member(key, algorithm, 1)])])[0][0].decision.remaining

    def sent(self) -> list[dict[int, list[str]]]:
        """The operations that were sent, by round and node."""
        return [{node: [r.op.value for r in requests] for node, requests in sent.items()} for sent in self.rounds]


def node_of(member: Member) -> int:
    return int(member.key[-1])


def node_of_record(name: str) -> int:
    return int(name[-1])


def limit(count: int, name: str = "limit", algorithm: str = "fixed_window") -> Algorithm:
    return build(Limit(count, 3600, algorithm=algorithm), name)


def take(*members: Member) -> Request:
    return Request(Op.TAKE, members)


def summary(reply: Sequence[Outcome | StoreError]) -> list[tuple[bool, int] | str]:
    return [
        (item.decision.allowed, item.decision.remaining) if isinstance(item, Outcome) else str(item) for item in reply
    ]


FIVE, TWO, NONE = limit(5, "five"), limit(2, "two"), limit(1, "none")


def test_one_node_is_one_round() -> None:
    nodes = Nodes()
    replies = nodes.decide(*(take(Member("a1", FIVE, 1), Member("b1", TWO, 1)) for _ in range(3)))
    assert [summary(reply) for reply in replies] == [
        [(True, 4), (True, 1)],
        [(True, 3), (True, 0)],
        [(True, 3), (False, 0)],
    ]
    assert nodes.sent() == [{1: ["take", "take", "take"]}]


def test_nodes_are_called_in_order_whatever_the_order_of_members() -> None:
    nodes = Nodes()
    (reply,) = nodes.decide(take(Member("a3", FIVE, 1), Member("a1", TWO, 1), Member("a2", FIVE, 2)))
    assert summary(reply) == [(True, 4), (True, 1), (True, 3)]
    assert nodes.sent() == [{1: ["take"]}, {2: ["take"]}, {3: ["take"]}]


def test_requests_of_a_batch_share_rounds() -> None:
    nodes = Nodes()
    replies = nodes.decide(
        take(Member("a1", FIVE, 1)), take(Member("a2", FIVE, 1), Member("a1", FIVE, 1)), take(Member("a2", FIVE, 1))
    )
    assert [summary(reply) for reply in replies] == [[(True, 4)], [(True, 3), (True, 3)], [(True, 4)]]
    assert nodes.sent() == [{1: ["take", "take"], 2: ["take"]}, {2: ["take"]}]


@pytest.mark.parametrize("algorithm", ["token_bucket", "leaky_bucket", "gcra", "fixed_window", "sliding_window_log"])
def test_denial_gives_back_charges_and_peeks_at_the_rest(algorithm: str) -> None:
    nodes = Nodes()
    wide, tight = limit(5, "wide", algorithm), limit(2, "tight", algorithm)
    request = take(Member("a1", wide, 1), Member("a2", tight, 1), Member("a3", wide, 1))
    for _ in range(2):
        nodes.decide(request)
    nodes.rounds.clear()
    (reply,) = nodes.decide(request)
    assert summary(reply) == [(True, 3), (False, 0), (True, 3)]
    assert nodes.sent() == [{1: ["take"]}, {2: ["take"]}, {1: ["give back"], 3: ["peek"]}]
    assert [nodes.left(wide, "a1"), nodes.left(tight, "a2"), nodes.left(wide, "a3")] == [3, 0, 3]


def test_denial_by_the_first_node_gives_nothing_back() -> None:
    nodes = Nodes()
    nodes.decide(take(Member("a1", NONE, 1)))
    nodes.rounds.clear()
    (reply,) = nodes.decide(take(Member("a1", NONE, 1), Member("a2", FIVE, 1)))
    assert summary(reply) == [(False, 0), (True, 5)]
    assert nodes.sent() == [{1: ["take"]}, {2: ["peek"]}]


def test_denial_by_the_last_node_gives_back_charges_only() -> None:
    nodes = Nodes()
    nodes.decide(take(Member("a2", NONE, 1)))
    nodes.rounds.clear()
    (reply,) = nodes.decide(take(Member("a1", FIVE, 0), Member("a2", NONE, 1)))
    assert summary(reply) == [(True, 5), (False, 0)]
    assert nodes.sent() == [{1: ["take"]}, {2: ["take"]}]


def test_non_binding_member_never_denies_and_is_given_back() -> None:
    nodes = Nodes()
    shadow = Member("a1", TWO, 1, binds=False)
    for _ in range(2):
        nodes.decide(take(shadow, Member("a2", FIVE, 1)))
    (reply,) = nodes.decide(take(shadow, Member("a2", FIVE, 1)))
    assert summary(reply) == [(False, 0), (True, 2)], "it would have denied, and did not"
    nodes = Nodes()
    nodes.decide(take(Member("a2", NONE, 1)))
    nodes.decide(take(shadow, Member("a2", NONE, 1)))
    assert nodes.left(TWO, "a1") == 2


@pytest.mark.parametrize("op", [Op.PEEK, Op.RESET, Op.CHARGE, Op.GIVE_BACK])
def test_other_operations_are_one_round(op: Op) -> None:
    nodes = Nodes()
    nodes.decide(take(Member("a1", FIVE, 2), Member("a2", FIVE, 2)))
    nodes.rounds.clear()
    tick = nodes.clock.ticks()
    (reply,) = nodes.decide(Request(op, [Member(key, FIVE, 2, True, tick, 1) for key in ("a1", "a2")]))
    assert nodes.sent() == [{1: [op.value], 2: [op.value]}]
    left = {Op.PEEK: 3, Op.RESET: 5, Op.CHARGE: 1, Op.GIVE_BACK: 4}[op]
    assert [nodes.left(FIVE, "a1"), nodes.left(FIVE, "a2")] == [left, left]
    assert [outcome.decision.remaining for outcome in reply] == [left, left]


def test_empty_batch() -> None:
    assert Nodes().decide() == []


# -- nodes that are down -----------------------------------------------------------------------------------------------


def partly(nodes: Nodes, *batch: Request) -> list[list[tuple[bool, int] | str]]:
    with pytest.raises(PartialStoreError) as raised:
        nodes.decide(*batch)
    return [summary(reply) for reply in raised.value.outcomes]


def test_reached_members_still_bind() -> None:
    nodes = Nodes(down=[2])
    request = take(Member("a1", FIVE, 1), Member("a2", FIVE, 1), Member("a3", NONE, 1))
    assert partly(nodes, request) == [[(True, 4), "away", (True, 0)]]
    assert partly(nodes, request) == [[(True, 4), "away", (False, 0)]], "denied by a reachable node, and given back"
    assert nodes.left(FIVE, "a1") == 4


def test_other_requests_are_not_affected() -> None:
    replies = partly(Nodes(down=[2]), take(Member("a2", FIVE, 1)), take(Member("a1", FIVE, 1)))
    assert replies == [["away"], [(True, 4)]]


def test_lost_give_back_keeps_the_charge_and_the_denial() -> None:
    nodes = Nodes()
    nodes.decide(take(Member("a2", NONE, 1)))
    rounds = decide_by_node([take(Member("a1", FIVE, 1), Member("a2", NONE, 1))], node_of, node_of_record, FakeClock())
    sent = next(rounds)
    sent = rounds.send({1: nodes.stores[1].apply(sent[1])})
    sent = rounds.send({2: nodes.stores[2].apply(sent[2])})
    assert [request.op for request in sent[1]] == [Op.GIVE_BACK]
    with pytest.raises(StopIteration) as over:
        rounds.send({1: DOWN})
    assert summary(over.value.value[0]) == [(True, 4), (False, 0)]


def test_partial_failure_of_a_node() -> None:
    request = take(Member("a1", FIVE, 1), Member("b1", FIVE, 1), Member("a2", FIVE, 1))
    rounds = decide_by_node([request], node_of, node_of_record, FakeClock())
    nodes = Nodes()
    first = nodes.stores[1].apply([take(Member("a1", FIVE, 1))])[0][0]
    next(rounds)
    sent = rounds.send({1: PartialStoreError([[first, DOWN]])})
    with pytest.raises(PartialStoreError) as raised:
        rounds.send({2: nodes.stores[2].apply(sent[2])})
    assert [summary(reply) for reply in raised.value.outcomes] == [[(True, 4), "away", (True, 4)]]


# -- idempotency records -----------------------------------------------------------------------------------------------

BODY = bytes(16)


def new_record(name: str, *keys: str) -> tuple[IdempotencyRecord, list[Request]]:
    record = IdempotencyRecord(name, BODY, b"")
    return record, [Request(Op.TAKE, [Member(key, FIVE, 1)], record) for key in keys]


def test_members_on_the_node_of_the_record_need_no_claim() -> None:
    nodes = Nodes()
    _, group = new_record("n1", "a1", "b1")
    assert [summary(reply) for reply in nodes.decide(*group)] == [[(True, 4)], [(True, 4)]]
    assert nodes.sent() == [{1: ["take", "take"]}]
    repeat, group = new_record("n1", "a1", "b1")
    assert nodes.decide(*group) == [[], []]
    assert repeat.replay is not None
    assert nodes.left(FIVE, "a1") == 4


def test_members_on_other_nodes_are_decided_between_claim_and_save() -> None:
    nodes = Nodes()
    _, group = new_record("n1", "a1", "a2", "a3")
    nodes.decide(*group)
    assert nodes.sent() == [{1: ["claim"]}, {1: ["take"], 2: ["take"], 3: ["take"]}, {1: ["save"]}]
    nodes.rounds.clear()
    repeat, group = new_record("n1", "a1", "a2", "a3")
    assert nodes.decide(*group) == [[], [], []]
    assert nodes.sent() == [{1: ["claim"]}]
    assert repeat.replay is not None
    assert [numbers[:2] for numbers in repeat.replay.numbers] == [(True, 4), (True, 4), (True, 4)]
    assert repeat.replay.now_us == nodes.clock.ticks()
    elsewhere, group = new_record("n1", "a1")
    assert nodes.decide(*group) == [[]], "also when all its members are on the record's node"
    assert elsewhere.replay is not None


def test_other_requests_do_not_wait_for_a_claim() -> None:
    nodes = Nodes()
    _, group = new_record("n1", "a2")
    replies = nodes.decide(take(Member("b3", FIVE, 1)), *group, take(Member("b3", FIVE, 1)))
    assert [summary(reply) for reply in replies] == [[(True, 4)], [(True, 4)], [(True, 3)]]
    assert nodes.sent() == [{3: ["take", "take"], 1: ["claim"]}, {2: ["take"]}, {1: ["save"]}]


def test_repeats_in_one_batch_run_in_order() -> None:
    nodes = Nodes()
    first, group = new_record("n1", "a2", "a3")
    second, same = new_record("n1", "a2", "a3")
    third, other = new_record("n1", "a1")
    replies = nodes.decide(*group, *same, *other)
    assert [len(reply) for reply in replies] == [1, 1, 0, 0, 0]
    assert [record.replay is not None for record in (first, second, third)] == [False, True, True]
    assert [nodes.left(FIVE, key) for key in ("a1", "a2", "a3")] == [5, 4, 4]


def test_request_without_members_is_saved() -> None:
    nodes = Nodes()
    assert nodes.decide(Request(Op.TAKE, [], IdempotencyRecord("n1", BODY, b"note"))) == [[]]
    repeat, group = new_record("n1", "a1")
    assert nodes.decide(*group) == [[]]
    assert repeat.replay is not None
    assert (repeat.replay.note, repeat.replay.numbers) == (b"note", [])


def test_claim_of_another_caller_is_pending() -> None:
    nodes = Nodes()
    nodes.stores[1].apply([Request(Op.CLAIM, [], IdempotencyRecord("n1", BODY, b""))])
    late, group = new_record("n1", "a2")
    assert nodes.decide(*group) == [[]]
    assert (late.replay, late.pending) == (None, True)
    assert nodes.sent() == [{1: ["claim"]}]


def test_denial_is_saved_after_the_give_back() -> None:
    nodes = Nodes()
    nodes.decide(take(Member("a2", NONE, 1)))
    record = IdempotencyRecord("n3", BODY, b"")
    request = Request(Op.TAKE, [Member("a1", FIVE, 1), Member("a2", NONE, 1)], record)
    assert [summary(reply) for reply in nodes.decide(request)] == [[(True, 5), (False, 0)]]
    assert nodes.left(FIVE, "a1") == 5
    repeat = IdempotencyRecord("n3", BODY, b"")
    nodes.decide(Request(Op.TAKE, request.members, repeat))
    assert repeat.replay is not None
    assert [numbers[0] for numbers in repeat.replay.numbers] == [True, False]


def test_failed_member_releases_the_claim() -> None:
    nodes = Nodes(down=[3])
    _, group = new_record("n1", "a2", "a3")
    assert partly(nodes, *group, take(Member("b2", FIVE, 1))) == [[(True, 4)], ["away"], [(True, 4)]]
    assert nodes.sent()[-1] == {1: ["release"]}
    nodes.down.clear()
    again, group = new_record("n1", "a2", "a3")
    assert [len(reply) for reply in nodes.decide(*group)] == [1, 1]
    assert (again.replay, again.pending) == (None, False)


def test_failed_claim_leaves_members_unchanged() -> None:
    nodes = Nodes(down=[1])
    record, group = new_record("n1", "a2", "a3")
    assert partly(nodes, *group) == [["away"], ["away"]]
    assert nodes.sent() == [{1: ["claim"]}]
    assert (record.replay, record.pending) == (None, False)
    assert nodes.left(FIVE, "a2") == 5


def test_decision_stands_if_it_cannot_be_saved() -> None:
    nodes = Nodes()
    _, group = new_record("n1", "a2")
    rounds = decide_by_node(group, node_of, node_of_record, nodes.clock)
    sent = next(rounds)
    sent = rounds.send({1: nodes.stores[1].apply(sent[1])})
    sent = rounds.send({2: nodes.stores[2].apply(sent[2])})
    assert [request.op for request in sent[1]] == [Op.SAVE]
    with pytest.raises(StopIteration) as over:
        rounds.send({1: DOWN})
    assert [summary(reply) for reply in over.value.value] == [[(True, 4)]]
    late, group = new_record("n1", "a2")
    nodes.decide(*group)
    assert late.pending, "the outcome is unknown, so it is not decided again"


def test_record_operation_goes_to_its_node_and_reports_failure() -> None:
    nodes = Nodes(down=[2])
    record = IdempotencyRecord("n1", BODY, b"")
    assert nodes.decide(Request(Op.CLAIM, [], record)) == [[]]
    assert nodes.decide(Request(Op.RELEASE, [], record)) == [[]]
    assert partly(nodes, Request(Op.CLAIM, [], IdempotencyRecord("n2", BODY, b"")), take(Member("a1", FIVE, 1))) == [
        ["away"],
        [(True, 4)],
    ]
    _, group = new_record("n2", "a1")
    nested = decide_by_node(group, node_of, node_of_record, nodes.clock)
    next(nested)
    with pytest.raises(PartialStoreError):
        nested.send({2: PartialStoreError([[DOWN]])})


# -- any batch --------------------------------------------------------------------------------------------------------

CHAINS = st.lists(
    st.lists(
        st.tuples(st.sampled_from(["a1", "b1", "a2", "b2", "a3"]), st.integers(0, 3), st.booleans()),
        min_size=1,
        max_size=4,
        unique_by=lambda member: member[0],
    ),
    min_size=1,
    max_size=12,
)


@settings(max_examples=examples(200), deadline=None)
@given(chains=CHAINS)
def test_sequential_requests_match_one_store(chains: list[list[tuple[str, int, bool]]]) -> None:
    nodes, one = Nodes(), MemoryStore(clock=FakeClock(1_700_000_000))
    for chain in chains:
        request = take(*(Member(key, FIVE, cost, binds) for key, cost, binds in chain))
        (reply,), (expected,) = nodes.decide(request), one.apply([request])
        assert summary(reply) == summary(expected)


@settings(max_examples=examples(200), deadline=None)
@given(chains=CHAINS)
def test_concurrent_requests_charge_exactly_what_is_admitted(chains: list[list[tuple[str, int, bool]]]) -> None:
    nodes = Nodes()
    batch = [take(*(Member(key, FIVE, cost, binds) for key, cost, binds in chain)) for chain in chains]
    used = dict.fromkeys(("a1", "b1", "a2", "b2", "a3"), 0)
    for request, reply in zip(batch, nodes.decide(*batch), strict=True):
        outcomes = list(zip(request.members, reply, strict=True))
        if all(outcome.decision.allowed for member, outcome in outcomes if member.binds):
            for member, outcome in outcomes:
                used[member.key] += member.cost if outcome.decision.allowed else 0
    assert used == {key: 5 - nodes.left(FIVE, key) for key in used}
