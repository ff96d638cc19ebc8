"""Metrics in the Prometheus formats."""

from __future__ import annotations

import asyncio
import re
from collections.abc import Iterator
from pathlib import Path

import pytest
from prometheus_client.parser import text_string_to_metric_families

from crestgate import AsyncLimiter, __version__
from crestgate.limiter.local_decisions import LocalDecisions
from crestgate.rules.catalog import Catalog
from crestgate.rules.storage.files import FileRepository
from crestgate.service.observability.labels import KeyFormat
from crestgate.service.observability.prometheus import CONTENT_TYPE, exposition, families
from crestgate.service.observability.publisher import Publisher
from crestgate.service.observability.snapshot import Snapshot
from crestgate.service.observability.worker_metrics import WorkerMetrics
from crestgate.service.observability.worker_snapshots import WorkerSnapshots
from flaky_store import Flaky

NOW = 1_700_000_000_000_000
OPEN_METRICS = "application/openmetrics-text;version=1.0.0,text/plain;q=0.5"


def samples(text: str) -> dict[tuple[str, tuple[tuple[str, str], ...]], float]:
    """Every sample by its name and labels."""
    return {
        (sample.name, tuple(sorted(sample.labels.items()))): sample.value
        for family in text_string_to_metric_families(text)
        for sample in family.samples
    }


def rendered_samples(
    snapshot: Snapshot, prefix: str = "crestgate"
) -> dict[tuple[str, tuple[tuple[str, str], ...]], float]:
    return samples(exposition(snapshot, prefix)[0].decode())


def test_metric_names_of_the_contract() -> None:
    names = {
        family.name for family in families(Snapshot(gauges={"tokens_remaining": {("r", "k"): (1, 1)}}), "crestgate")
    }
    assert names == {
        "crestgate_allowed",
        "crestgate_blocked",
        "crestgate_shadow_blocked",
        "crestgate_check_duration_seconds",
        "crestgate_tokens_remaining",
        "crestgate_store_errors",
        "crestgate_store_resets",
        "crestgate_store_logs_full",
        "crestgate_migrate_carried",
        "crestgate_migrate_carried_back",
        "crestgate_migrate_followed",
        "crestgate_migrate_from_errors",
        "crestgate_migrate_to_errors",
        "crestgate_fail_open",
        "crestgate_breaker_state",
        "crestgate_batch_size",
        "crestgate_cache_hits",
        "crestgate_cache_misses",
        "crestgate_rules_reload_failures",
        "crestgate_envoy_reload_failures",
        "crestgate_certificate_reload_failures",
        "crestgate_certificate_expiry_timestamp_seconds",
        "crestgate_rules",
        "crestgate_rules_unreadable",
        "crestgate_clock_skew_seconds",
        "crestgate_pressure_transitions",
        "crestgate_pressure_unlogged",
        "crestgate_requests",
        "crestgate_replayed",
        "crestgate_webhook_dropped",
        "crestgate_workers",
        "crestgate_build_info",
    }


def test_every_metric_has_its_value() -> None:
    metrics = WorkerMetrics()
    metrics.count_decision("orders", "user", "user:1", True)
    metrics.count_decision("orders", "user", "user:1", True)
    metrics.count_decision("orders", "user", "user:1", False)
    metrics.count_shadowed("strict", "ip")
    metrics.durations.observe(0.0004)
    metrics.durations.observe(9.0)
    metrics.observe_batch(100)
    metrics.observe_clock_skew(-4.0)
    metrics.count_replay()
    metrics.count_cache_lookup("idempotency", False)
    metrics.count_fail_open()
    metrics.count_request("control", 404)
    metrics.count_pressure("throttled")
    metrics.set_remaining("orders", "user:1", 41, NOW)
    snapshot = metrics.snapshot(
        NOW,
        {"store_errors": 5, "rules_reload_failures": 6, "webhook_dropped": 7},
        {"rules": {(): 8}, "breaker_state": {("a:1",): 2}},
    )
    found = rendered_samples(snapshot)
    labels = (("dimension", "user"), ("rule", "orders"))
    shadow = (("dimension", "ip"), ("rule", "strict"))
    expected = {
        ("crestgate_allowed_total", labels): 2,
        ("crestgate_blocked_total", labels): 1,
        ("crestgate_shadow_blocked_total", shadow): 1,
        ("crestgate_check_duration_seconds_bucket", (("le", "0.00025"),)): 0,
        ("crestgate_check_duration_seconds_bucket", (("le", "0.0005"),)): 1,
        ("crestgate_check_duration_seconds_bucket", (("le", "5.0"),)): 1,
        ("crestgate_check_duration_seconds_bucket", (("le", "+Inf"),)): 2,
        ("crestgate_check_duration_seconds_count", ()): 2,
        ("crestgate_check_duration_seconds_sum", ()): 9.0004,
        ("crestgate_batch_size_bucket", (("le", "50.0"),)): 0,
        ("crestgate_batch_size_bucket", (("le", "100.0"),)): 1,
        ("crestgate_clock_skew_seconds_sum", ()): 4,
        ("crestgate_store_errors_total", ()): 5,
        ("crestgate_fail_open_total", ()): 1,
        ("crestgate_rules_reload_failures_total", ()): 6,
        ("crestgate_webhook_dropped_total", ()): 7,
        ("crestgate_rules", ()): 8,
        ("crestgate_breaker_state", (("store", "a:1"),)): 2,
        ("crestgate_replayed_total", ()): 1,
        ("crestgate_cache_hits_total", (("cache", "idempotency"),)): 1,
        ("crestgate_cache_misses_total", (("cache", "idempotency"),)): 1,
        ("crestgate_cache_hits_total", (("cache", "rules"),)): 2,
        ("crestgate_requests_total", (("plane", "control"), ("status", "404"))): 1,
        ("crestgate_pressure_transitions_total", (("state", "throttled"),)): 1,
        ("crestgate_pressure_transitions_total", (("state", "normal"),)): 0,
        ("crestgate_tokens_remaining", (("key", "user:1"), ("rule", "orders"))): 41,
    }
    assert {name: found.get(name) for name in expected} == expected
    assert ("crestgate_allowed_total", shadow) not in found, "a shadow rule neither admits nor denies"


def test_prefix_applies_to_all_metrics() -> None:
    text = exposition(WorkerMetrics().snapshot(NOW, {}), "throttlex")[0].decode()
    assert "throttlex_fail_open_total 0.0" in text
    assert "crestgate" not in text


def test_labels_are_escaped() -> None:
    metrics = WorkerMetrics()
    evil = 'a"} 1\ncrestgate_evil 1 \\'
    metrics.count_decision(evil, "user", "user:1", True)
    found = rendered_samples(metrics.snapshot(NOW, {}))
    assert found["crestgate_allowed_total", (("dimension", "user"), ("rule", evil))] == 1
    assert not any(name == "crestgate_evil" for name, _ in found)


@pytest.mark.parametrize(
    ("accept", "kind"),
    [
        ("", CONTENT_TYPE),
        ("*/*", CONTENT_TYPE),
        ("text/plain; version=abc; escaping=nonsense", CONTENT_TYPE),
        (OPEN_METRICS, "application/openmetrics-text; version=1.0.0; charset=utf-8"),
        ("application/openmetrics-text;version=junk", "application/openmetrics-text; version=1.0.0; charset=utf-8"),
    ],
)
def test_accept_header_selects_the_format(accept: str, kind: str) -> None:
    text, content_type = exposition(WorkerMetrics().snapshot(NOW, {}), "crestgate", accept)
    assert content_type == kind
    assert text.endswith(b"# EOF\n") == ("openmetrics" in kind)


class Node:
    """Workers of one node, each with its own files, on one store."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        (folder / "crestgate.yaml").write_text(
            "rules: [{name: Per user, dimension: user, limit: 5, window_seconds: 60}]\n"
        )
        self.catalog = Catalog([FileRepository(str(folder / "crestgate.yaml"))])
        self.store = Flaky()

    def worker(self, number: int, keys: KeyFormat = "hashed") -> tuple[WorkerMetrics, Publisher]:
        worker_snapshots = WorkerSnapshots(self.folder / "snapshots", number)
        metrics = WorkerMetrics(worker_snapshots.previous())
        limiter = AsyncLimiter(self.store, catalog=self.catalog)
        return metrics, Publisher(metrics, worker_snapshots, limiter, prefix="crestgate", keys=keys)


@pytest.fixture
def node(tmp_path: Path) -> Iterator[Node]:
    made = Node(tmp_path)
    yield made
    made.catalog.close()


def scrape(publisher: Publisher, now_us: int = NOW) -> dict[tuple[str, tuple[tuple[str, str], ...]], float]:
    return samples(asyncio.run(publisher.exposition(now_us))[0].decode())


ALLOWED = ("crestgate_allowed_total", (("dimension", "user"), ("rule", "orders")))


def test_counters_never_decrease_whichever_worker_is_scraped(node: Node) -> None:
    workers = [node.worker(number) for number in range(3)]
    last = 0.0
    for turn in range(30):
        metrics, _ = workers[turn % 3]
        metrics.count_decision("orders", "user", "user:1", True)
        if turn % 4 == 0:
            asyncio.run(workers[(turn + 1) % 3][1].publish(NOW))
        if turn == 15:
            workers[1] = node.worker(1)  # killed and replaced: its unpublished counts are lost
        found = scrape(workers[(turn * 2) % 3][1])
        assert found[ALLOWED] >= last
        last = found[ALLOWED]
    for _, publisher in workers:
        asyncio.run(publisher.publish(NOW))
    sums = {scrape(publisher)[ALLOWED] for _, publisher in workers}
    assert len(sums) == 1, "all workers report the same"
    assert 28 <= sums.pop() <= 30


def test_limiter_counters_are_published(node: Node) -> None:
    _, publisher = node.worker(0)
    node.store.broken = True
    asyncio.run(publisher._limiter.check("user:1", "5/minute"))
    found = scrape(publisher)
    assert found["crestgate_store_errors_total", ()] == 1
    assert found["crestgate_rules", ()] == 1
    assert found["crestgate_workers", ()] == 1
    assert found["crestgate_build_info", (("version", __version__),)] == 1
    assert found["crestgate_cache_misses_total", (("cache", "rules"),)] == 0
    successor = node.worker(0)[1]
    assert scrape(successor)["crestgate_store_errors_total", ()] == 1, (
        "from its predecessor: its own limiter has counted none"
    )


def test_decisions_without_the_store_are_cache_hits(node: Node) -> None:
    leases, denials = (
        ("crestgate_cache_hits_total", (("cache", "leases"),)),
        (
            "crestgate_cache_hits_total",
            (("cache", "denials"),),
        ),
    )
    _, publisher = node.worker(0)
    assert publisher._limiter.backend.local_decisions is None
    found = scrape(publisher)
    assert (found[leases], found[denials]) == (0, 0)
    for total in (1, 2):  # a worker that is replaced continues
        _, publisher = node.worker(0)
        decisions = LocalDecisions(node.store.clock.ticks, True)
        decisions.leased_locally, decisions.denied_locally = 4, 3
        publisher._limiter.backend.local_decisions = decisions
        for _ in range(2):
            found = scrape(publisher)
            assert (found[leases], found[denials]) == (4 * total, 3 * total)


def test_rule_reload_counts_as_a_cache_miss(node: Node) -> None:
    _, publisher = node.worker(0)
    path = node.folder / "crestgate.yaml"
    path.write_text(path.read_text().replace("limit: 5", "limit: 6"))
    node.catalog.reload()
    node.catalog.refresh()
    assert scrape(publisher)["crestgate_cache_misses_total", (("cache", "rules"),)] == 1


@pytest.mark.parametrize(("keys", "pattern"), [("hashed", "sha256:[0-9a-f]{12}"), ("plain", "user:1")])
def test_key_labels_of_metrics_follow_the_log_configuration(node: Node, keys: KeyFormat, pattern: str) -> None:
    metrics, publisher = node.worker(0, keys)
    metrics.set_remaining("orders", "user:1", 3, NOW)
    ((labels, left),) = [
        (labels, value) for (name, labels), value in scrape(publisher).items() if name == "crestgate_tokens_remaining"
    ]
    assert left == 3
    assert re.fullmatch(pattern, dict(labels)["key"])


def test_seen_keys_of_all_workers(node: Node) -> None:
    (first, publisher), (second, other) = node.worker(0), node.worker(1)
    first.keys.record("user:1", NOW)
    first.clients.record("acme", NOW + 1)
    second.keys.record("user:2", NOW + 2)
    for one in (publisher, other):
        asyncio.run(one.publish(NOW + 3))
    last_seen = WorkerSnapshots(node.folder / "snapshots", 0).seen()
    assert (list(last_seen.keys), list(last_seen.clients)) == (["user:2", "user:1"], ["acme"])


def test_seen_names_are_written_at_an_interval(node: Node) -> None:
    metrics, publisher = node.worker(0)
    written = []
    for second in range(5):
        metrics.keys.record(f"user:{second}", NOW)
        asyncio.run(publisher.publish(NOW + second * 1_000_000))
        written.append(len(WorkerSnapshots(node.folder / "snapshots", 1).seen().keys))
    assert written == [1, 1, 3, 3, 5]


def test_stopping_worker_publishes_its_last_metrics(node: Node) -> None:
    metrics, publisher = node.worker(0)
    metrics.count_decision("orders", "user", "user:1", True)
    publisher.close(NOW)
    assert scrape(node.worker(1)[1])[ALLOWED] == 1


def test_full_disk_keeps_the_last_metrics(
    node: Node, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    metrics, publisher = node.worker(0)
    metrics.count_decision("orders", "user", "user:1", True)
    assert scrape(publisher)[ALLOWED] == 1
    metrics.count_decision("orders", "user", "user:1", True)

    def full(*_: object) -> None:
        raise OSError(28, "No space left on device")

    with monkeypatch.context() as patched:
        patched.setattr("crestgate.service.observability.worker_snapshots.os.replace", full)
        assert scrape(publisher)[ALLOWED] == 1
    assert "No space left" in caplog.text
    assert scrape(publisher)[ALLOWED] == 2
