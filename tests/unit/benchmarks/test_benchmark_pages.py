"""The pages of the benchmarks, written from small results: what they say of targets, and that nothing is left out."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
from benchmarks import front_page, page, summary
from benchmarks.aims import at_least, at_least_rate, at_most
from benchmarks.candidates import ALGORITHMS
from benchmarks.figures import Spread
from benchmarks.formatting import in_times
from benchmarks.frameworks import page as frameworks_page
from benchmarks.growth import page as growth_page
from benchmarks.growth import results as growth_results
from benchmarks.latency import page as latency_page
from benchmarks.latency import results as latency_results
from benchmarks.network import page as network_page
from benchmarks.network import results as network_results
from benchmarks.peer_services import page as peers_page
from benchmarks.peer_services import results as peers_results
from benchmarks.rpc import page as rpc_page
from benchmarks.service import page as service_page
from benchmarks.service import results as service_results

from benchmark_results import (
    BUILD,
    all_summaries,
    frameworks_run,
    growth_run,
    latency_run,
    machine_results,
    network_run,
    peers_run,
    rpc_run,
    service_run,
)


def test_targets_are_of_the_slower_form() -> None:
    found = {aim.what: aim for aim in page.aims(machine_results())}
    memory = found["memory, gcra, admitted: ÷ fastest peer"]
    assert (memory.measured.median, memory.met, memory.target, memory.note) == (12.0, False, "≥ 15×", "text, limits")
    denied = found["memory, gcra, denied: ÷ fastest peer"]
    assert (denied.measured.median, denied.met, denied.target) == (4.5, False, "≥ 6×")
    shared = found["shared memory, gcra: ÷ fastest Redis call"]
    assert (shared.measured.median, shared.met, shared.target) == (50.0, True, "≥ 25×")
    assert len(found) == 3 * len(ALGORITHMS)


def test_network_targets() -> None:
    found = [(aim.target, aim.measured.median, aim.met) for aim in network_results.aims(network_run())]
    assert found == [
        ("≥ 8×", 9.0, True),
        ("≥ 12×", 9.0, False),
        ("≥ 40×", 9.0, False),
        ("≤ 1.25×", 1.0, True),
        ("≥ 8×", 9.0, True),
    ]


def test_batches_count_by_processor_time() -> None:
    for aim in service_results.aims(service_run()):
        assert (aim.target, aim.measured.median, aim.met) == ("≥ 100,000/s", 200_000.0, True)
        assert aim.bound == 100_000


def test_database_targets_of_latency() -> None:
    rate, p50, p99 = latency_results.aims(latency_run())
    assert (rate.measured.median, rate.met, rate.target) == (8_000.0, False, "≥ 10,000/s")
    assert p50.met
    assert p50.measured.median == pytest.approx(1.0, rel=0.02)
    assert p99.target == "≤ 3 ms"
    assert p99.met


def test_targets_beside_other_services() -> None:
    found = {aim.what: aim for aim in peers_results.aims(peers_run())}
    assert len(found) == 8
    per_core = found["gRPC per core, 10,000 keys: Crestgate ÷ envoyproxy/ratelimit, both on Redis"]
    assert (per_core.measured.median, per_core.met) == (4.0, True)
    assert found["gRPC per core, one key: Crestgate ÷ gubernator, both in memory"].met
    latency = found["gRPC at 2,000/s, one key: p50 ÷ envoyproxy/ratelimit's"]
    assert latency.measured.median == pytest.approx(2.0, rel=0.02)
    assert not latency.met


def test_page_without_other_services_says_so() -> None:
    text = peers_page.write(peers_run(installed=False))
    assert "no other service could be installed" in text
    assert "limitador: its server is not packaged" in text


@pytest.mark.parametrize(("last", "met"), [(2.4, True), (2.5, False)])
def test_keys_may_cost_a_fifth_more_than_a_dicts(last: float, met: bool) -> None:
    aim = growth_results.aims(growth_run(last=last))[0]
    assert (aim.target, aim.met) == ("≤ 1.2×", met)
    assert aim.measured.median == pytest.approx(last / 2)


def test_detail_pages_have_all_their_tables() -> None:
    pages = [
        page.write(machine_results()),
        network_page.write(network_run()),
        service_page.write(service_run()),
        rpc_page.write(rpc_run()),
        latency_page.write(latency_run()),
        peers_page.write(peers_run()),
        growth_page.write(growth_run()),
        frameworks_page.write(frameworks_run()),
    ]
    for text in pages:
        assert text.startswith("# Benchmarks ")
        assert not re.search(r"\{\w+(:[.,]|\})", text), "a field that was not filled in"
        assert "nan" not in text
        for line in text.splitlines():
            assert not line.startswith("|") or line.endswith("|")


def test_summaries_are_kept_as_they_are(tmp_path: Path) -> None:
    file = tmp_path / "measured.json"
    assert summary.load(file) == {}
    summary.save(file, all_summaries())
    assert summary.load(file) == all_summaries()


def test_front_page_begins_with_what_users_get(tmp_path: Path) -> None:
    (tmp_path / "benchmarks-growth.md").touch()
    text = front_page.write(all_summaries(), "2", tmp_path)
    headings = re.findall(r"^## (.*)$", text, re.MULTILINE)
    assert headings == [
        "What it means for you",
        "Beside others",
        "Beside the least that is possible",
        "Targets, met or missed",
        "All figures",
    ]
    cells = {
        line.split("|")[1].strip(): [cell.strip() for cell in line.split("|")[2:-1]]
        for line in text.splitlines()
        if "|" in line
    }
    assert cells["library, `memory://`"] == ["500,000", "2,000,000", "2.00 µs"]
    assert cells["service over gRPC, shared memory"][:2] == ["8,000", "20,000"]
    assert cells["service over HTTP, `memory://`"][2].startswith("1.0")
    assert "benchmarks-growth.md" in text
    assert "benchmarks-rpc.md" not in text, "a page that does not exist"
    assert "limitador" in text
    assert "HTTP, tape: too slow" in text


def test_front_page_without_a_run_has_its_headings(tmp_path: Path) -> None:
    text = front_page.write({}, "2", tmp_path)
    assert text.count("Not measured yet") == 4
    assert "benchmarks.svg" not in text


def test_front_page_names_missed_targets_first(tmp_path: Path) -> None:
    measured = Spread(2.0, 1.0, 3.0)
    aims = [at_least("one", measured, 1.0), at_least("two", measured, 3.0), at_most("three", measured, 4.0)]
    one = summary.Summary("2026-01-02", BUILD, "0.5", True, aims=aims)
    text = front_page.write({"machine": one}, "2", tmp_path)
    assert "Of 3 targets, 2 are met and 1 missed." in text
    assert text.index("| two") < text.index("| one")
    assert "to be measured again: machine" in text


def test_large_figures_have_no_fractions() -> None:
    assert in_times(Spread(123_456.7, 100_000.0, 200_000.4)) == "123,457 (100,000–200,000)"
    assert in_times(Spread(12.34, 9.0, 15.0)) == "12.3 (9.0–15.0)"
    assert not at_least_rate("rate", Spread(1.0, 1.0, 1.0), 2).is_ratio
