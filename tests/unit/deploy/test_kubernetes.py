"""deploy/kubernetes: the manifests are consistent, and Crestgate accepts their settings."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import yaml

from crestgate.config.settings import Settings, load_settings
from crestgate.service.auth.guard import is_loopback, required_check_scope
from crestgate.service.preflight import ADMIN_KEY

FOLDER = Path(__file__).parent.parent.parent.parent / "deploy" / "kubernetes"
SECRET = {  # as created by the command in kustomization.yaml
    "admin-key": "0123456789abcdef0123456789abcdef",
    "store": "redis://:PASSWORD@redis:6379/0",
    "rules-store": "mariadb://crestgate:PASSWORD@mariadb:3306/crestgate",
}
PROBES = {"startupProbe": "/healthz", "livenessProbe": "/healthz", "readinessProbe": "/readyz"}
NAME = "app.kubernetes.io/name"


def manifests(name: str) -> dict[str, Any]:
    """Manifests of a file by kind."""
    return {one["kind"]: one for one in yaml.safe_load_all((FOLDER / name).read_text())}


ALONE: dict[str, Any] = {
    kind: one
    for name in yaml.safe_load((FOLDER / "kustomization.yaml").read_text())["resources"]
    for kind, one in manifests(name).items()
}
SIDECAR = manifests("sidecar.yaml")
BOTH = [pytest.param(ALONE, id="alone"), pytest.param(SIDECAR, id="sidecar")]


def pod(kinds: dict[str, Any]) -> Any:
    return kinds["Deployment"]["spec"]["template"]["spec"]


def container(kinds: dict[str, Any]) -> Any:
    (found,) = [one for one in pod(kinds)["containers"] if one["name"] == "crestgate"]
    return found


def environment(kinds: dict[str, Any]) -> dict[str, str]:
    """The variables of the container, on top of those of the image."""
    found = {"CRESTGATE_SERVER__HTTP": "0.0.0.0:8080", "CRESTGATE_SERVER__GRPC": "0.0.0.0:8081"}
    for variable in container(kinds)["env"]:
        reference = variable.get("valueFrom", {}).get("secretKeyRef")
        found[variable["name"]] = variable["value"] if reference is None else SECRET[reference["key"]]
    return found


def settings(kinds: dict[str, Any], folder: Path) -> Settings:
    """Settings that Crestgate loads from the ConfigMap and the environment."""
    path = folder / "crestgate.yaml"
    path.write_text(kinds["ConfigMap"]["data"]["crestgate.yaml"])
    return load_settings(str(path), environment(kinds))


def test_everything_is_applied_or_an_example() -> None:
    listed = {*yaml.safe_load((FOLDER / "kustomization.yaml").read_text())["resources"]}
    assert {path.name for path in FOLDER.iterdir()} == {*listed, "kustomization.yaml", "sidecar.yaml"}
    assert {*ALONE} == {"ConfigMap", "Deployment", "Service", "PodDisruptionBudget", "HorizontalPodAutoscaler"}


def test_each_kind_has_the_version_that_kubernetes_serves() -> None:
    served = {"ConfigMap": "v1", "Service": "v1", "Deployment": "apps/v1", "PodDisruptionBudget": "policy/v1"}
    served["HorizontalPodAutoscaler"] = "autoscaling/v2"
    for kinds in (ALONE, SIDECAR):
        assert {kind: one["apiVersion"] for kind, one in kinds.items()}.items() <= served.items()


@pytest.mark.parametrize("kinds", BOTH)
def test_settings_are_read_from_the_mounted_file(kinds: dict[str, Any], tmp_path: Path) -> None:
    found = settings(kinds, tmp_path)
    assert found.records, "it contains rules"
    assert found.store == SECRET["store"]
    assert found.rules_store == SECRET["rules-store"]
    command, option, path = container(kinds)["args"]
    assert (command, option) == ("serve", "--config")
    mounts = {one["mountPath"]: one["name"] for one in container(kinds)["volumeMounts"]}
    (volume,) = [one for one in pod(kinds)["volumes"] if one["name"] == mounts[str(Path(path).parent)]]
    assert volume["configMap"]["name"] == kinds["ConfigMap"]["metadata"]["name"]
    assert Path(path).name in kinds["ConfigMap"]["data"]


@pytest.mark.parametrize("kinds", BOTH)
def test_secrets_are_only_in_the_secret(kinds: dict[str, Any]) -> None:
    from_secret = {one["name"] for one in container(kinds)["env"] if "valueFrom" in one}
    assert from_secret == {ADMIN_KEY, "CRESTGATE_STORE", "CRESTGATE_RULES_STORE"}
    text = kinds["ConfigMap"]["data"]["crestgate.yaml"]
    assert "store:" not in text
    assert "insecure" not in text
    made = (FOLDER / "kustomization.yaml").read_text()
    assert all(f"--from-literal={name}=" in made for name in SECRET)


def test_standalone_service_listens_on_all_interfaces_and_needs_a_key(tmp_path: Path) -> None:
    server = settings(ALONE, tmp_path).server
    for address in (server.http, server.grpc):
        assert not is_loopback(address.host)
        assert required_check_scope(server, address) == "check"
    ports = {port["name"]: port["containerPort"] for port in container(ALONE)["ports"]}
    assert ports == {"http": server.http.port, "grpc": server.grpc.port}
    assert {port["name"]: port["targetPort"] for port in ALONE["Service"]["spec"]["ports"]} == {
        "http": "http",
        "grpc": "grpc",
    }, "service meshes detect gRPC by the port name"
    assert {container(ALONE)[probe]["httpGet"]["path"] for probe in PROBES} == {"/healthz", "/readyz"}
    for probe, path in PROBES.items():
        assert container(ALONE)[probe]["httpGet"] == {"path": path, "port": "http"}


def test_sidecar_listens_and_is_probed_on_loopback(tmp_path: Path) -> None:
    server = settings(SIDECAR, tmp_path).server
    for address in (server.http, server.grpc):
        assert is_loopback(address.host)
        assert required_check_scope(server, address) is None
    assert "ports" not in container(SIDECAR)
    for probe, path in PROBES.items():
        program, flag, code = container(SIDECAR)[probe]["exec"]["command"]
        assert (program, flag) == ("python", "-c")
        compile(code, probe, "exec")
        assert f"'127.0.0.1', {server.http.port}" in code
        assert f"'{path}'" in code
    (application,) = [one for one in pod(SIDECAR)["containers"] if one["name"] != "crestgate"]
    assert {"name": "CRESTGATE_URL", "value": f"http://{server.http}"} in application["env"]


@pytest.mark.parametrize("kinds", BOTH)
def test_container_is_unprivileged(kinds: dict[str, Any]) -> None:
    rights = {**pod(kinds)["securityContext"], **container(kinds)["securityContext"]}
    assert rights["runAsNonRoot"] is True
    assert rights["runAsUser"] == rights["runAsGroup"] == rights["fsGroup"] == 10001, "the image's user"
    assert rights["allowPrivilegeEscalation"] is False
    assert rights["readOnlyRootFilesystem"] is True
    assert rights["capabilities"] == {"drop": ["ALL"]}
    assert rights["seccompProfile"] == {"type": "RuntimeDefault"}
    resources = container(kinds)["resources"]
    assert {"cpu", "memory"} <= {*resources["requests"]}
    assert "memory" in resources["limits"]
    assert "/tmp" in {one["mountPath"] for one in container(kinds)["volumeMounts"]}


@pytest.mark.parametrize("kinds", BOTH)
def test_shutdown_leaves_time_for_requests_in_flight(kinds: dict[str, Any], tmp_path: Path) -> None:
    program, seconds = container(kinds)["lifecycle"]["preStop"]["exec"]["command"]
    assert program == "sleep"
    needed = int(seconds) + settings(kinds, tmp_path).server.shutdown_seconds + 5
    assert pod(kinds)["terminationGracePeriodSeconds"] >= needed


@pytest.mark.parametrize("kinds", BOTH)
def test_selectors_find_the_pods(kinds: dict[str, Any]) -> None:
    spec = kinds["Deployment"]["spec"]
    labels = spec["template"]["metadata"]["labels"]
    assert spec["selector"]["matchLabels"].items() <= labels.items()
    if "Service" in kinds:
        assert kinds["Service"]["spec"]["selector"].items() <= labels.items()
        assert kinds["PodDisruptionBudget"]["spec"]["selector"]["matchLabels"].items() <= labels.items()
    assert NAME in labels


def test_only_the_autoscaler_sets_replicas() -> None:
    scaler = ALONE["HorizontalPodAutoscaler"]["spec"]
    target = ALONE["Deployment"]
    assert scaler["scaleTargetRef"] == {
        "apiVersion": target["apiVersion"],
        "kind": "Deployment",
        "name": target["metadata"]["name"],
    }
    assert "replicas" not in target["spec"], "each rollout would reset it"
    assert 2 <= scaler["minReplicas"] < scaler["maxReplicas"]
    assert ALONE["PodDisruptionBudget"]["spec"]["maxUnavailable"] < scaler["minReplicas"]


def test_service_links_are_disabled(tmp_path: Path) -> None:
    assert pod(ALONE)["enableServiceLinks"] is False
    assert pod(SIDECAR)["enableServiceLinks"] is False
