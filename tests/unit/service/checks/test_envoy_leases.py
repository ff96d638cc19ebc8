"""Limits on descriptors with leases: decided from slices, and never more than the limit."""

from __future__ import annotations

import pickle
from collections.abc import Iterator
from pathlib import Path

import pytest

from crestgate.envoy.matcher import Domains
from crestgate.envoy.serialization import pack_domains, unpack_domains
from crestgate.stores.factory import open_store
from crestgate.testing import FakeClock
from unit.service.checks.proxy import START, Proxy, descriptor, domains_of

YAML = """
domain: edge
descriptors:
  - key: user
    rate_limit: {unit: minute, requests_per_unit: 100, lease: yes}
  - key: route
    rate_limit: {unit: minute, requests_per_unit: 100, lease: false}
"""


@pytest.fixture
def domains(tmp_path: Path) -> Domains:
    return domains_of(tmp_path, YAML)


@pytest.fixture
def proxy(tmp_path: Path, domains: Domains) -> Iterator[Proxy]:
    store = open_store(f"shared://{tmp_path}/counters", FakeClock(START))
    made = Proxy(domains, store=store)
    yield made
    made.runner.run(made.limiter.aclose())
    made.runner.close()
    store.close()


def leased(domains: Domains, entry: str, number: int = 0) -> bool:
    key, _, value = entry.partition("=")
    found = domains.override("edge", [(key, value)], number, 2) if number else domains.match("edge", [(key, value)])
    assert found is not None
    assert found.limit.algorithm is not None
    return found.limit.algorithm.lease


def test_lease_of_a_descriptor_reaches_the_workers(domains: Domains) -> None:
    other = unpack_domains(pickle.loads(pickle.dumps(pack_domains(domains))))
    for one in (domains, other):
        assert leased(one, "user=a")
        assert not leased(one, "route=a")
        assert one.leased is not None
        assert not leased(one, "user=a", 7), "an override in a request shares the counter, and has no lease"


def test_limits_without_leases_prepare_nothing(tmp_path: Path) -> None:
    domains = domains_of(tmp_path, YAML.replace("lease: yes", "lease: no"))
    assert domains.leased is None


def test_leased_limit_admits_no_more_than_its_limit(proxy: Proxy) -> None:
    for entry in ("user=a", "route=a"):
        allowed = [proxy.passes(descriptor(entry)) for _ in range(120)]
        assert allowed == [True] * 100 + [False] * 20
    decisions = proxy.limiter.backend.local_decisions
    assert decisions is not None
    assert [key for key, _ in decisions.table.leases] == ["edge|user=a"]
    assert decisions.leased_locally > 0
