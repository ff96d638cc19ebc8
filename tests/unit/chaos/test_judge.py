"""The verdict on a cell: a true history passes, and each lie in it is a violation of its own kind."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
from chaos.checkers import SECOND
from chaos.history import FOREVER, Operation
from chaos.judge import Evidence, Result, judge
from chaos.slack import read_slack

CAPACITY = 20
KEY = "line:gcra:0"
MS = SECOND // 1000
REPORT = {"before": {"fds": 5, "threads": 1}, "after": {"fds": 5, "threads": 1}, "stuck": 0, "errors": []}


def take(number: int, remaining: int, key: str = KEY) -> Operation:
    """One of ten in a second, each answered after 5 ms."""
    start = number * SECOND // 10
    end = start + 5 * MS
    return Operation(key, 1, start, end, True, remaining, "ok", 1, number, end)


def evidence(**changes: Any) -> Evidence:
    """Ten admissions, a fault from 0.3 s to 0.5 s, and the usage that was read at the end."""
    operations = [take(number, CAPACITY - 1 - number) for number in range(10)]
    reads = [Operation(KEY, 0, 4 * SECOND, 4 * SECOND + MS, True, CAPACITY - 10)]
    windows = [(3 * SECOND // 10, 5 * SECOND // 10)]
    found = Evidence(operations, reads, [[3, 3]], windows, [], [], {}, [dict(REPORT)], 5 * SECOND, CAPACITY)
    for name, value in changes.items():
        setattr(found, name, value)
    return found


def violations(found: Evidence, store: str = "mariadb", fault: str = "server-kill") -> list[str]:
    result = judge(Result(store, fault, 1, 5.0), found, read_slack())
    return [*result.violations, *result.slow]


def test_true_history_has_no_violations() -> None:
    result = judge(Result("mariadb", "server-kill", 1, 5.0), evidence(), read_slack())
    assert result.violations == []
    assert (result.decisions, result.counters, result.over, result.by_policy) == (10, 1, 0, 0)
    assert result.recovery is not None


def test_decision_given_twice() -> None:
    found = evidence()
    found.operations.append(found.operations[4])
    assert any("violated" in violation for violation in violations(found))


def test_counter_that_was_charged_twice() -> None:
    """All results are right; only the usage at the end shows it."""
    found = evidence()
    found.reads[0] = replace(found.reads[0], remaining=CAPACITY - 11)
    assert any("1 counted twice" in violation for violation in violations(found))


def test_counter_that_was_lost_is_a_violation_unless_the_store_may_forget() -> None:
    before = [take(number, CAPACITY - 1 - number) for number in range(4)]
    after = [take(number, CAPACITY + 3 - number) for number in range(4, 10)]
    reads = [Operation(KEY, 0, 4 * SECOND, 4 * SECOND + MS, True, CAPACITY - 6)]
    assert violations(evidence(operations=[*before, *after], reads=reads), "mariadb") != []
    assert violations(evidence(operations=[*before, *after], reads=reads), "redis") == []
    assert violations(evidence(operations=[*before, *after], reads=reads), "redis", "cut") != []


def test_two_masters_decide_only_where_that_is_stated_and_within_the_bound() -> None:
    """Each of two servers admits its own, in turns."""
    operations = [take(number, CAPACITY - 1 - number // 2) for number in range(10)]
    reads = [Operation(KEY, 0, 4 * SECOND, 4 * SECOND + MS, True, CAPACITY - 5)]
    assert violations(evidence(operations=operations, reads=reads), "sentinel") == []
    assert violations(evidence(operations=operations, reads=reads), "redis") != []
    assert violations(evidence(operations=operations, reads=reads), "sentinel", "cut") != []
    many = [take(number, CAPACITY - 1 - number // 3) for number in range(2 * CAPACITY + 1)]
    beyond = violations(evidence(operations=many, reads=reads, finished=9 * SECOND), "sentinel")
    assert [violation for violation in beyond if "21 beyond its limit, and at most 20 were stated" in violation]


def test_give_back_without_an_answer_may_have_made_room() -> None:
    """Twenty admitted, three given back with the answer lost, and two admitted after that."""
    operations = [take(number, CAPACITY - 1 - number) for number in range(CAPACITY)]
    lost = Operation(KEY, -3, 2 * SECOND, FOREVER, None, None, "fail_open", 1, 50, 2 * SECOND + MS)
    later = [take(CAPACITY + number + 1, 2 - number) for number in range(2)]
    reads = [Operation(KEY, 0, 4 * SECOND, 4 * SECOND + MS, True, 1)]
    assert violations(evidence(operations=[*operations, lost, *later], reads=reads), "redis", "cut") == []
    assert violations(evidence(operations=[*operations, *later], reads=reads), "redis", "cut") != []


def test_chain_that_was_charged_in_part() -> None:
    assert violations(evidence(chains=[[3, 4]])) == ["1 chains were charged in part"]


def test_answer_after_the_deadline() -> None:
    found = evidence()
    late = found.operations[9]
    found.operations[9] = replace(late, end=late.start + SECOND, answered=late.start + SECOND)
    assert violations(found) == ["1 answers after the deadline, the worst by 800 ms"]
    found.control = [(late.start + SECOND // 2, 0.09)]
    assert violations(found) == []


@pytest.mark.parametrize(
    ("change", "violation"),
    [
        ({"errors": ["Traceback: ValueError"]}, "a client raised: Traceback: ValueError"),
        ({"stuck": 2}, "2 callers never came back"),
        ({"after": {"fds": 8, "threads": 1}}, "a client has more than before: {'fds': 3}"),
    ],
)
def test_report_of_a_client(change: dict[str, Any], violation: str) -> None:
    assert violations(evidence(reports=[{**REPORT, **change}])) == [violation]


def test_store_that_never_decides_again() -> None:
    found = evidence()
    failing = [
        Operation(KEY, 1, n * SECOND // 10, FOREVER, None, None, "fail_open", 1, n, n * SECOND // 10 + MS)
        for n in range(5, 50)
    ]
    found.operations = [*found.operations[:5], *failing]
    found.reads = [replace(found.reads[0], remaining=CAPACITY - 5)]
    assert violations(found) == ["the store did not decide again"]


def test_rows_that_nobody_used() -> None:
    assert violations(evidence(stored=1000)) == ["1000 counters are stored for 1 that were used"]


def test_more_than_the_algorithm_allows_in_a_span() -> None:
    flow = [replace(take(number, 5, "flow:gcra"), start=0, end=5 * MS, answered=5 * MS) for number in range(30)]
    found = evidence()
    found.operations += flow
    assert any(text.startswith("flow:gcra: 10 more than allowed") for text in violations(found))


def by_policy(start: int, end: int) -> list[Operation]:
    """Ten calls in a second that the policy decided."""
    times = range(start, end, SECOND // 10)
    return [Operation(KEY, 1, at, FOREVER, None, None, "fail_open", 2, i, at + 5 * MS) for i, at in enumerate(times)]


@pytest.mark.parametrize("late_at", [0, SECOND])
def test_store_that_never_decides_again_on_a_machine_that_was_late(late_at: int) -> None:
    end = 31 * SECOND // 10
    operations = [take(number, CAPACITY - 1 - number) for number in range(3)] + by_policy(3 * SECOND // 10, end)
    reads = [Operation(KEY, 0, 4 * SECOND, 4 * SECOND + MS, True, CAPACITY - 3)]
    found = evidence(operations=operations, reads=reads, finished=end, control=[(late_at, 0.1)])
    assert any("did not decide again" in violation for violation in violations(found, fault="server-stop"))


def test_run_that_only_the_policy_decided_proves_nothing() -> None:
    found = evidence(windows=[(-9 * SECOND, -SECOND // 10)])
    found.operations += by_policy(-9 * SECOND, -SECOND // 10)
    assert violations(found, fault="dropped-10-percent") == ["the store decided only 0 of 89 calls"]
