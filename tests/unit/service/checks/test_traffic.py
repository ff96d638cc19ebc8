"""The recorder of recent checks: bounded, sampled by subject, without secrets."""

from __future__ import annotations

from collections import Counter

from crestgate.core.context import RequestContext
from crestgate.service.checks.schemas import CheckBody, ContextBody
from crestgate.service.checks.traffic import MAX_DROPPED, MAX_MINUTES, TrafficRecorder, level_of

NOW = 1_700_000_000_000_000
SECOND = 1_000_000
HOUR = MAX_MINUTES * 60 * SECOND


def test_every_form_of_a_check_under_rules_is_recorded() -> None:
    recorder = TrafficRecorder(100, NOW)
    recorder.record_check(CheckBody(context=ContextBody(user="a", path="/x"), cost=3), NOW)
    recorder.record_check(CheckBody(dimension="IP", identifier="10.0.0.1", endpoint="/y", method="GET"), NOW + 1)
    recorder.record_check(CheckBody(key="k"), NOW + 2)
    recorder.record_check(CheckBody(context=ContextBody(attributes={"org": "acme"})), NOW + 4)
    recorder.record_check(CheckBody(key="k", plans=["gold"]), NOW + 3)
    rows = recorder.records(NOW).rows
    assert [(row[0] - NOW, row[1], *row[3:]) for row in rows] == [
        (0, 3, None, "a", None, None, "/x", None, None, None, None),
        (1, 1, "10.0.0.1", None, None, None, "/y", "GET", None, None, None),
        (2, 1, None, None, None, None, None, None, None, "k", None),
        (4, 1, None, None, None, None, None, None, None, None, {"org": "acme"}),
    ]


def test_api_keys_are_digests() -> None:
    recorder = TrafficRecorder(100, NOW)
    recorder.record(RequestContext(api_key="secret", client="secret"), 1, NOW)
    [row] = recorder.records(NOW).rows
    assert row[5] == row[6] == "sha256:ca195b975018"
    assert "secret" not in row


def test_full_recorder_keeps_whole_subjects() -> None:
    recorder = TrafficRecorder(1000, NOW)
    sent: Counter[str] = Counter()
    for number in range(8000):
        user = f"user-{number * 7919 % 400}"
        sent[user] += 1
        recorder.record(RequestContext(user=user), 1, NOW + number * 1000)
    recorded = recorder.records(NOW)
    assert recorder.size < 1000
    assert recorded.bits >= 3
    seen = Counter(row[4] for row in recorded.rows)
    assert 0 < len(seen) < 150
    assert all(seen[user] == sent[str(user)] for user in seen)


def test_sample_grows_again_when_traffic_falls_and_readers_use_the_smallest() -> None:
    recorder = TrafficRecorder(1000, NOW)
    for number in range(4000):
        recorder.record(RequestContext(user=f"user-{number}"), 1, NOW + number)
    bits = recorder.bits
    assert bits >= 2
    later = NOW + HOUR + 61 * SECOND
    recorder.record(RequestContext(user="user-0"), 1, later)
    for number in range(200):
        recorder.record(RequestContext(user=f"user-{number}"), 1, later + number * 61 * SECOND)
    assert recorder.bits == 0
    now = later + 200 * 61 * SECOND
    assert recorder.records(now - 10 * SECOND).bits == 0
    assert recorder.records(now - HOUR).bits == 0, "the small sample is more than an hour ago"
    assert recorder.records(NOW).bits == bits


def test_requests_without_subject_are_sampled_one_by_one() -> None:
    recorder = TrafficRecorder(1000, NOW)
    for number in range(20_000):
        recorder.record(RequestContext(path="/"), 1, NOW + number)
    assert 4 <= recorder.bits <= 7, "a share of them"
    for number in range(20_000):
        recorder.record(RequestContext(user=f"user-{number}"), 1, NOW + 20_000 + number)
    recorded = recorder.records(NOW)
    assert recorder.bits <= 8
    assert len({row[4] for row in recorded.rows if row[4]}) > 50
    assert not any(row[2] & (1 << recorded.bits) - 1 for row in recorded.rows)


def test_one_busy_subject_does_not_push_out_the_others() -> None:
    recorder = TrafficRecorder(1000, NOW)
    busy = next(name for name in map(str, range(100_000)) if level_of(recorder.sample_hash(name)) > 5)
    for number in range(20_000):
        user = f"user-{number}" if number % 20 == 0 else busy
        recorder.record(RequestContext(user=user), 1, NOW + number)
    recorded = recorder.records(NOW)
    assert recorded.bits <= 1
    assert len({row[4] for row in recorded.rows}) > 20
    assert recorded.since_us > NOW + 15_000, "older ones were dropped"
    assert all(row[0] >= recorded.since_us for row in recorded.rows)


def test_samples_agree_among_workers_with_one_key_and_differ_otherwise() -> None:
    def hashes(key: bytes | None) -> list[int]:
        return [TrafficRecorder(100, NOW, key).sample_hash(name) for name in ("a", "b")]

    assert hashes(b"one") == hashes(b"one") != hashes(b"other")
    assert hashes(None) != hashes(None)


def test_hash_of_a_subject_does_not_depend_on_those_before_it() -> None:
    recorder = TrafficRecorder(100, NOW)
    before = recorder.sample_hash("a")
    recorder.sample_hash("b")
    assert recorder.sample_hash("a") == before


def test_work_of_a_check_is_bounded() -> None:
    recorder = TrafficRecorder(10_000, NOW)
    times = [NOW + number for number in range(10_000)] + [NOW + 2 * HOUR + number for number in range(200)]
    most = 0
    for number, time_us in enumerate(times):
        before = recorder.size + len(recorder.dropped)
        recorder.record(RequestContext(user=f"user-{number}"), 1, time_us)
        most = max(most, before - recorder.size - len(recorder.dropped))
    assert recorder.bits == 0, "it was 1, and there is room again"
    assert 0 < most <= 2 * MAX_DROPPED, "half of the subjects were dropped, and then all that are old"
    assert recorder.size <= 200
    assert not recorder.dropped


def test_one_subject_alone_cannot_grow_it() -> None:
    recorder = TrafficRecorder(100, NOW)
    for number in range(1000):
        recorder.record(RequestContext(user="a"), 1, NOW + number)
    assert recorder.size <= 100


def test_long_values_are_counted_and_not_recorded() -> None:
    recorder = TrafficRecorder(100, NOW)
    recorder.record(RequestContext(user="a" * 129), 1, NOW)
    recorder.record(RequestContext(user="a", path="/" + "a" * 512), 1, NOW)
    assert (recorder.size, recorder.records(NOW).skipped) == (0, 2)


def test_old_records_are_dropped() -> None:
    recorder = TrafficRecorder(100, NOW)
    recorder.record(RequestContext(user="a"), 1, NOW)
    recorder.record(RequestContext(user="b"), 1, NOW + HOUR + 2 * 60 * SECOND)
    assert recorder.size == 1
