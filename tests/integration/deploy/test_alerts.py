"""deploy/prometheus: promtool accepts the rules, and each alert fires when it should and not before."""

from __future__ import annotations

import re
from dataclasses import dataclass
from pathlib import Path

import pytest
import yaml

from integration.deploy.prometheus_files import ALERTS, RECORDING, promtool, rules_of

DOCS = ALERTS.parent.parent.parent / "docs"
BY_NAME = {rule["alert"]: rule for rule in rules_of(ALERTS)}
END = 25
"""Minutes after the start at which alerts are evaluated, unless said."""
DAY = 86_400


@dataclass(frozen=True)
class Example:
    """Series of `bad`, for which an alert fires, and of `good`, for which it does not. One value a minute."""

    bad: dict[str, str]
    good: dict[str, str]
    pending: bool = True
    """Whether it fires only after a time (`for`)."""
    end: int = END


EXAMPLES = {
    "CrestgateDown": Example(
        {'up{job="crestgate",instance="bad"}': "0x70"}, {'up{job="crestgate",instance="good"}': "1x70"}
    ),
    "CrestgateAbsent": Example({"other": "1x70"}, {'crestgate_build_info{version="1"}': "1x70"}),
    "CrestgateWorkerMissing": Example(
        {'crestgate_workers{job="bad"}': "4x15 3x20"}, {'crestgate_workers{job="good"}': "4x70"}
    ),
    "CrestgateServerErrors": Example(
        {'crestgate_requests_total{job="bad",plane="data",status="503"}': "0+60x70"},
        {
            'crestgate_requests_total{job="good",plane="data",status="200"}': "0+600x70",
            'crestgate_requests_total{job="good",plane="control",status="500"}': "0+1x70",
        },
    ),
    "CrestgateStoreUnavailable": Example(
        {'crestgate_breaker_state{job="bad",store="Redis at a:1"}': "2x70"},
        {'crestgate_breaker_state{job="good",store="Redis at a:1"}': "1x70"},
    ),
    "CrestgateNotLimiting": Example(
        {'crestgate_fail_open_total{job="bad"}': "0+1x70"}, {'crestgate_fail_open_total{job="good"}': "7x70"}
    ),
    "CrestgateStoreErrors": Example(
        {
            'crestgate_store_errors_total{job="bad"}': "0+120x70",
            'crestgate_check_duration_seconds_count{job="bad"}': "0+6000x70",
        },
        {
            'crestgate_store_errors_total{job="good"}': "0+30x70",
            'crestgate_check_duration_seconds_count{job="good"}': "0+6000x70",
        },
    ),
    "CrestgateChecksSlow": Example(
        {
            'crestgate_check_duration_seconds_bucket{job="bad",le="0.1"}': "0+90x70",
            'crestgate_check_duration_seconds_bucket{job="bad",le="0.25"}': "0+100x70",
            'crestgate_check_duration_seconds_bucket{job="bad",le="+Inf"}': "0+100x70",
        },
        {
            'crestgate_check_duration_seconds_bucket{job="good",le="0.1"}': "0+1000x70",
            'crestgate_check_duration_seconds_bucket{job="good",le="0.25"}': "0+1001x70",
            'crestgate_check_duration_seconds_bucket{job="good",le="+Inf"}': "0+1001x70",
        },
    ),
    "CrestgateSharedFileFull": Example(
        {'crestgate_store_logs_full_total{job="bad"}': "0+1x70"},
        {'crestgate_store_logs_full_total{job="good"}': "3x70"},
    ),
    "CrestgateSharedFileDamaged": Example(
        {'crestgate_store_resets_total{job="bad"}': "0x20 1x20"},
        {'crestgate_store_resets_total{job="good"}': "5x70"},
        pending=False,
    ),
    "CrestgateMigrationErrors": Example(
        {
            'crestgate_migrate_from_errors_total{job="bad"}': "0x70",
            'crestgate_migrate_to_errors_total{job="bad"}': "0+5x70",
        },
        {
            'crestgate_migrate_from_errors_total{job="good"}': "2x70",
            'crestgate_migrate_to_errors_total{job="good"}': "2x70",
        },
    ),
    "CrestgateRulesNotReloaded": Example(
        {'crestgate_rules_reload_failures_total{job="bad"}': "0+60x70"},
        {'crestgate_rules_reload_failures_total{job="good"}': "1x70"},
    ),
    "CrestgateRulesUnreadable": Example(
        {'crestgate_rules_unreadable{job="bad"}': "1x70"}, {'crestgate_rules_unreadable{job="good"}': "0x70"}
    ),
    "CrestgateDescriptorsNotReloaded": Example(
        {'crestgate_envoy_reload_failures_total{job="bad"}': "0+60x70"},
        {'crestgate_envoy_reload_failures_total{job="good"}': "1x70"},
    ),
    "CrestgateDenialsHigh": Example(
        {
            'crestgate_allowed_total{job="bad",rule="orders",dimension="user"}': "0+60x70",
            'crestgate_blocked_total{job="bad",rule="orders",dimension="user"}': "0+300x70",
        },
        {
            'crestgate_allowed_total{job="good",rule="orders",dimension="user"}': "0+900x70",
            'crestgate_blocked_total{job="good",rule="orders",dimension="user"}': "0+300x70",
            'crestgate_allowed_total{job="good",rule="log-in",dimension="ip"}': "0+1x70",
            'crestgate_blocked_total{job="good",rule="log-in",dimension="ip"}': "0+6x70",
        },
    ),
    "CrestgateHotKey": Example(
        {
            'crestgate_blocked_total{job="bad",rule="orders",dimension="user"}': "0+6000x70",
            'crestgate_pressure_transitions_total{job="bad",state="throttled"}': "0+1x70",
        },
        {
            'crestgate_blocked_total{job="good",rule="orders",dimension="user"}': "0+6000x70",
            'crestgate_pressure_transitions_total{job="good",state="throttled"}': "0+600x70",
            'crestgate_pressure_transitions_total{job="good",state="warning"}': "0+600x70",
        },
    ),
    "CrestgateUnauthorizedCalls": Example(
        {
            'crestgate_requests_total{job="bad",plane="control",status="401"}': "0+40x70",
            'crestgate_requests_total{job="bad",plane="grpc",status="16"}': "0+40x70",
        },
        {
            'crestgate_requests_total{job="good",plane="control",status="401"}': "0+40x70",
            'crestgate_requests_total{job="good",plane="grpc",status="0"}': "0+4000x70",
        },
    ),
    "CrestgateCallersLimited": Example(
        {'crestgate_requests_total{job="bad",plane="data",status="429"}': "0+600x70"},
        {'crestgate_requests_total{job="good",plane="data",status="200"}': "0+600x70"},
    ),
    "CrestgateCertificateExpiring": Example(
        {'crestgate_certificate_expiry_timestamp_seconds{job="bad",certificate="a.pem"}': f"{13 * DAY}x70"},
        {'crestgate_certificate_expiry_timestamp_seconds{job="good",certificate="a.pem"}': f"{15 * DAY}x70"},
        end=65,
    ),
    "CrestgateCertificateExpired": Example(
        {'crestgate_certificate_expiry_timestamp_seconds{job="bad",certificate="a.pem"}': "3600x70"},
        {'crestgate_certificate_expiry_timestamp_seconds{job="good",certificate="a.pem"}': f"{3 * DAY}x70"},
        pending=False,
    ),
    "CrestgateCertificateNotReloaded": Example(
        {'crestgate_certificate_reload_failures_total{job="bad"}': "0+60x70"},
        {'crestgate_certificate_reload_failures_total{job="good"}': "1x70"},
    ),
}


def expectation(name: str, minute: int, firing: int) -> dict[str, object]:
    """How many alerts of this name fire at a minute."""
    samples = [{"labels": "{}", "value": firing}] if firing else []
    expression = f'count(ALERTS{{alertname="{name}",alertstate="firing"}})'
    return {"expr": expression, "eval_time": f"{minute}m", "exp_samples": samples}


def run_tests(folder: Path, tests: list[tuple[dict[str, str], list[dict[str, object]]]]) -> None:
    document = {
        "rule_files": [str(RECORDING), str(ALERTS)],
        "evaluation_interval": "1m",
        "tests": [
            {
                "interval": "1m",
                "input_series": [{"series": name, "values": values} for name, values in series.items()],
                "promql_expr_test": expected,
            }
            for series, expected in tests
        ],
    }
    path = folder / "test.yaml"
    path.write_text(yaml.safe_dump(document))
    promtool("test", "rules", str(path))


def test_rules_are_valid() -> None:
    promtool("check", "rules", str(ALERTS), str(RECORDING))


def test_every_alert_has_an_example() -> None:
    assert set(EXAMPLES) == set(BY_NAME)


def test_each_alert_fires_when_it_should(tmp_path: Path) -> None:
    """In one run of promtool; a failure names the alert."""
    tests = []
    for name, example in EXAMPLES.items():
        expected = [expectation(name, example.end, 1)]
        if example.pending:
            expected.append(expectation(name, 0, 0))
        together = example.bad if name == "CrestgateAbsent" else {**example.bad, **example.good}
        tests += [(together, expected), (example.good, [expectation(name, example.end, 0)])]
        assert example.pending is ("for" in BY_NAME[name]), name
    run_tests(tmp_path, tests)


def test_a_test_can_fail(tmp_path: Path) -> None:
    example = EXAMPLES["CrestgateNotLimiting"]
    with pytest.raises(AssertionError, match="CrestgateNotLimiting"):
        run_tests(tmp_path, [(example.good, [expectation("CrestgateNotLimiting", END, 1)])])


@pytest.mark.parametrize("name", BY_NAME)
def test_alert_says_what_to_do(name: str) -> None:
    rule = BY_NAME[name]
    assert rule["labels"]["severity"] in ("critical", "warning", "info")
    notes = rule["annotations"]
    assert set(notes) == {"summary", "description", "runbook_url"}
    page, _, anchor = notes["runbook_url"].partition("#")
    assert page == "docs/runbook.md"
    headings = re.findall(r"^## (.+)$", (DOCS / "runbook.md").read_text(), re.MULTILINE)
    anchors = {re.sub(r"[^\w -]", "", heading.lower()).replace(" ", "-"): heading for heading in headings}
    assert anchor in anchors
    text = (DOCS / "runbook.md").read_text().partition(f"## {anchors[anchor]}\n")[2].partition("\n## ")[0]
    assert f"`{name}`" in text, "the page names the alert that leads to it"
