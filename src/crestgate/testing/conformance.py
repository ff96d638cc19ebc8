"""Conformance tests for stores, Crestgate's own and custom ones.

Subclass `StoreConformance` in a test file, implement `make_store`, and let pytest find the tests (or call the methods
yourself):

    class TestMyStore(StoreConformance):
        def make_store(self, clock):
            return MyStore(clock=clock)

Each test creates its own stores, on virtual time, and runs every algorithm in `algorithms`. Calendar windows need a
time zone database: the machine's, or the extra `tz`.
"""

from __future__ import annotations

from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor

from crestgate.core.algorithms import ALGORITHMS, BUILT_IN, CONCURRENCY, Algorithm, build
from crestgate.core.decision import Decision
from crestgate.core.limit import Limit
from crestgate.errors import StoreError
from crestgate.stores.port import Member, Op, Outcome, Request, Store
from crestgate.testing.clock import FakeClock

__all__ = ["StoreConformance"]

START = 1_700_000_000.25
CLOCK_CHANGE = 1_774_612_800.25  # 2026-03-27 12:00 UTC
STRANGE_KEYS = (
    "a", "A", "\u00e1", "a\u0301", "a ", " a", "a\t", "a\n", "a\x00", "a\x00b", "a:b", "a/b", "a{b}", "{a}b", "a|b",
    "a%62", "a%", "ab", "\u00df", "ss", "\ufb03", "ffi", "\u00e9" * 512, "k" * 1024, "\U0001f6a6", "\U0001f6a6" * 2,
    "'; --", '"a"', "a\\", "a,b", "a;b", "*",
)  # fmt: skip


class StoreConformance:
    """The guarantees of a store (see `crestgate.stores.port`), as tests. Subclass it and implement `make_store`."""

    algorithms: tuple[str, ...] = BUILT_IN
    threads = 8

    def make_store(self, clock: FakeClock) -> Store:
        """A new, empty store on this clock. The test closes it."""
        raise NotImplementedError("implement make_store(clock)")

    # -- one counter ------------------------------------------------------------------------------------------------

    def test_admits_up_to_the_limit_then_denies(self) -> None:
        for store, _, algorithm in self._stores(5, 60):
            results = [take(store, algorithm) for _ in range(7)]
            assert [d.allowed for d in results] == [True] * 5 + [False] * 2, algorithm.limit
            assert [d.remaining for d in results] == [4, 3, 2, 1, 0, 0, 0], algorithm.limit
            assert {d.limit for d in results} == {5}
            assert results[-1].reason == "limited"

    def test_retry_after_is_the_first_tick_that_admits(self) -> None:
        for count, period, cost in ((5, 60.0, 1), (7, 1.0, 3), (3, 0.000007, 2), (1000, 86400.0, 999)):
            for store, clock, algorithm in self._stores(count, period):
                while (denied := take(store, algorithm, cost=cost)).allowed:
                    pass
                assert denied.retry_after is not None
                clock.advance(denied.retry_after - 0.000001)
                assert not take(store, algorithm, cost=cost).allowed, (algorithm.limit, "one tick early")
                clock.advance(0.000001)
                assert take(store, algorithm, cost=cost).allowed, (algorithm.limit, "at retry_after")

    def test_denial_and_peek_change_nothing(self) -> None:
        for store, clock, algorithm in self._stores(5, 60):
            take(store, algorithm, cost=3)
            before = peek(store, algorithm)
            assert not take(store, algorithm, cost=4).allowed
            assert peek(store, algorithm) == before
            clock.advance(1)
            later = peek(store, algorithm)
            assert not take(store, algorithm, cost=5).allowed
            assert peek(store, algorithm) == later

    def test_remaining_is_the_number_of_further_admissions(self) -> None:
        for store, clock, algorithm in self._stores(10, 10):
            take(store, algorithm, cost=7)
            for seconds in (0.0, 1.3, 4.9, 6.4):
                clock.advance(seconds)
                remaining = peek(store, algorithm).remaining
                assert [take(store, algorithm).allowed for _ in range(remaining)] == [True] * remaining
                assert not take(store, algorithm).allowed, (algorithm.limit, seconds)

    def test_reset_deletes_the_counter(self) -> None:
        for store, _, algorithm in self._stores(5, 60):
            take(store, algorithm, cost=5)
            apply(store, Op.RESET, Member("key", algorithm, 0))
            assert take(store, algorithm, cost=5).allowed, algorithm.limit

    def test_full_capacity_after_reset_after(self) -> None:
        for store, clock, algorithm in self._stores(5, 60):
            used = take(store, algorithm, cost=4)
            clock.advance(used.reset_after - 0.000001)
            assert peek(store, algorithm).remaining < 5, algorithm.limit
            clock.advance(0.000001)
            assert peek(store, algorithm).remaining == 5, algorithm.limit
            assert peek(store, algorithm).reset_after == 0.0

    def test_cost_zero_is_admitted_and_cost_above_limit_never_is(self) -> None:
        for store, _, algorithm in self._stores(5, 60):
            assert take(store, algorithm, cost=5).allowed
            assert take(store, algorithm, cost=0).allowed, algorithm.limit
            never = take(store, algorithm, cost=6)
            assert (never.allowed, never.reason, never.retry_after) == (False, "cost_exceeds_limit", None)

    def test_limit_of_zero_blocks(self) -> None:
        for store, _, algorithm in self._stores(0, 60):
            for cost in (0, 1):
                blocked = take(store, algorithm, cost=cost)
                assert (blocked.allowed, blocked.reason, blocked.retry_after) == (False, "blocked", None)

    def test_changed_limit_keeps_usage(self) -> None:
        for store, _, algorithm in self._stores(100, 60):
            take(store, algorithm, cost=60)
            raised = self._build(algorithm.limit.algorithm, 1000, 60)
            assert peek(store, raised).remaining == 940, algorithm.limit
            for other in self.algorithms:
                changed = self._build(other, 1000, 3600)
                assert peek(store, changed).remaining == 940, (algorithm.limit, other)

    def test_clock_steps_neither_reset_nor_freeze_a_counter(self) -> None:
        for store, clock, algorithm in self._stores(5, 60):
            take(store, algorithm, cost=5)
            clock.advance(-30)
            lagging = take(store, algorithm)
            assert not lagging.allowed, algorithm.limit
            assert lagging.retry_after is not None
            assert lagging.retry_after > 30
            clock.advance(-3600)  # far more than a period: the counter is rebased
            rebased = take(store, algorithm)
            assert rebased.retry_after is not None
            assert rebased.retry_after <= 60, algorithm.limit
            clock.advance(rebased.retry_after)
            assert take(store, algorithm).allowed, algorithm.limit

    def test_cost_of_zero_rebases_after_a_clock_step(self) -> None:
        for store, clock, algorithm in self._stores(5, 60):
            take(store, algorithm, cost=5)
            clock.advance(-3600)
            assert take(store, algorithm, cost=0).allowed
            clock.advance(3600)
            assert take(store, algorithm, cost=5).allowed, algorithm.limit

    # -- charges and give-backs -------------------------------------------------------------------------------------

    def test_give_back_restores_capacity(self) -> None:
        for store, _, algorithm in self._stores(5, 60):
            outcome = apply(store, Op.TAKE, Member("key", algorithm, 4))[0]
            apply(store, Op.GIVE_BACK, Member("key", algorithm, 4, True, outcome.tick, 3))
            assert peek(store, algorithm).remaining == 4, algorithm.limit

    def test_give_back_of_recovered_units_has_no_effect(self) -> None:
        for store, clock, algorithm in self._stores(5, 60):
            outcome = apply(store, Op.TAKE, Member("key", algorithm, 5))[0]
            clock.advance(120)
            take(store, algorithm, cost=5)
            apply(store, Op.GIVE_BACK, Member("key", algorithm, 5, True, outcome.tick, 5))
            assert not take(store, algorithm).allowed, algorithm.limit

    def test_charge_may_leave_a_debt(self) -> None:
        for store, clock, algorithm in self._stores(5, 60):
            take(store, algorithm, cost=3)
            apply(store, Op.CHARGE, Member("key", algorithm, 6))
            owing = peek(store, algorithm)
            assert (owing.allowed, owing.remaining) == (False, 0), algorithm.limit
            assert owing.retry_after is not None
            clock.advance(owing.retry_after)
            assert take(store, algorithm).allowed, algorithm.limit

    def test_debt_is_at_most_one_full_limit(self) -> None:
        for store, clock, algorithm in self._stores(5, 60):
            for cost in (2**31 - 1, 3, 2**31 - 1):
                apply(store, Op.CHARGE, Member("key", algorithm, cost))
            assert not peek(store, algorithm).allowed, algorithm.limit
            clock.advance(2 * 60)
            assert take(store, algorithm).allowed, algorithm.limit

    def test_charge_never_lowers_the_usage_of_a_larger_limit(self) -> None:
        for store, _, algorithm in self._stores(1, 60):
            larger = self._build(algorithm.limit.algorithm, 100, 60)
            take(store, larger, cost=90)
            apply(store, Op.CHARGE, Member("key", algorithm, 50))
            assert peek(store, larger).remaining <= 10, algorithm.limit

    # -- calendar windows -------------------------------------------------------------------------------------------

    def test_calendar_window_ends_with_the_civil_day(self) -> None:
        for zone, hours in (("UTC", (24, 24, 24)), ("Europe/Berlin", (24, 23, 24)), ("Asia/Kathmandu", (24, 24, 24))):
            for store, clock, day in self._calendars(f"5/calendar day in {zone}"):
                clock.advance(take(store, day).reset_after)
                for length in hours:  # 28 to 30 March 2026
                    full = take(store, day, cost=5)
                    assert (full.allowed, full.reset_after) == (True, length * 3600), (zone, length)
                    clock.advance(length * 3600 - 0.000001)
                    assert not take(store, day).allowed, (zone, length, "one tick early")
                    clock.advance(0.000001)

    def test_calendar_months_have_their_own_lengths(self) -> None:
        for store, clock, month in self._calendars("5/calendar month in Europe/Berlin"):
            clock.advance(take(store, month).reset_after)
            for hours in (30 * 24, 31 * 24, 30 * 24, 31 * 24, 31 * 24, 30 * 24, 31 * 24 + 1, 30 * 24):  # from April
                used = take(store, month, cost=3)
                assert (used.remaining, used.reset_after) == (2, hours * 3600)
                clock.advance(hours * 3600)

    def test_give_back_stays_in_its_calendar_window(self) -> None:
        for store, clock, day in self._calendars("5/calendar day in Europe/Berlin"):
            outcome = apply(store, Op.TAKE, Member("key", day, 4))[0]
            apply(store, Op.GIVE_BACK, Member("key", day, 4, True, outcome.tick, 1))
            assert peek(store, day).remaining == 2
            clock.advance(outcome.decision.reset_after)
            take(store, day, cost=4)
            apply(store, Op.GIVE_BACK, Member("key", day, 4, True, outcome.tick, 3))
            assert peek(store, day).remaining == 1, "it was taken in another window"

    def test_changed_calendar_limit_keeps_usage(self) -> None:
        for store, clock, day in self._calendars("100/calendar day in Europe/Berlin"):
            take(store, day, cost=60)
            for text in ("1000/calendar day in Europe/Berlin", "1000/calendar month in Asia/Tokyo", "1000/minute"):
                assert peek(store, build(Limit.parse(text), "limit")).remaining == 940, text
            clock.advance(peek(store, day).reset_after)
            for text in ("1000/calendar day in Europe/Berlin", "1000/calendar month in Asia/Tokyo", "1000/minute"):
                assert peek(store, build(Limit.parse(text), "limit")).remaining == 1000, text
            take(store, build(Limit.parse("1000/minute"), "limit"), cost=60)
            assert peek(store, day).remaining == 40

    # -- classes: one counter with several ceilings -------------------------------------------------------------------

    def test_classes_share_one_counter(self) -> None:
        for store, _, batch, critical in self._classes():
            for used in range(8):
                decision = take(store, critical if used % 3 else batch)
                assert decision.allowed, (batch.limit, used)
                assert peek(store, batch).remaining == 7 - used, batch.limit
                assert peek(store, critical).remaining == 9 - used, batch.limit
            denied = take(store, batch)
            assert (denied.allowed, denied.reason, denied.limit, denied.remaining) == (False, "limited", 8, 0)
            last = [take(store, critical) for _ in range(3)]
            assert [d.allowed for d in last] == [True, True, False], batch.limit
            assert [d.remaining for d in last] == [1, 0, 0], batch.limit
            above = take(store, batch)  # what is used exceeds its own ceiling
            assert (above.allowed, above.remaining) == (False, 0), batch.limit
            never = take(store, batch, cost=9)
            assert (never.reason, never.retry_after) == ("cost_exceeds_limit", None), batch.limit

    def test_each_class_has_its_own_exact_retry_after(self) -> None:
        for used in (8, 9, 10):
            for store, clock, batch, critical in self._classes():
                take(store, critical, cost=used)
                clock.advance(0.1)
                denied = take(store, batch, cost=2)
                assert denied.retry_after, (batch.limit, used)
                clock.advance(denied.retry_after - 0.000001)
                assert not take(store, batch, cost=2).allowed, (batch.limit, used, "one tick early")
                clock.advance(0.000001)
                assert take(store, batch, cost=2).allowed, (batch.limit, used, "at retry_after")
            for store, clock, batch, critical in self._classes():
                take(store, batch)
                take(store, critical, cost=used - 1)
                denied = take(store, critical, cost=3)
                assert denied.retry_after, (batch.limit, used)
                later = take(store, batch, cost=3).retry_after
                assert later is not None
                assert later >= denied.retry_after, (batch.limit, used)
                clock.advance(denied.retry_after - 0.000001)
                assert not take(store, critical, cost=3).allowed, (batch.limit, used, "one tick early")
                clock.advance(0.000001)
                assert take(store, critical, cost=3).allowed, (batch.limit, used, "at retry_after")

    def test_alternating_classes_neither_lose_nor_add_usage(self) -> None:
        """As if one class alone had taken what both were granted: at each step, to the microsecond."""
        for store, clock, batch, critical in self._classes():
            granted = [0, 0]
            for step in range(24):
                algorithm, cost = (batch, 1 + step % 4 // 2) if step % 2 else (critical, 1 + step % 3)
                before = 10 - peek(store, critical).remaining
                decision = take(store, algorithm, cost=cost)
                assert decision.allowed is (before + cost <= decision.limit), (batch.limit, step)
                if decision.allowed:
                    granted[step % 2] += 1
                    assert take(store, critical, "alone", cost).allowed, (batch.limit, step)
                mixed, single = peek(store, critical), peek(store, critical, "alone")
                assert (mixed.remaining, mixed.reset_after) == (single.remaining, single.reset_after), batch.limit
                assert peek(store, batch).reset_after == mixed.reset_after, batch.limit
                clock.advance(0.731297)
            assert all(granted), (batch.limit, granted)

    def test_classes_give_back_and_charge_on_one_counter(self) -> None:
        for store, _, batch, critical in self._classes():
            outcome = apply(store, Op.TAKE, Member("key", batch, 5))[0]
            take(store, critical, cost=5)
            apply(store, Op.GIVE_BACK, Member("key", batch, 5, True, outcome.tick, 3))
            assert (peek(store, batch).remaining, peek(store, critical).remaining) == (1, 3), batch.limit
            apply(store, Op.CHARGE, Member("key", batch, 2))
            assert (peek(store, batch).remaining, peek(store, critical).remaining) == (0, 1), batch.limit
            apply(store, Op.CHARGE, Member("key", critical, 2))
            assert (peek(store, batch).allowed, peek(store, critical).allowed) == (False, False), batch.limit
            apply(store, Op.RESET, Member("key", batch, 0))
            assert (peek(store, batch).remaining, peek(store, critical).remaining) == (8, 10), batch.limit

    def test_classes_of_one_batch_are_decided_in_order(self) -> None:
        for store, _, batch, critical in self._classes():
            takes = ((critical, 7), (batch, 1), (batch, 1), (critical, 1), (batch, 1), (critical, 2), (critical, 1))
            replies = store.apply([Request(Op.TAKE, [Member("key", algorithm, cost)]) for algorithm, cost in takes])
            allowed = [reply[0].decision.allowed for reply in replies]
            assert allowed == [True, True, False, True, False, False, True], batch.limit

    def test_concurrent_classes_admit_exactly_their_ceilings(self) -> None:
        for store, _, batch, critical in self._classes(scale=10, period=86400):
            with ThreadPoolExecutor(self.threads) as pool:
                results = [pool.submit(take, store, batch) for _ in range(120)]
                assert sum(result.result().allowed for result in results) == 80, batch.limit
                results = [pool.submit(take, store, (batch, critical)[i % 2]) for i in range(80)]
                admitted = [result.result() for result in results if result.result().allowed]
            assert [d.limit for d in admitted] == [100] * 20, batch.limit

    # -- chains and batches -----------------------------------------------------------------------------------------

    def test_chain_is_all_or_nothing(self) -> None:
        for first in self.algorithms:
            for second in self.algorithms:
                store = self.make_store(FakeClock(START))
                small, large = self._build(first, 2, 60, "small"), self._build(second, 5, 60, "large")
                members = [Member("key", large, 1), Member("key", small, 1)]
                verdicts = [[o.decision.allowed for o in apply(store, Op.TAKE, *members)] for _ in range(4)]
                assert verdicts == [[True, True]] * 2 + [[True, False]] * 2
                assert peek(store, large).remaining == 3, "a denied chain must not consume"
                store.close()

    def test_non_binding_member_never_denies(self) -> None:
        for store, _, algorithm in self._stores(3, 60):
            shadow = self._build(algorithm.limit.algorithm, 1, 60, "shadow")
            members = [Member("key", algorithm, 1), Member("key", shadow, 1, binds=False)]
            verdicts = [[o.decision.allowed for o in apply(store, Op.TAKE, *members)] for _ in range(4)]
            assert verdicts == [[True, True], [True, False], [True, False], [False, False]], algorithm.limit
            assert peek(store, algorithm).remaining == 0

    def test_batch_is_decided_in_order(self) -> None:
        for store, _, algorithm in self._stores(3, 60):
            batch = [Request(Op.TAKE, [Member("key", algorithm, cost)]) for cost in (2, 2, 1, 1)]
            batch.append(Request(Op.TAKE, [Member("other", algorithm, 3)]))
            replies = store.apply(batch)
            assert [reply[0].decision.allowed for reply in replies] == [True, False, True, False, True]

    # -- keys, names, threads, close --------------------------------------------------------------------------------

    # -- slots that are held ----------------------------------------------------------------------------------------

    def test_renewed_slot_lives_on_and_an_expired_one_is_gone(self) -> None:
        for store, clock, algorithm in self._slots(2, 60):
            first = apply(store, Op.TAKE, Member("key", algorithm, 1))[0]
            clock.advance(30)
            second = apply(store, Op.TAKE, Member("key", algorithm, 1))[0]
            assert not take(store, algorithm).allowed
            clock.advance(29.999999)
            renewed = apply(store, Op.RENEW, Member("key", algorithm, 1, True, first.tick))[0]
            assert (renewed.decision.allowed, renewed.decision.remaining, renewed.decision.reset_after) == (
                True,
                0,
                60.0,
            )
            clock.advance(30.000001)
            assert peek(store, algorithm).remaining == 1, "the second was not renewed"
            gone = apply(store, Op.RENEW, Member("key", algorithm, 1, True, second.tick))[0]
            assert (gone.decision.allowed, gone.decision.remaining, gone.tick) == (False, 1, 0)
            old = apply(store, Op.RENEW, Member("key", algorithm, 1, True, first.tick))[0]
            assert not old.decision.allowed, "it has moved"
            apply(store, Op.GIVE_BACK, Member("key", algorithm, 1, True, renewed.tick, 1))
            assert peek(store, algorithm).remaining == 2
            assert not apply(store, Op.RENEW, Member("key", algorithm, 1, True, renewed.tick))[0].decision.allowed
            assert not apply(store, Op.RENEW, Member("nobody", algorithm, 1, True, renewed.tick))[0].decision.allowed

    def test_renewal_moves_only_its_own_part_of_a_tick(self) -> None:
        for store, clock, algorithm in self._slots(5, 60):
            outcomes = [apply(store, Op.TAKE, Member("key", algorithm, cost))[0] for cost in (1, 2, 2)]
            assert {outcome.tick for outcome in outcomes} == {outcomes[0].tick}
            clock.advance(20)
            moved = apply(store, Op.RENEW, Member("key", algorithm, 2, True, outcomes[1].tick))[0]
            clock.advance(40)
            assert peek(store, algorithm).remaining == 3
            again = apply(store, Op.RENEW, Member("key", algorithm, 2, True, moved.tick))[0]
            same = apply(store, Op.RENEW, Member("key", algorithm, 2, True, again.tick))[0]
            assert (again.decision.allowed, same.decision.allowed, same.tick) == (True, True, again.tick)

    def test_many_short_holds_under_a_long_one(self) -> None:
        for store, clock, algorithm in self._slots(40, 60):
            held = [apply(store, Op.TAKE, Member("key", algorithm, 1))[0].tick for _ in range(20)]
            for number in range(300):
                clock.advance(0.001)
                taken = apply(store, Op.TAKE, Member("key", algorithm, 1))[0]
                back = apply(store, Op.GIVE_BACK, Member("key", algorithm, 1, True, taken.tick, 1))[0]
                assert back.decision.remaining == 20, number
                if number % 10 == 0:
                    renewed = apply(store, Op.RENEW, Member("key", algorithm, 1, True, held.pop(0)))[0]
                    assert renewed.decision.allowed, number
                    held.append(renewed.tick)
            for tick in held:
                apply(store, Op.GIVE_BACK, Member("key", algorithm, 1, True, tick, 1))
            assert peek(store, algorithm).remaining == 40

    def test_member_that_peeks_denies_and_is_not_charged(self) -> None:
        for store, _, algorithm in self._slots(2, 60):
            other = self._build("token_bucket", 5, 60, "other")
            members = [Member("key", other, 1), Member("key", algorithm, 1, peeks=True)]
            for left in (4, 3):
                outcomes = apply(store, Op.TAKE, *members)
                assert [(o.decision.allowed, o.decision.remaining) for o in outcomes] == [(True, left), (True, 2)]
                assert outcomes[1].tick == 0
            assert take(store, algorithm, cost=2).allowed
            assert [o.decision.allowed for o in apply(store, Op.TAKE, *members)] == [True, False]
            assert peek(store, other).remaining == 3
            assert not apply(store, Op.TAKE, Member("key", algorithm, 1, peeks=True))[0].decision.allowed
            assert apply(store, Op.TAKE, Member("free", algorithm, 1, peeks=True))[0].decision.remaining == 2
            assert peek(store, algorithm, "free").remaining == 2

    def test_counters_are_isolated(self) -> None:
        for store, _, algorithm in self._stores(1, 60):
            for key in STRANGE_KEYS:
                assert take(store, algorithm, key).allowed, (algorithm.limit, key)
            for key in STRANGE_KEYS:
                assert not take(store, algorithm, key).allowed, (algorithm.limit, key)
        store = self.make_store(FakeClock(START))
        for name, key in (("a", "b/c"), ("a/b", "c"), ("a:b", "c"), ("a", "b:c"), ("ab", "c"), ("a", "bc")):
            assert take(store, self._build("token_bucket", 1, 60, name), key).allowed, (name, key)
        store.close()

    def test_concurrent_threads_admit_exactly_the_limit(self) -> None:
        for store, _, algorithm in self._stores(200, 86400):
            with ThreadPoolExecutor(self.threads) as pool:
                results = [pool.submit(take, store, algorithm) for _ in range(400)]
            assert sum(result.result().allowed for result in results) == 200, algorithm.limit

    def test_closed_store_raises_store_error(self) -> None:
        algorithm = self._build("token_bucket", 1, 60)
        store = self.make_store(FakeClock(START))
        store.close()
        store.close()
        try:
            take(store, algorithm)
        except StoreError:
            return
        raise AssertionError("a closed store must raise StoreError")

    def _stores(self, count: int, period: float) -> Iterator[tuple[Store, FakeClock, Algorithm]]:
        """A new store on a new clock, for each algorithm with this limit; closed by the next iteration."""
        for name in self.algorithms:
            clock = FakeClock(START)
            store = self.make_store(clock)
            yield store, clock, self._build(name, count, period)
            store.close()

    def _classes(self, scale: int = 1, period: float = 10) -> Iterator[tuple[Store, FakeClock, Algorithm, Algorithm]]:
        """A new store on a new clock, and two limits of one counter, of 80 % and of 100 %: windows with counts of 8 and
        10 (times `scale`), and buckets of one rate with such bursts."""
        for name in self.algorithms:
            if ALGORITHMS[name].takes_burst:
                forms = [Limit(7 * scale, period, burst * scale, name) for burst in (8, 10)]
                yield from self._class_stores(*forms)
                continue
            yield from self._class_stores(*[Limit(count * scale, period, algorithm=name) for count in (8, 10)])
            if name == "fixed_window":
                unit = "day" if period > 60 else "minute"
                forms = [Limit.calendar(count * scale, unit, "Europe/Berlin") for count in (8, 10)]
                yield from self._class_stores(*forms)

    def _class_stores(self, batch: Limit, critical: Limit) -> Iterator[tuple[Store, FakeClock, Algorithm, Algorithm]]:
        clock = FakeClock(START)
        store = self.make_store(clock)
        yield store, clock, build(batch, "limit"), build(critical, "limit")
        store.close()

    def _slots(self, count: int, ttl: float) -> Iterator[tuple[Store, FakeClock, Algorithm]]:
        """The same for an in-flight limit alone, for stores that have it."""
        if CONCURRENCY in self.algorithms:
            clock = FakeClock(START)
            store = self.make_store(clock)
            yield store, clock, self._build(CONCURRENCY, count, ttl)
            store.close()

    def _calendars(self, text: str) -> Iterator[tuple[Store, FakeClock, Algorithm]]:
        """A new store on a new clock, shortly before the clocks change in Europe, for stores with fixed windows."""
        if "fixed_window" in self.algorithms:
            clock = FakeClock(CLOCK_CHANGE)
            store = self.make_store(clock)
            yield store, clock, build(Limit.parse(text), "limit")
            store.close()

    def _build(self, algorithm: str, count: int, period: float, name: str = "limit") -> Algorithm:
        return build(Limit(count, period, algorithm=algorithm), name)


def apply(store: Store, op: Op, *members: Member) -> list[Outcome]:
    """Apply one request."""
    return store.apply([Request(op, members)])[0]


def take(store: Store, algorithm: Algorithm, key: str = "key", cost: int = 1) -> Decision:
    return apply(store, Op.TAKE, Member(key, algorithm, cost))[0].decision


def peek(store: Store, algorithm: Algorithm, key: str = "key", cost: int = 1) -> Decision:
    return apply(store, Op.PEEK, Member(key, algorithm, cost))[0].decision
