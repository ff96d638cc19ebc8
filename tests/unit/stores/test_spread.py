"""Requests over several places: who is asked when, what is given back, and what is said when a place is away.

The places here are memory stores, a dictionary of them; a place that is away answers with its error.
"""

from __future__ import annotations

from collections.abc import Sequence

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from example_counts import examples
from headgate.core.algorithms import Algorithm, build
from headgate.core.limit import Limit
from headgate.errors import StoreError
from headgate.stores.memory import MemoryStore
from headgate.stores.port import Member, Once, Op, Outcome, PartlyAnswered, Replies, Request
from headgate.stores.spread import Round, spread
from headgate.testing import FakeClock

AWAY = StoreError("away")


class Places:
    """Memory stores by number; a member's place is the number its key ends with."""

    def __init__(self, *, away: Sequence[int] = ()) -> None:
        self.clock = FakeClock(1_700_000_000)
        self.stores = {number: MemoryStore(clock=self.clock) for number in range(10)}
        self.away = set(away)
        self.rounds: list[Round] = []

    def decide(self, *batch: Request) -> Replies:
        rounds = spread(batch, place_of, place_of_record, self.clock)
        try:
            asked = next(rounds)
            while True:
                self.rounds.append(asked)
                asked = rounds.send({place: self.answer(place, requests) for place, requests in asked.items()})
        except StopIteration as over:
            replies: Replies = over.value
            return replies

    def answer(self, place: int, requests: list[Request]) -> Replies | StoreError:
        return AWAY if place in self.away else self.stores[place].apply(requests)

    def left(self, algorithm: Algorithm, key: str) -> int:
        return self.stores[int(key[-1])].apply([Request(Op.PEEK, [Member(key, algorithm, 1)])])[0][0].decision.remaining

    def asked(self) -> list[dict[int, list[str]]]:
        """By round and place, what was asked."""
        return [{place: [r.op.value for r in requests] for place, requests in asked.items()} for asked in self.rounds]


def place_of(member: Member) -> int:
    return int(member.key[-1])


def place_of_record(name: str) -> int:
    return int(name[-1])


def limit(count: int, name: str = "limit", algorithm: str = "fixed_window") -> Algorithm:
    return build(Limit(count, 3600, algorithm=algorithm), name)


def take(*members: Member) -> Request:
    return Request(Op.TAKE, members)


def told(reply: Sequence[Outcome | StoreError]) -> list[tuple[bool, int] | str]:
    return [
        (item.decision.allowed, item.decision.remaining) if isinstance(item, Outcome) else str(item) for item in reply
    ]


FIVE, TWO, NONE = limit(5, "five"), limit(2, "two"), limit(1, "none")


def test_one_place_is_one_round() -> None:
    places = Places()
    replies = places.decide(*(take(Member("a1", FIVE, 1), Member("b1", TWO, 1)) for _ in range(3)))
    assert [told(reply) for reply in replies] == [
        [(True, 4), (True, 1)],
        [(True, 3), (True, 0)],
        [(True, 3), (False, 0)],
    ]
    assert places.asked() == [{1: ["take", "take", "take"]}]


def test_places_are_asked_in_order_whatever_the_order_of_members() -> None:
    places = Places()
    (reply,) = places.decide(take(Member("a3", FIVE, 1), Member("a1", TWO, 1), Member("a2", FIVE, 2)))
    assert told(reply) == [(True, 4), (True, 1), (True, 3)]
    assert places.asked() == [{1: ["take"]}, {2: ["take"]}, {3: ["take"]}]


def test_requests_of_a_batch_travel_together() -> None:
    places = Places()
    replies = places.decide(
        take(Member("a1", FIVE, 1)), take(Member("a2", FIVE, 1), Member("a1", FIVE, 1)), take(Member("a2", FIVE, 1))
    )
    assert [told(reply) for reply in replies] == [[(True, 4)], [(True, 3), (True, 3)], [(True, 4)]]
    assert places.asked() == [{1: ["take", "take"], 2: ["take"]}, {2: ["take"]}]


@pytest.mark.parametrize("algorithm", ["token_bucket", "leaky_bucket", "gcra", "fixed_window", "sliding_window_log"])
def test_a_denial_gives_back_what_was_taken_and_looks_at_the_rest(algorithm: str) -> None:
    places = Places()
    wide, tight = limit(5, "wide", algorithm), limit(2, "tight", algorithm)
    request = take(Member("a1", wide, 1), Member("a2", tight, 1), Member("a3", wide, 1))
    for _ in range(2):
        places.decide(request)
    places.rounds.clear()
    (reply,) = places.decide(request)
    assert told(reply) == [(True, 3), (False, 0), (True, 3)]
    assert places.asked() == [{1: ["take"]}, {2: ["take"]}, {1: ["give back"], 3: ["peek"]}]
    assert [places.left(wide, "a1"), places.left(tight, "a2"), places.left(wide, "a3")] == [3, 0, 3]


def test_a_denial_at_the_first_place_gives_nothing_back() -> None:
    places = Places()
    places.decide(take(Member("a1", NONE, 1)))
    places.rounds.clear()
    (reply,) = places.decide(take(Member("a1", NONE, 1), Member("a2", FIVE, 1)))
    assert told(reply) == [(False, 0), (True, 5)]
    assert places.asked() == [{1: ["take"]}, {2: ["peek"]}]


def test_a_denial_at_the_last_place_needs_a_round_only_for_what_was_charged() -> None:
    places = Places()
    places.decide(take(Member("a2", NONE, 1)))
    places.rounds.clear()
    (reply,) = places.decide(take(Member("a1", FIVE, 0), Member("a2", NONE, 1)))
    assert told(reply) == [(True, 5), (False, 0)]
    assert places.asked() == [{1: ["take"]}, {2: ["take"]}]


def test_a_shadow_never_denies_and_is_given_back_too() -> None:
    places = Places()
    shadow = Member("a1", TWO, 1, binds=False)
    for _ in range(2):
        places.decide(take(shadow, Member("a2", FIVE, 1)))
    (reply,) = places.decide(take(shadow, Member("a2", FIVE, 1)))
    assert told(reply) == [(False, 0), (True, 2)], "it would have denied, and did not"
    places = Places()
    places.decide(take(Member("a2", NONE, 1)))
    places.decide(take(shadow, Member("a2", NONE, 1)))
    assert places.left(TWO, "a1") == 2


@pytest.mark.parametrize("op", [Op.PEEK, Op.RESET, Op.CHARGE, Op.GIVE_BACK])
def test_all_but_a_take_is_one_round(op: Op) -> None:
    places = Places()
    places.decide(take(Member("a1", FIVE, 2), Member("a2", FIVE, 2)))
    places.rounds.clear()
    tick = places.clock.ticks()
    (reply,) = places.decide(Request(op, [Member(key, FIVE, 2, True, tick, 1) for key in ("a1", "a2")]))
    assert places.asked() == [{1: [op.value], 2: [op.value]}]
    left = {Op.PEEK: 3, Op.RESET: 5, Op.CHARGE: 1, Op.GIVE_BACK: 4}[op]
    assert [places.left(FIVE, "a1"), places.left(FIVE, "a2")] == [left, left]
    assert [outcome.decision.remaining for outcome in reply] == [left, left]


def test_no_requests() -> None:
    assert Places().decide() == []


# -- places that are away ---------------------------------------------------------------------------------------------


def partly(places: Places, *batch: Request) -> list[list[tuple[bool, int] | str]]:
    with pytest.raises(PartlyAnswered) as raised:
        places.decide(*batch)
    return [told(reply) for reply in raised.value.replies]


def test_what_is_reached_still_binds() -> None:
    places = Places(away=[2])
    request = take(Member("a1", FIVE, 1), Member("a2", FIVE, 1), Member("a3", NONE, 1))
    assert partly(places, request) == [[(True, 4), "away", (True, 0)]]
    assert partly(places, request) == [[(True, 4), "away", (False, 0)]], "denied by what was reached, and given back"
    assert places.left(FIVE, "a1") == 4


def test_other_requests_are_not_harmed() -> None:
    replies = partly(Places(away=[2]), take(Member("a2", FIVE, 1)), take(Member("a1", FIVE, 1)))
    assert replies == [["away"], [(True, 4)]]


def test_a_return_that_is_lost_leaves_the_charge_and_the_denial() -> None:
    places = Places()
    places.decide(take(Member("a2", NONE, 1)))
    rounds = spread([take(Member("a1", FIVE, 1), Member("a2", NONE, 1))], place_of, place_of_record, FakeClock())
    asked = next(rounds)
    asked = rounds.send({1: places.stores[1].apply(asked[1])})
    asked = rounds.send({2: places.stores[2].apply(asked[2])})
    assert [request.op for request in asked[1]] == [Op.GIVE_BACK]
    with pytest.raises(StopIteration) as over:
        rounds.send({1: AWAY})
    assert told(over.value.value[0]) == [(True, 4), (False, 0)]


def test_a_place_that_answered_in_part() -> None:
    request = take(Member("a1", FIVE, 1), Member("b1", FIVE, 1), Member("a2", FIVE, 1))
    rounds = spread([request], place_of, place_of_record, FakeClock())
    places = Places()
    first = places.stores[1].apply([take(Member("a1", FIVE, 1))])[0][0]
    next(rounds)
    asked = rounds.send({1: PartlyAnswered([[first, AWAY]])})
    with pytest.raises(PartlyAnswered) as raised:
        rounds.send({2: places.stores[2].apply(asked[2])})
    assert [told(reply) for reply in raised.value.replies] == [[(True, 4), "away", (True, 4)]]


# -- what is decided once ---------------------------------------------------------------------------------------------

BODY = bytes(16)


def once(name: str, *keys: str) -> tuple[Once, list[Request]]:
    record = Once(name, BODY, b"")
    return record, [Request(Op.TAKE, [Member(key, FIVE, 1)], record) for key in keys]


def test_members_where_the_record_is_are_decided_there_in_one_step() -> None:
    places = Places()
    _, group = once("n1", "a1", "b1")
    assert [told(reply) for reply in places.decide(*group)] == [[(True, 4)], [(True, 4)]]
    assert places.asked() == [{1: ["take", "take"]}]
    repeat, group = once("n1", "a1", "b1")
    assert places.decide(*group) == [[], []]
    assert repeat.kept is not None
    assert places.left(FIVE, "a1") == 4


def test_members_elsewhere_are_decided_between_a_claim_and_what_is_kept() -> None:
    places = Places()
    _, group = once("n1", "a1", "a2", "a3")
    places.decide(*group)
    assert places.asked() == [{1: ["claim"]}, {1: ["take"], 2: ["take"], 3: ["take"]}, {1: ["keep"]}]
    places.rounds.clear()
    repeat, group = once("n1", "a1", "a2", "a3")
    assert places.decide(*group) == [[], [], []]
    assert places.asked() == [{1: ["claim"]}]
    assert repeat.kept is not None
    assert [numbers[:2] for numbers in repeat.kept.numbers] == [(True, 4), (True, 4), (True, 4)]
    assert repeat.kept.now_us == places.clock.ticks()
    elsewhere, group = once("n1", "a1")
    assert places.decide(*group) == [[]], "also when all its members are where the record is"
    assert elsewhere.kept is not None


def test_other_requests_do_not_wait_for_a_claim() -> None:
    places = Places()
    _, group = once("n1", "a2")
    replies = places.decide(take(Member("b3", FIVE, 1)), *group, take(Member("b3", FIVE, 1)))
    assert [told(reply) for reply in replies] == [[(True, 4)], [(True, 4)], [(True, 3)]]
    assert places.asked() == [{3: ["take", "take"], 1: ["claim"]}, {2: ["take"]}, {1: ["keep"]}]


def test_repeats_in_one_batch_go_one_after_the_other() -> None:
    places = Places()
    first, group = once("n1", "a2", "a3")
    second, same = once("n1", "a2", "a3")
    third, other = once("n1", "a1")
    replies = places.decide(*group, *same, *other)
    assert [len(reply) for reply in replies] == [1, 1, 0, 0, 0]
    assert [record.kept is not None for record in (first, second, third)] == [False, True, True]
    assert [places.left(FIVE, key) for key in ("a1", "a2", "a3")] == [5, 4, 4]


def test_what_has_no_members_is_kept_too() -> None:
    places = Places()
    assert places.decide(Request(Op.TAKE, [], Once("n1", BODY, b"note"))) == [[]]
    repeat, group = once("n1", "a1")
    assert places.decide(*group) == [[]]
    assert repeat.kept is not None
    assert (repeat.kept.note, repeat.kept.numbers) == (b"note", [])


def test_somebody_elses_claim_is_pending() -> None:
    places = Places()
    places.stores[1].apply([Request(Op.CLAIM, [], Once("n1", BODY, b""))])
    late, group = once("n1", "a2")
    assert places.decide(*group) == [[]]
    assert (late.kept, late.pending) == (None, True)
    assert places.asked() == [{1: ["claim"]}]


def test_a_denial_is_kept_when_what_was_taken_is_given_back() -> None:
    places = Places()
    places.decide(take(Member("a2", NONE, 1)))
    record = Once("n3", BODY, b"")
    request = Request(Op.TAKE, [Member("a1", FIVE, 1), Member("a2", NONE, 1)], record)
    assert [told(reply) for reply in places.decide(request)] == [[(True, 5), (False, 0)]]
    assert places.left(FIVE, "a1") == 5
    repeat = Once("n3", BODY, b"")
    places.decide(Request(Op.TAKE, request.members, repeat))
    assert repeat.kept is not None
    assert [numbers[0] for numbers in repeat.kept.numbers] == [True, False]


def test_a_member_that_is_away_releases_the_claim() -> None:
    places = Places(away=[3])
    _, group = once("n1", "a2", "a3")
    assert partly(places, *group, take(Member("b2", FIVE, 1))) == [[(True, 4)], ["away"], [(True, 4)]]
    assert places.asked()[-1] == {1: ["release"]}
    places.away.clear()
    again, group = once("n1", "a2", "a3")
    assert [len(reply) for reply in places.decide(*group)] == [1, 1]
    assert (again.kept, again.pending) == (None, False)


def test_a_record_that_is_away_leaves_the_members_alone() -> None:
    places = Places(away=[1])
    record, group = once("n1", "a2", "a3")
    assert partly(places, *group) == [["away"], ["away"]]
    assert places.asked() == [{1: ["claim"]}]
    assert (record.kept, record.pending) == (None, False)
    assert places.left(FIVE, "a2") == 5


def test_what_is_decided_stands_although_it_cannot_be_kept() -> None:
    places = Places()
    _, group = once("n1", "a2")
    rounds = spread(group, place_of, place_of_record, places.clock)
    asked = next(rounds)
    asked = rounds.send({1: places.stores[1].apply(asked[1])})
    asked = rounds.send({2: places.stores[2].apply(asked[2])})
    assert [request.op for request in asked[1]] == [Op.KEEP]
    with pytest.raises(StopIteration) as over:
        rounds.send({1: AWAY})
    assert [told(reply) for reply in over.value.value] == [[(True, 4)]]
    late, group = once("n1", "a2")
    places.decide(*group)
    assert late.pending, "nobody knows what came of it, so it is not decided again"


def test_what_is_about_a_record_alone_goes_to_its_place_and_its_failure_is_heard() -> None:
    places = Places(away=[2])
    record = Once("n1", BODY, b"")
    assert places.decide(Request(Op.CLAIM, [], record)) == [[]]
    assert places.decide(Request(Op.RELEASE, [], record)) == [[]]
    assert partly(places, Request(Op.CLAIM, [], Once("n2", BODY, b"")), take(Member("a1", FIVE, 1))) == [
        ["away"],
        [(True, 4)],
    ]
    _, group = once("n2", "a1")
    nested = spread(group, place_of, place_of_record, places.clock)
    next(nested)
    with pytest.raises(PartlyAnswered):
        nested.send({2: PartlyAnswered([[AWAY]])})


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
def test_one_by_one_it_decides_as_one_store_would(chains: list[list[tuple[str, int, bool]]]) -> None:
    places, one = Places(), MemoryStore(clock=FakeClock(1_700_000_000))
    for chain in chains:
        request = take(*(Member(key, FIVE, cost, binds) for key, cost, binds in chain))
        (reply,), (expected,) = places.decide(request), one.apply([request])
        assert told(reply) == told(expected)


@settings(max_examples=examples(200), deadline=None)
@given(chains=CHAINS)
def test_together_they_charge_exactly_what_is_admitted(chains: list[list[tuple[str, int, bool]]]) -> None:
    places = Places()
    batch = [take(*(Member(key, FIVE, cost, binds) for key, cost, binds in chain)) for chain in chains]
    used = dict.fromkeys(("a1", "b1", "a2", "b2", "a3"), 0)
    for request, reply in zip(batch, places.decide(*batch), strict=True):
        outcomes = list(zip(request.members, reply, strict=True))
        if all(outcome.decision.allowed for member, outcome in outcomes if member.binds):
            for member, outcome in outcomes:
                used[member.key] += member.cost if outcome.decision.allowed else 0
    assert used == {key: 5 - places.left(FIVE, key) for key in used}
