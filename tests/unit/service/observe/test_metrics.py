"""What Prometheus reads."""

from __future__ import annotations

import asyncio
import re
from collections.abc import Iterator
from pathlib import Path

import pytest
from prometheus_client.parser import text_string_to_metric_families

from flaky_store import Flaky
from headgate import AsyncLimiter
from headgate.rules.catalog import Catalog
from headgate.rules.repositories.files import FileRepository
from headgate.service.observe.board import Board
from headgate.service.observe.metrics import CONTENT_TYPE, exposition, families
from headgate.service.observe.publishing import Publisher
from headgate.service.observe.shown import Keys
from headgate.service.observe.snapshot import Snapshot
from headgate.service.observe.tally import Tally

NOW = 1_700_000_000_000_000
OPEN_METRICS = "application/openmetrics-text;version=1.0.0,text/plain;q=0.5"


def samples(text: str) -> dict[tuple[str, tuple[tuple[str, str], ...]], float]:
    """Every sample by its name and labels."""
    return {
        (sample.name, tuple(sorted(sample.labels.items()))): sample.value
        for family in text_string_to_metric_families(text)
        for sample in family.samples
    }


def told(snapshot: Snapshot, prefix: str = "headgate") -> dict[tuple[str, tuple[tuple[str, str], ...]], float]:
    return samples(exposition(snapshot, prefix, "1.2.3", 1)[0].decode())


def test_the_names_of_the_contract() -> None:
    names = {family.name for family in families(Snapshot(remaining=[("r", "k", 1, 1)]), "headgate", "1", 1)}
    assert names == {
        "headgate_allowed",
        "headgate_blocked",
        "headgate_shadow_blocked",
        "headgate_check_duration_seconds",
        "headgate_tokens_remaining",
        "headgate_store_errors",
        "headgate_store_resets",
        "headgate_store_logs_full",
        "headgate_fail_open",
        "headgate_breaker_state",
        "headgate_batch_size",
        "headgate_cache_hits",
        "headgate_cache_misses",
        "headgate_rules_reload_failures",
        "headgate_envoy_reload_failures",
        "headgate_rules",
        "headgate_clock_skew_seconds",
        "headgate_pressure_transitions",
        "headgate_pressure_unlogged",
        "headgate_requests",
        "headgate_replayed",
        "headgate_webhook_dropped",
        "headgate_workers",
        "headgate_build_info",
    }


def test_every_number_is_where_it_belongs() -> None:
    tally = Tally()
    tally.decided("orders", "user", "user:1", True)
    tally.decided("orders", "user", "user:1", True)
    tally.decided("orders", "user", "user:1", False)
    tally.shadowed("strict", "ip")
    tally.timed(0.0004)
    tally.timed(9.0)
    tally.batch(100)
    tally.skewed(-4.0)
    tally.replayed()
    tally.cached("idempotency", False)
    tally.failed_open()
    tally.request("control", 404)
    tally.pressed("throttled")
    tally.left("orders", "user:1", 41, NOW)
    snapshot = tally.snapshot(NOW, {"store_errors": 5, "rules_reload_failures": 6, "webhook_dropped": 7}, 8, {"a:1": 2})
    found = told(snapshot)
    labels = (("dimension", "user"), ("rule", "orders"))
    shadow = (("dimension", "ip"), ("rule", "strict"))
    expected = {
        ("headgate_allowed_total", labels): 2,
        ("headgate_blocked_total", labels): 1,
        ("headgate_shadow_blocked_total", shadow): 1,
        ("headgate_check_duration_seconds_bucket", (("le", "0.00025"),)): 0,
        ("headgate_check_duration_seconds_bucket", (("le", "0.0005"),)): 1,
        ("headgate_check_duration_seconds_bucket", (("le", "5.0"),)): 1,
        ("headgate_check_duration_seconds_bucket", (("le", "+Inf"),)): 2,
        ("headgate_check_duration_seconds_count", ()): 2,
        ("headgate_check_duration_seconds_sum", ()): 9.0004,
        ("headgate_batch_size_bucket", (("le", "50.0"),)): 0,
        ("headgate_batch_size_bucket", (("le", "100.0"),)): 1,
        ("headgate_clock_skew_seconds_sum", ()): 4,
        ("headgate_store_errors_total", ()): 5,
        ("headgate_fail_open_total", ()): 1,
        ("headgate_rules_reload_failures_total", ()): 6,
        ("headgate_webhook_dropped_total", ()): 7,
        ("headgate_rules", ()): 8,
        ("headgate_breaker_state", (("store", "a:1"),)): 2,
        ("headgate_replayed_total", ()): 1,
        ("headgate_cache_hits_total", (("cache", "idempotency"),)): 1,
        ("headgate_cache_misses_total", (("cache", "idempotency"),)): 1,
        ("headgate_cache_hits_total", (("cache", "rules"),)): 2,
        ("headgate_requests_total", (("plane", "control"), ("status", "404"))): 1,
        ("headgate_pressure_transitions_total", (("state", "throttled"),)): 1,
        ("headgate_pressure_transitions_total", (("state", "normal"),)): 0,
        ("headgate_tokens_remaining", (("key", "user:1"), ("rule", "orders"))): 41,
        ("headgate_build_info", (("version", "1.2.3"),)): 1,
    }
    assert {name: found.get(name) for name in expected} == expected
    assert ("headgate_allowed_total", shadow) not in found, "a shadow rule neither admits nor denies"


def test_another_prefix_renames_all() -> None:
    text = exposition(Tally().snapshot(NOW, {}), "throttlex", "1", 1)[0].decode()
    assert "throttlex_fail_open_total 0.0" in text
    assert "headgate" not in text


def test_labels_are_escaped() -> None:
    tally = Tally()
    evil = 'a"} 1\nheadgate_evil 1 \\'
    tally.decided(evil, "user", "user:1", True)
    found = told(tally.snapshot(NOW, {}))
    assert found["headgate_allowed_total", (("dimension", "user"), ("rule", evil))] == 1
    assert not any(name == "headgate_evil" for name, _ in found)


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
def test_what_a_scraper_accepts(accept: str, kind: str) -> None:
    text, content_type = exposition(Tally().snapshot(NOW, {}), "headgate", "1", 1, accept)
    assert content_type == kind
    assert text.endswith(b"# EOF\n") == ("openmetrics" in kind)


class Node:
    """Workers of one node, each with a board, on one store."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        (folder / "headgate.yaml").write_text(
            "rules: [{name: Per user, dimension: user, limit: 5, window_seconds: 60}]\n"
        )
        self.catalog = Catalog([FileRepository(str(folder / "headgate.yaml"))])
        self.store = Flaky()

    def worker(self, number: int, keys: Keys = "hashed") -> tuple[Tally, Publisher]:
        board = Board(self.folder / "boards", number)
        tally = Tally(board.before())
        limiter = AsyncLimiter(self.store, catalog=self.catalog)
        return tally, Publisher(tally, board, limiter, prefix="headgate", keys=keys)


@pytest.fixture
def node(tmp_path: Path) -> Iterator[Node]:
    made = Node(tmp_path)
    yield made
    made.catalog.close()


def scrape(publisher: Publisher, now_us: int = NOW) -> dict[tuple[str, tuple[tuple[str, str], ...]], float]:
    return samples(asyncio.run(publisher.exposition(now_us))[0].decode())


ALLOWED = ("headgate_allowed_total", (("dimension", "user"), ("rule", "orders")))


def test_whichever_worker_is_asked_nothing_goes_back(node: Node) -> None:
    workers = [node.worker(number) for number in range(3)]
    last = 0.0
    for turn in range(30):
        tally, _ = workers[turn % 3]
        tally.decided("orders", "user", "user:1", True)
        if turn % 4 == 0:
            asyncio.run(workers[(turn + 1) % 3][1].publish(NOW))
        if turn == 15:
            workers[1] = node.worker(1)  # killed, and replaced: what it had not published is lost
        found = scrape(workers[(turn * 2) % 3][1])
        assert found[ALLOWED] >= last
        last = found[ALLOWED]
    for _, publisher in workers:
        asyncio.run(publisher.publish(NOW))
    sums = {scrape(publisher)[ALLOWED] for _, publisher in workers}
    assert len(sums) == 1, "all tell the same"
    assert 28 <= sums.pop() <= 30


def test_what_the_limiter_knows_is_told(node: Node) -> None:
    _, publisher = node.worker(0)
    node.store.broken = True
    asyncio.run(publisher._limiter.check("user:1", "5/minute"))
    found = scrape(publisher)
    assert found["headgate_store_errors_total", ()] == 1
    assert found["headgate_rules", ()] == 1
    assert found["headgate_workers", ()] == 1
    assert found["headgate_cache_misses_total", (("cache", "rules"),)] == 0
    successor = node.worker(0)[1]
    assert scrape(successor)["headgate_store_errors_total", ()] == 1, "its own limiter has counted none"


def test_rules_that_are_read_anew_are_a_miss(node: Node) -> None:
    _, publisher = node.worker(0)
    path = node.folder / "headgate.yaml"
    path.write_text(path.read_text().replace("limit: 5", "limit: 6"))
    node.catalog.reload()
    node.catalog.refresh()
    assert scrape(publisher)["headgate_cache_misses_total", (("cache", "rules"),)] == 1


@pytest.mark.parametrize(("keys", "shown"), [("hashed", "sha256:[0-9a-f]{12}"), ("plain", "user:1")])
def test_keys_in_labels_are_shown_as_in_logs(node: Node, keys: Keys, shown: str) -> None:
    tally, publisher = node.worker(0, keys)
    tally.left("orders", "user:1", 3, NOW)
    ((labels, left),) = [
        (labels, value) for (name, labels), value in scrape(publisher).items() if name == "headgate_tokens_remaining"
    ]
    assert left == 3
    assert re.fullmatch(shown, dict(labels)["key"])


def test_seen_keys_of_all_workers(node: Node) -> None:
    (first, publisher), (second, other) = node.worker(0), node.worker(1)
    first.seen_key("user:1", NOW)
    first.seen_client("acme", NOW + 1)
    second.seen_key("user:2", NOW + 2)
    for one in (publisher, other):
        asyncio.run(one.publish(NOW + 3))
    seen = Board(node.folder / "boards", 0).seen()
    assert (list(seen.keys), list(seen.clients)) == (["user:2", "user:1"], ["acme"])


def test_what_is_seen_is_not_written_at_every_turn(node: Node) -> None:
    tally, publisher = node.worker(0)
    written = []
    for second in range(5):
        tally.seen_key(f"user:{second}", NOW)
        asyncio.run(publisher.publish(NOW + second * 1_000_000))
        written.append(len(Board(node.folder / "boards", 1).seen().keys))
    assert written == [1, 1, 3, 3, 5]


def test_the_last_numbers_of_a_worker_that_stops(node: Node) -> None:
    tally, publisher = node.worker(0)
    tally.decided("orders", "user", "user:1", True)
    publisher.close(NOW)
    assert scrape(node.worker(1)[1])[ALLOWED] == 1


def test_a_disk_that_is_full_leaves_the_last_numbers(
    node: Node, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    tally, publisher = node.worker(0)
    tally.decided("orders", "user", "user:1", True)
    assert scrape(publisher)[ALLOWED] == 1
    tally.decided("orders", "user", "user:1", True)

    def full(*_: object) -> None:
        raise OSError(28, "No space left on device")

    with monkeypatch.context() as patched:
        patched.setattr("headgate.service.observe.board.os.replace", full)
        assert scrape(publisher)[ALLOWED] == 1
    assert "No space left" in caplog.text
    assert scrape(publisher)[ALLOWED] == 2
