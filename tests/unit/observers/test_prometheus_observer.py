"""Metrics of the library: the service's names and labels, counted once, bounded."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from typing import Any

import pytest
from prometheus_client import REGISTRY, CollectorRegistry
from prometheus_client.exposition import generate_latest
from prometheus_client.parser import text_string_to_metric_families

from crestgate import ConfigError, Limiter, RequestContext
from crestgate.observers.labels import MAX_RULE_LABELS
from crestgate.observers.prometheus import PrometheusObserver
from crestgate.service.observability.metrics import BY_NAME
from flaky_store import Flaky


@pytest.fixture
def registry() -> CollectorRegistry:
    return CollectorRegistry()


@pytest.fixture
def observer(registry: CollectorRegistry) -> PrometheusObserver:
    return PrometheusObserver(registry)


def value(registry: CollectorRegistry, name: str, **labels: str) -> float | None:
    return registry.get_sample_value(name, labels)


def test_decisions_are_counted_by_limit(registry: CollectorRegistry, observer: PrometheusObserver) -> None:
    limiter = Limiter("memory://", plans={"gold": "2/minute"}, observer=observer)
    for _ in range(3):
        limiter.check("user:42", "gold")
    limiter.check_many([("user:7", "100/hour"), ("user:8", "100/hour")])
    limiter.peek("user:42", "gold")
    limiter.reset("user:42", "gold")
    assert value(registry, "crestgate_allowed_total", rule="gold", dimension="key") == 2
    assert value(registry, "crestgate_blocked_total", rule="gold", dimension="key") == 1
    assert value(registry, "crestgate_allowed_total", rule="100/hour", dimension="key") == 2
    assert value(registry, "crestgate_check_duration_seconds_count") == 4, "checks and batches, no peeks and resets"
    assert value(registry, "crestgate_batch_size_bucket", le="1.0") == 5
    assert value(registry, "crestgate_batch_size_count") == 6
    assert b"user:" not in generate_latest(registry)


def test_rules_and_shadow_rules(registry: CollectorRegistry, observer: PrometheusObserver, tmp_path: Any) -> None:
    path = tmp_path / "crestgate.yaml"
    path.write_text(
        "store: memory://\nrules:\n"
        "- {rule_id: per-ip, dimension: ip, limit: 1, window_seconds: 60}\n"
        "- {rule_id: trial, dimension: ip, limit: 0, window_seconds: 60, mode: shadow}\n"
    )
    with Limiter.from_config(path, environ={}, observer=observer) as limiter:
        limiter.check_request(RequestContext(ip="192.0.2.1"))
        limiter.check_request(RequestContext(user="42"))
    assert value(registry, "crestgate_allowed_total", rule="per-ip", dimension="ip") == 1
    assert value(registry, "crestgate_shadow_blocked_total", rule="trial", dimension="ip") == 1
    assert value(registry, "crestgate_allowed_total", rule="no_rule", dimension="none") == 1


def test_store_errors_and_fail_open(registry: CollectorRegistry, observer: PrometheusObserver) -> None:
    store = Flaky()
    opened = Limiter(store, observer=observer)
    closed = Limiter(store, observer=observer, on_store_error="closed")
    store.broken = True
    opened.check_many([("a", "1/minute"), ("b", "1/minute")])
    closed.check("a", "1/minute")
    assert value(registry, "crestgate_store_errors_total") == 3
    assert value(registry, "crestgate_fail_open_total") == 2
    assert value(registry, "crestgate_allowed_total", rule="1/minute", dimension="key") == 2
    assert value(registry, "crestgate_blocked_total", rule="1/minute", dimension="key") == 1


def test_breaker_state_is_read_when_it_is_scraped(registry: CollectorRegistry, observer: PrometheusObserver) -> None:
    name = "Redis at 127.0.0.1:1"
    assert value(registry, "crestgate_breaker_state", store=name) is None
    limiter = unreachable_redis(observer)
    for _ in range(4):
        limiter.check("a", "1/minute")
    assert value(registry, "crestgate_breaker_state", store=name) in (1, 2), "open, or half-open after a second"
    limiter.close()


def unreachable_redis(observer: PrometheusObserver) -> Limiter:
    from crestgate import AsyncLimiter

    return Limiter.sharing(AsyncLimiter("redis://127.0.0.1:1?timeout_ms=200", observer=observer), connect=False)


def test_series_are_bounded(registry: CollectorRegistry, observer: PrometheusObserver) -> None:
    limiter = Limiter("memory://", observer=observer)
    for number in range(1, MAX_RULE_LABELS + 51):
        limiter.check("a", f"{number}/minute")
    (allowed,) = [family for family in registry.collect() if family.name == "crestgate_allowed"]
    series = [sample for sample in allowed.samples if sample.name.endswith("_total")]
    assert len(series) == MAX_RULE_LABELS + 1
    assert value(registry, "crestgate_allowed_total", rule="other", dimension="key") == 50


def test_names_are_those_of_the_service(registry: CollectorRegistry, observer: PrometheusObserver) -> None:
    """One dashboard shows both."""
    limiter = unreachable_redis(observer)
    limiter.check("a", "1/minute")
    families = {family.name: family for family in text_string_to_metric_families(generate_latest(registry).decode())}
    for family in families.values():
        if family.name.endswith("_created"):
            continue
        spec = BY_NAME[family.name.removeprefix("crestgate_")]
        assert family.type == spec.kind
        for sample in family.samples:
            assert sample.labels.keys() - {"le"} == set(spec.labels)
        if spec.buckets:
            limits = [sample.labels["le"] for sample in family.samples if sample.name.endswith("_bucket")]
            assert [float(limit) for limit in limits[:-1]] == list(spec.buckets)
    assert {
        "crestgate_allowed",
        "crestgate_blocked",
        "crestgate_breaker_state",
        "crestgate_fail_open",
    } <= families.keys()


def test_prefix(registry: CollectorRegistry) -> None:
    Limiter("memory://", observer=PrometheusObserver(registry, prefix="throttlex")).check("a", "1/minute")
    assert value(registry, "throttlex_allowed_total", rule="1/minute", dimension="key") == 1


@pytest.mark.parametrize("prefix", ["", "1a", "a-b", "a" * 65, None])
def test_bad_prefix(registry: CollectorRegistry, prefix: Any) -> None:
    with pytest.raises(ConfigError, match="prefix must be"):
        PrometheusObserver(registry, prefix)


def test_registry_that_has_them_already(registry: CollectorRegistry, observer: PrometheusObserver) -> None:
    with pytest.raises(ConfigError, match="use one PrometheusObserver for all limiters"):
        PrometheusObserver(registry)
    with pytest.raises(ConfigError, match="registry must be"):
        PrometheusObserver(observer)  # type: ignore[arg-type]


@pytest.fixture
def global_registry() -> Iterator[CollectorRegistry]:
    before = set(REGISTRY._collector_to_names)
    yield REGISTRY
    for collector in set(REGISTRY._collector_to_names) - before:
        REGISTRY.unregister(collector)


def test_global_registry_is_the_default(global_registry: CollectorRegistry) -> None:
    Limiter("memory://", observer=PrometheusObserver(prefix="by_default")).check("a", "1/minute")
    assert value(global_registry, "by_default_allowed_total", rule="1/minute", dimension="key") == 1


def test_missing_package_names_the_extra(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delitem(sys.modules, "crestgate.observers.prometheus")
    monkeypatch.setitem(sys.modules, "prometheus_client", None)
    with pytest.raises(ImportError, match=r"prometheus_client: pip install '.\[prometheus\]'"):
        import crestgate.observers.prometheus  # noqa: F401
