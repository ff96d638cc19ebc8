"""The breaker: when it stops asking, whom it lets probe, and when it asks again."""

from __future__ import annotations

import threading

from headgate.stores.breaker import FAILURES, PAUSE, PROBE_LOST, Breaker


def opened(at: float) -> Breaker:
    breaker = Breaker()
    for _ in range(FAILURES):
        breaker.failed(at)
    return breaker


def test_a_new_one_is_closed() -> None:
    breaker = Breaker()
    assert breaker.state(0.0) == "closed"
    assert all(breaker.admits(0.0) for _ in range(100))


def test_failures_in_a_row_open_it() -> None:
    breaker = Breaker()
    for _ in range(FAILURES - 1):
        breaker.failed(5.0)
    assert (breaker.state(5.0), breaker.admits(5.0)) == ("closed", True)
    breaker.failed(5.0)
    assert (breaker.state(5.0), breaker.admits(5.0)) == ("open", False)


def test_a_success_in_between_does_not() -> None:
    breaker = Breaker()
    for _ in range(10):
        for _ in range(FAILURES - 1):
            breaker.failed(5.0)
        breaker.succeeded()
    assert breaker.state(5.0) == "closed"


def test_it_stays_open_for_the_pause() -> None:
    breaker = opened(5.0)
    assert not breaker.admits(5.0 + PAUSE - 0.001)
    assert breaker.state(5.0 + PAUSE - 0.001) == "open"
    assert breaker.state(5.0 + PAUSE) == "half-open"
    assert breaker.admits(5.0 + PAUSE)


def test_one_probe_at_a_time() -> None:
    breaker = opened(5.0)
    now = 5.0 + PAUSE
    assert [breaker.admits(now) for _ in range(5)] == [True, False, False, False, False]


def test_a_probe_that_succeeds_closes_it() -> None:
    breaker = opened(5.0)
    assert breaker.admits(5.0 + PAUSE)
    breaker.succeeded()
    assert breaker.state(5.0 + PAUSE) == "closed"
    breaker.failed(7.0)
    assert breaker.state(7.0) == "closed", "the count begins anew"


def test_a_probe_that_fails_begins_the_next_pause() -> None:
    breaker = opened(5.0)
    assert breaker.admits(7.0)
    breaker.failed(7.5)
    assert not breaker.admits(7.5 + PAUSE - 0.001)
    assert breaker.admits(7.5 + PAUSE)


def test_a_probe_that_is_never_heard_of_again_makes_room_for_another() -> None:
    breaker = opened(5.0)
    assert breaker.admits(7.0)
    assert not breaker.admits(7.0 + PROBE_LOST - 0.001)
    assert breaker.admits(7.0 + PROBE_LOST)


def test_a_probe_that_told_nothing_makes_room_at_once() -> None:
    breaker = opened(5.0)
    assert breaker.admits(7.0)
    breaker.settled(6.5)
    assert not breaker.admits(7.1), "that was another request"
    breaker.settled(7.0)
    assert [breaker.admits(7.2) for _ in range(2)] == [True, False]
    breaker.failed(7.3)
    breaker.settled(7.2)
    assert not breaker.admits(7.4), "it told that the server is away"


def test_of_many_threads_one_probes() -> None:
    for _ in range(20):
        breaker = opened(5.0)
        together = threading.Barrier(8)
        probes: list[bool] = []

        def ask(
            breaker: Breaker = breaker, together: threading.Barrier = together, probes: list[bool] = probes
        ) -> None:
            together.wait()
            probes.append(breaker.admits(7.0))

        threads = [threading.Thread(target=ask) for _ in range(8)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        assert sorted(probes) == [False] * 7 + [True]
