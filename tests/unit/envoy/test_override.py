"""Overrides in requests: they replace the configured limit, and use its counter."""

from __future__ import annotations

from pathlib import Path

import pytest

from crestgate.core.algorithms import ALGORITHMS, CONCURRENCY
from crestgate.core.limit import Limit
from crestgate.envoy.files import read_descriptor_files
from crestgate.envoy.matcher import MAX_OVERRIDES, Domains, Match

FOLDER = Path(__file__).parent / "documented"
MINUTE, HOUR, DAY, YEAR = 2, 3, 4, 6


@pytest.fixture(scope="module")
def domains() -> Domains:
    return read_descriptor_files(str(FOLDER)).domains


def overridden(domains: Domains, domain: str, entries: list[tuple[str, str]], requests: int, unit: int) -> Match:
    found = domains.override(domain, entries, requests, unit)
    assert found is not None
    return found


def limit_of(match: Match) -> Limit:
    assert match.limit.algorithm is not None
    return match.limit.algorithm.limit


def test_override_uses_the_configured_counter(domains: Domains) -> None:
    entries = [("kind", "advert"), ("recipient", "ann")]
    configured = domains.match("mail", entries)
    assert configured is not None
    found = overridden(domains, "mail", entries, 7, DAY)
    assert (found.key, found.label, found.limit.label) == (configured.key, configured.label, configured.limit.label)
    assert limit_of(found) == Limit(7, 86_400, algorithm="fixed_window")
    assert found.limit.algorithm is not None
    assert configured.limit.algorithm is not None
    assert found.limit.algorithm.name == configured.limit.algorithm.name
    assert (found.limit.requests_per_unit, found.limit.unit) == (7, DAY)


def test_override_of_another_period_has_its_own_counter(domains: Domains) -> None:
    found = overridden(domains, "mail", [("recipient", "ann")], 7, HOUR)
    assert found.limit.algorithm is not None
    assert found.limit.algorithm.name == "envoy:3600"


def test_override_shares_counters_as_configured(domains: Domains) -> None:
    assert overridden(domains, "shared", [("files", "files/a")], 7, HOUR).key == "shared|files~files/*"


def test_override_uses_the_configured_algorithm(domains: Domains) -> None:
    assert limit_of(overridden(domains, "ours", [("algorithm", "gcra")], 7, HOUR)) == Limit(7, 3600, algorithm="gcra")
    # Limits that the algorithm cannot count exactly use fixed windows.
    found = overridden(domains, "ours", [("algorithm", "gcra")], 2**32 - 1, YEAR)
    assert limit_of(found) == Limit(2**32 - 1, 365 * 86_400, algorithm="fixed_window")


@pytest.mark.parametrize("algorithm", [name for name in ALGORITHMS if name != CONCURRENCY])
def test_override_of_what_takes_a_burst_has_a_counter_for_each_number(algorithm: str, tmp_path: Path) -> None:
    limit = f"{{unit: hour, requests_per_unit: 5, algorithm: {algorithm}}}"
    (tmp_path / "limits.yaml").write_text(f"domain: d\ndescriptors: [{{key: k, rate_limit: {limit}}}]\n")
    found = overridden(read_descriptor_files(str(tmp_path)).domains, "d", [("k", "v")], 7, HOUR)
    assert found.limit.algorithm is not None
    separate = ALGORITHMS[algorithm].takes_burst
    assert found.limit.algorithm.name == ("envoy:3600:7" if separate else "envoy:3600")


def test_override_is_neither_shadow_nor_quota_nor_replaced(domains: Domains) -> None:
    for domain, entries in (
        ("shadow", [("service", "auth"), ("user", "ann")]),
        ("gateway", [("supplier", "first")]),
        ("replaces", [("verb", "read"), ("user", "ann")]),
    ):
        limit = overridden(domains, domain, entries, 7, HOUR).limit
        assert (limit.shadow, limit.quota, limit.name, limit.metadata) == (False, False, "", None)


def test_override_limits_an_unlimited_descriptor(domains: Domains) -> None:
    assert limit_of(overridden(domains, "unlimited", [("directory", "x")], 0, MINUTE)).count == 0


def test_override_without_configured_limit_has_a_general_label(domains: Domains) -> None:
    found = overridden(domains, "mail", [("user", "a|b"), ("pa=th", "")], 7, MINUTE)
    assert found.key == "mail|user=a%7Cb|pa%3Dth="
    assert found.label == found.limit.label == "mail.override"
    assert limit_of(found) == Limit(7, 60, algorithm="fixed_window")


def test_unknown_domain_has_no_override(domains: Domains) -> None:
    assert domains.override("nowhere", [("recipient", "ann")], 7, MINUTE) is None


@pytest.mark.parametrize("unit", [0, 8, -1])
def test_unknown_unit_is_refused(domains: Domains, unit: int) -> None:
    with pytest.raises(ValueError, match=f"unit must be one of 1 .SECOND. to 7 .WEEK., not {unit}"):
        domains.override("mail", [("recipient", "ann")], 7, unit)


@pytest.mark.parametrize("requests", [-1, 2**32])
def test_count_beyond_the_protocol_is_refused(domains: Domains, requests: int) -> None:
    with pytest.raises(ValueError, match="requests_per_unit must be a whole number from 0 to 4294967295"):
        domains.override("mail", [("recipient", "ann")], requests, DAY)


def test_override_cache_is_bounded(domains: Domains) -> None:
    for requests in range(MAX_OVERRIDES + 50):
        overridden(domains, "mail", [(f"key-{requests}", "x")], requests, MINUTE)
    assert len(domains._overrides) <= MAX_OVERRIDES


def test_override_is_cached(domains: Domains) -> None:
    first, second = (overridden(domains, "mail", [("recipient", name)], 7, DAY) for name in ("ann", "bob"))
    assert first.limit is second.limit
    assert first.key != second.key
