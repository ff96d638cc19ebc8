"""Settings are pickled for every worker: unpickled descriptors match the same limits, also in the compiled build."""

from __future__ import annotations

import pickle
from pathlib import Path
from typing import Any

import pytest

from crestgate.config.settings import load_settings
from crestgate.envoy.matcher import Domains, Match

EDGE = """
domain: edge
descriptors:
  - key: user
    rate_limit: {unit: minute, requests_per_unit: 3, name: per-user}
    detailed_metric: true
    descriptors:
      - key: path
        value: /files/*
        share_threshold: true
        rate_limit: {unit: second, requests_per_unit: 1, burst: 5, algorithm: token_bucket}
      - key: path
        value: /f*
        value_to_metric: true
        rate_limit: {unit: hour, requests_per_unit: 7, replaces: [{name: per-user}]}
      - key: path
        value: /files/one
        rate_limit: {unlimited: true}
  - key: plan
    value: gold
    shadow_mode: true
    metadata: {tier: {name: gold}}
    rate_limit: {unit: day, unit_multiplier: 2, requests_per_unit: 9, headers: false}
"""
OTHER = """
domain: other
descriptors:
  - key: user
    quota_mode: true
    rate_limit: {unit: year, requests_per_unit: 1}
"""
REQUESTS = [
    ("edge", [("user", "a")]),
    ("edge", [("user", "a"), ("path", "/files/one")]),
    ("edge", [("user", "a"), ("path", "/files/two")]),
    ("edge", [("user", "a"), ("path", "/f")]),
    ("edge", [("user", "a"), ("path", "/")]),
    ("edge", [("plan", "gold")]),
    ("edge", [("plan", "silver")]),
    ("other", [("user", "a")]),
    ("nowhere", [("user", "a")]),
]


def describe(match: Match | None) -> Any:
    if match is None:
        return None
    limit = match.limit
    algorithm = limit.algorithm
    steps = None if algorithm is None else (algorithm.limit, algorithm.name, algorithm.label)
    rest = (
        limit.name,
        limit.replaces,
        limit.shadow,
        limit.quota,
        limit.requests_per_unit,
        limit.unit,
        limit.metadata,
    )
    return match.key, match.label, limit.label, steps, rest


@pytest.fixture
def domains(tmp_path: Path) -> tuple[Domains, Domains]:
    folder = tmp_path / "envoy"
    folder.mkdir()
    (folder / "edge.yaml").write_text(EDGE)
    (folder / "other.yaml").write_text(OTHER)
    config = tmp_path / "crestgate.yaml"
    config.write_text(f"envoy: {{config: {folder}}}\n")
    settings = load_settings(str(config), {})
    arrived = pickle.loads(pickle.dumps(settings))
    assert arrived == settings
    assert settings.descriptor_files is not None
    assert arrived.descriptor_files.states == settings.descriptor_files.states
    assert arrived.descriptor_files.digests == settings.descriptor_files.digests
    return settings.descriptor_files.domains, arrived.descriptor_files.domains


def test_unpickled_domains_match_the_same(domains: tuple[Domains, Domains]) -> None:
    sent, arrived = domains
    found = [describe(sent.match(domain, entries)) for domain, entries in REQUESTS]
    assert [one is None for one in found] == [False] * 4 + [True, False, True, False, True]
    assert [describe(arrived.match(domain, entries)) for domain, entries in REQUESTS] == found
    assert arrived.counts == sent.counts
