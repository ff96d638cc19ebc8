"""Alerts, recording rules and the dashboard read metrics and labels that a service exports; promtool parses them."""

from __future__ import annotations

import json
from functools import cache
from pathlib import Path

import pytest
import yaml
from prometheus_client.parser import text_string_to_metric_families

from integration.deploy.prometheus_files import ALERTS, FOLDER, RECORDING, metric_names, promtool, rules_of, selectors
from integration.service.service_process import Service
from servers.redis import RedisServer, self_signed

DASHBOARD = FOLDER.parent / "grafana" / "crestgate.json"
OWN = {"up"}
"""Of Prometheus itself."""
TARGET_LABELS = {"job", "instance", "le"}
"""Added by Prometheus, and by histograms."""
RULES = """\
store: {redis}
server: {{tls: {{certificate: {certificate}, key: {key}}}}}
rules:
  - {{rule_id: few, dimension: user, limit: 1, window_seconds: 3600}}
  - {{rule_id: fewer, dimension: user, limit: 1, window_seconds: 60, mode: shadow}}
"""


@pytest.fixture(scope="module")
def exported(tmp_path_factory: pytest.TempPathFactory) -> dict[str, set[str]]:
    """The label names of each metric of a service that has decided something."""
    folder = tmp_path_factory.mktemp("service")
    certificate = self_signed(folder)
    with RedisServer() as redis:
        config = RULES.format(redis=redis.url, certificate=certificate, key=certificate.with_suffix(".key"))
        with Service(folder, config) as service, service.client() as client:
            for _ in range(3):
                client.post("/api/v1/check", json={"dimension": "user", "identifier": "42", "endpoint": "/"})
            found: dict[str, set[str]] = {}
            for family in text_string_to_metric_families(client.get("/metrics").text):
                for sample in family.samples:
                    found.setdefault(sample.name, set()).update(sample.labels)
    return found


@cache
def expressions() -> dict[str, str]:
    """All expressions, by where they are."""
    found = {rule["alert"]: rule["expr"] for rule in rules_of(ALERTS)}
    found |= {rule["record"]: rule["expr"] for rule in rules_of(RECORDING)}
    for panel in json.loads(DASHBOARD.read_text())["panels"]:
        for target in panel.get("targets", ()):
            found[f"{panel['title']} {target['refId']}"] = target["expr"].replace("$__rate_interval", "5m")
    return found


def test_every_expression_is_valid(tmp_path: Path) -> None:
    rules = [{"record": f"x:{number}", "expr": expression} for number, expression in enumerate(expressions().values())]
    path = tmp_path / "rules.yaml"
    path.write_text(yaml.safe_dump({"groups": [{"name": "all", "rules": rules}]}))
    promtool("check", "rules", str(path))


def test_every_metric_is_exported(exported: dict[str, set[str]]) -> None:
    recorded = {rule["record"] for rule in rules_of(RECORDING)}
    read = {name: where for where, expression in expressions().items() for name in metric_names(expression)}
    assert len(read) > 30
    unknown = {name: where for name, where in read.items() if name not in exported.keys() | recorded | OWN}
    assert not unknown


def test_every_label_exists(exported: dict[str, set[str]]) -> None:
    for where, expression in expressions().items():
        for name, labels in selectors(expression):
            if name in exported:
                assert labels <= exported[name] | TARGET_LABELS, (where, name)


def test_every_metric_of_the_service_is_on_the_dashboard(exported: dict[str, set[str]]) -> None:
    """Of what a shut-off feature does not export, nothing is."""
    shown = DASHBOARD.read_text()
    left_out = {"crestgate_cache_hits_total", "crestgate_tokens_remaining"}
    bases = {name.removesuffix("_bucket").removesuffix("_count").removesuffix("_sum") for name in exported}
    missing = {name for name in bases if name.startswith("crestgate_") and name not in shown}
    assert {name for name in missing if not name.endswith("_created")} == left_out & exported.keys()
