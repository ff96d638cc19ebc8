"""deploy/kubernetes against the schemas of Kubernetes, from the package kubernetes-validate, and of the operator."""

from __future__ import annotations

import copy
from pathlib import Path
from typing import Any

import jsonschema
import kubernetes_validate
import pytest
import yaml
from tools.prometheus_rule import manifest

FOLDER = Path(__file__).parent.parent.parent.parent / "deploy" / "kubernetes"
VERSIONS = ["1.27.0", "1.30.0", "1.33.0"]
"""From the oldest that the files are meant for. Later ones of the package are used for later versions."""
CUSTOM = {"Kustomization", "ServiceMonitor", "PrometheusRule"}
"""Kinds that are not of Kubernetes itself."""
SERVICE_MONITOR = {
    "type": "object",
    "required": ["selector", "endpoints"],
    "additionalProperties": False,
    "properties": {
        "jobLabel": {"type": "string"},
        "selector": {
            "type": "object",
            "additionalProperties": False,
            "properties": {"matchLabels": {"type": "object", "additionalProperties": {"type": "string"}}},
        },
        "endpoints": {
            "type": "array",
            "minItems": 1,
            "items": {
                "type": "object",
                "required": ["port"],
                "additionalProperties": False,
                "properties": {
                    "port": {"type": "string"},
                    "path": {"type": "string", "pattern": "^/"},
                    "scheme": {"enum": ["http", "https"]},
                    "interval": {"type": "string", "pattern": "^[0-9]+(ms|s|m|h)$"},
                    "scrapeTimeout": {"type": "string", "pattern": "^[0-9]+(ms|s|m|h)$"},
                    "authorization": {
                        "type": "object",
                        "required": ["credentials"],
                        "additionalProperties": False,
                        "properties": {
                            "type": {"type": "string"},
                            "credentials": {
                                "type": "object",
                                "required": ["name", "key"],
                                "additionalProperties": False,
                                "properties": {"name": {"type": "string"}, "key": {"type": "string"}},
                            },
                        },
                    },
                },
            },
        },
    },
}
"""The fields that ours has, as monitoring.coreos.com/v1 declares them."""


def documents(path: Path) -> list[Any]:
    return list(yaml.safe_load_all(path.read_text()))


ALL = {
    f"{path.relative_to(FOLDER)} {one['kind']} {one['metadata']['name']}": one
    for path in sorted(FOLDER.rglob("*.yaml"))
    for one in documents(path)
    if isinstance(one, dict) and one["kind"] != "Kustomization"
}
OWN = {name: one for name, one in ALL.items() if one["kind"] not in CUSTOM}
SCALER = yaml.safe_load((FOLDER / "horizontalpodautoscaler.yaml").read_text())
JOB = yaml.safe_load((FOLDER / "upgrade" / "job.yaml").read_text())
MONITOR = yaml.safe_load((FOLDER / "monitoring" / "servicemonitor.yaml").read_text())


@pytest.mark.parametrize("version", VERSIONS)
def test_manifests_follow_the_schemas(version: str) -> None:
    assert len(OWN) >= 10
    for name, one in OWN.items():
        try:
            kubernetes_validate.validate(one, version, strict=True)
        except kubernetes_validate.ValidationError as error:
            raise AssertionError(f"{name}: {error}") from error


@pytest.mark.parametrize("name", [name for name, one in OWN.items() if one["kind"] in ("Deployment", "Job")])
def test_a_misspelt_field_is_rejected(name: str) -> None:
    broken = copy.deepcopy(OWN[name])
    broken["spec"]["template"]["spec"]["containers"][0]["imagePullPolice"] = "Always"
    with pytest.raises(kubernetes_validate.ValidationError):
        kubernetes_validate.validate(broken, VERSIONS[0], strict=True)


def test_autoscaler_by_checks_per_second_follows_the_schema() -> None:
    """As kustomize patches it: an entry is added to the list of metrics."""
    (patch,) = yaml.safe_load((FOLDER / "monitoring" / "autoscaler-checks.yaml").read_text())
    assert (patch["op"], patch["path"]) == ("add", "/spec/metrics/-")
    patched = copy.deepcopy(SCALER)
    patched["spec"]["metrics"].append(patch["value"])
    kubernetes_validate.validate(patched, VERSIONS[0], strict=True)
    assert [metric["type"] for metric in patched["spec"]["metrics"]] == ["Resource", "Pods"]
    adapter = yaml.safe_load((FOLDER.parent / "prometheus" / "adapter.yaml").read_text())
    (rule,) = adapter["rules"]
    assert rule["name"]["as"] == patch["value"]["pods"]["metric"]["name"]
    kustomization = yaml.safe_load((FOLDER / "monitoring" / "kustomization.yaml").read_text())
    (used,) = kustomization["patches"]
    assert used["path"] == "autoscaler-checks.yaml"
    assert used["target"] == {"kind": SCALER["kind"], "name": SCALER["metadata"]["name"]}
    assert kustomization["resources"] == ["..", "servicemonitor.yaml", "prometheusrule.yaml"]


def test_service_monitor_finds_the_metrics() -> None:
    assert MONITOR["apiVersion"] == "monitoring.coreos.com/v1"
    jsonschema.Draft202012Validator(SERVICE_MONITOR).validate(MONITOR["spec"])
    services = [one for one in ALL.values() if one["kind"] == "Service"]
    wanted = MONITOR["spec"]["selector"]["matchLabels"]
    (endpoint,) = MONITOR["spec"]["endpoints"]
    scraped = [
        service["metadata"]["name"]
        for service in services
        if wanted.items() <= service["metadata"]["labels"].items()
        and endpoint["port"] in {port["name"] for port in service["spec"]["ports"]}
    ]
    assert scraped == ["crestgate"], "each pod once"
    assert wanted[MONITOR["spec"]["jobLabel"]] == "crestgate", "the job of the alerts"


def test_prometheus_rules_are_those_of_the_files() -> None:
    path = FOLDER / "monitoring" / "prometheusrule.yaml"
    found = {one["metadata"]["name"]: one for one in documents(path)}
    assert {*found} == {"crestgate-recording", "crestgate-alerts"}
    for name, one in found.items():
        assert (one["apiVersion"], one["kind"]) == ("monitoring.coreos.com/v1", "PrometheusRule")
        source = FOLDER.parent / "prometheus" / f"{name.removeprefix('crestgate-')}.yaml"
        assert one["spec"] == yaml.safe_load(source.read_text())
    assert path.read_text() == manifest(), "run `python -m tools.prometheus_rule`"


def test_upgrade_job_is_a_hook_and_unprivileged() -> None:
    notes = JOB["metadata"]["annotations"]
    assert notes["argocd.argoproj.io/hook"] == "PreSync"
    assert notes["helm.sh/hook"] == "pre-install,pre-upgrade"
    pod = JOB["spec"]["template"]["spec"]
    (container,) = pod["containers"]
    assert container["args"] == ["db", "upgrade"]
    assert {one["name"] for one in container["env"]} == {"CRESTGATE_STORE", "CRESTGATE_RULES_STORE"}
    rights = {**pod["securityContext"], **container["securityContext"]}
    assert rights["runAsNonRoot"] is rights["readOnlyRootFilesystem"] is True
    assert rights["capabilities"] == {"drop": ["ALL"]}
    selected = {"app.kubernetes.io/name": "crestgate"}
    assert not selected.items() <= JOB["spec"]["template"]["metadata"]["labels"].items(), "no Service sends it requests"
