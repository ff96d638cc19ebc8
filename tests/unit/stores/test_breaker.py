"""The circuit breaker: when it opens, probes and closes."""

from __future__ import annotations

import threading

from crestgate.stores.breaker import FAILURES, OPEN_SECONDS, PROBE_TIMEOUT, Breaker


def opened(at: float) -> Breaker:
    breaker = Breaker()
    for _ in range(FAILURES):
        breaker.failed(at)
    return breaker


def test_new_breaker_is_closed() -> None:
    breaker = Breaker()
    assert breaker.state(0.0) == "closed"
    assert all(breaker.admits(0.0) for _ in range(100))


def test_consecutive_failures_open_it() -> None:
    breaker = Breaker()
    for _ in range(FAILURES - 1):
        breaker.failed(5.0)
    assert (breaker.state(5.0), breaker.admits(5.0)) == ("closed", True)
    breaker.failed(5.0)
    assert (breaker.state(5.0), breaker.admits(5.0)) == ("open", False)


def test_success_in_between_keeps_it_closed() -> None:
    breaker = Breaker()
    for _ in range(10):
        for _ in range(FAILURES - 1):
            breaker.failed(5.0)
        breaker.succeeded()
    assert breaker.state(5.0) == "closed"


def test_it_stays_open_for_the_pause() -> None:
    breaker = opened(5.0)
    assert not breaker.admits(5.0 + OPEN_SECONDS - 0.001)
    assert breaker.state(5.0 + OPEN_SECONDS - 0.001) == "open"
    assert breaker.state(5.0 + OPEN_SECONDS) == "half-open"
    assert breaker.admits(5.0 + OPEN_SECONDS)


def test_one_probe_at_a_time() -> None:
    breaker = opened(5.0)
    now = 5.0 + OPEN_SECONDS
    assert [breaker.admits(now) for _ in range(5)] == [True, False, False, False, False]


def test_successful_probe_closes_it() -> None:
    breaker = opened(5.0)
    assert breaker.admits(5.0 + OPEN_SECONDS)
    breaker.succeeded()
    assert breaker.state(5.0 + OPEN_SECONDS) == "closed"
    breaker.failed(7.0)
    assert breaker.state(7.0) == "closed", "the count starts again"


def test_failed_probe_starts_the_next_pause() -> None:
    breaker = opened(5.0)
    assert breaker.admits(7.0)
    breaker.failed(7.5)
    assert not breaker.admits(7.5 + OPEN_SECONDS - 0.001)
    assert breaker.admits(7.5 + OPEN_SECONDS)


def test_probe_without_a_result_expires() -> None:
    breaker = opened(5.0)
    assert breaker.admits(7.0)
    assert not breaker.admits(7.0 + PROBE_TIMEOUT - 0.001)
    assert breaker.admits(7.0 + PROBE_TIMEOUT)


def test_settled_probe_without_a_result_is_replaced() -> None:
    breaker = opened(5.0)
    assert breaker.admits(7.0)
    breaker.settled(6.5)
    assert not breaker.admits(7.1), "that was another request"
    breaker.settled(7.0)
    assert [breaker.admits(7.2) for _ in range(2)] == [True, False]
    breaker.failed(7.3)
    breaker.settled(7.2)
    assert not breaker.admits(7.4), "it reported the server as down"


def test_only_one_thread_probes() -> None:
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


def test_calls_that_time_out_together_are_one_failure() -> None:
    breaker = Breaker()
    for started in (0.0, 0.01, 0.02, 0.04):
        breaker.failed(0.1, "it did not answer in time", started)
    assert breaker.failures == 1
    breaker.failed(0.2, "it did not answer in time", 0.1)
    breaker.failed(0.3, "it did not answer in time", 0.2)
    assert breaker.state(0.3) == "open"


def test_other_failures_count_each() -> None:
    breaker = Breaker()
    for _ in range(FAILURES):
        breaker.failed(0.1, "it refuses connections")
    assert breaker.state(0.1) == "open"


def test_late_timeout_does_not_extend_the_pause() -> None:
    breaker = Breaker()
    for now in (1.0, 2.0, 3.0):
        breaker.failed(now, "it did not answer in time", now - 1.0)
    breaker.failed(3.9, "it did not answer in time", 2.4)
    assert breaker.admits(3.0 + OPEN_SECONDS)
