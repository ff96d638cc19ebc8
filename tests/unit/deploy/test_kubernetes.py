"""deploy/kubernetes: the manifests are consistent, and Crestgate accepts their settings."""

from __future__ import annotations

from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import pytest
import yaml

from crestgate import __version__
from crestgate.cli.remote import remote_service
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
MOUNTED = "/etc/crestgate-descriptors"


def manifests(name: str) -> list[Any]:
    return list(yaml.safe_load_all((FOLDER / name).read_text()))


KUSTOMIZATION = yaml.safe_load((FOLDER / "kustomization.yaml").read_text())
APPLIED: list[Any] = [one for name in KUSTOMIZATION["resources"] for one in manifests(name)]
ALONE: dict[str, Any] = {one["kind"]: one for one in APPLIED if one["metadata"]["name"] == "crestgate"}
"""By kind: those that are called crestgate."""
DESCRIPTORS, GRPC_SERVICE = (
    next(one for one in APPLIED if one["metadata"]["name"] == name)
    for name in ("crestgate-descriptors", "crestgate-grpc")
)
SIDECAR = {one["kind"]: one for one in manifests("sidecar.yaml")}
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
    path.write_text(kinds["ConfigMap"]["data"]["crestgate.yaml"].replace(MOUNTED, str(folder / "descriptors")))
    (folder / "descriptors").mkdir(exist_ok=True)
    for name, text in DESCRIPTORS["data"].items():
        (folder / "descriptors" / name).write_text(text)
    return load_settings(str(path), environment(kinds))


def test_everything_is_applied_or_an_example() -> None:
    listed = {*KUSTOMIZATION["resources"]}
    others = {"kustomization.yaml", "sidecar.yaml", "upgrade", "monitoring"}
    assert {path.name for path in FOLDER.iterdir()} == {*listed, *others}
    expected = {"ConfigMap", "Deployment", "Service", "NetworkPolicy", "PodDisruptionBudget", "HorizontalPodAutoscaler"}
    assert {*ALONE} == expected
    assert len(APPLIED) == len(expected) + 2


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


def test_commands_in_the_container_find_the_service_and_its_key(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As the runbook does: kubectl exec deploy/crestgate -- crestgate top."""
    found = environment(ALONE)
    assert found["CRESTGATE_URL"] == f"http://127.0.0.1:{settings(ALONE, tmp_path).server.http.port}"
    assert found["CRESTGATE_CONFIG"] == container(ALONE)["args"][2]
    for name, value in found.items():
        monkeypatch.setenv(name, value)
    service = remote_service(None, None)
    assert service is not None
    assert service.title == found["CRESTGATE_URL"]
    assert found[ADMIN_KEY] == SECRET["admin-key"], "the key that commands send"


def test_standalone_service_listens_on_all_interfaces_and_needs_a_key(tmp_path: Path) -> None:
    server = settings(ALONE, tmp_path).server
    for address in (server.http, server.grpc):
        assert not is_loopback(address.host)
        assert required_check_scope(server, address) == "check"
    ports = {port["name"]: port["containerPort"] for port in container(ALONE)["ports"]}
    assert ports == {"http": server.http.port, "grpc": server.grpc.port}
    for service, name in ((ALONE["Service"], "http"), (GRPC_SERVICE, "grpc")):
        (port,) = service["spec"]["ports"]
        assert (port["name"], port["targetPort"]) == (name, name), "service meshes detect gRPC by the port name"
        assert port["port"] == ports[name]
    assert GRPC_SERVICE["spec"]["clusterIP"] == "None", "clients balance calls over the pods"
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
        for service in (kinds["Service"], GRPC_SERVICE):
            assert service["spec"]["selector"].items() <= labels.items()
        assert kinds["NetworkPolicy"]["spec"]["podSelector"]["matchLabels"].items() <= labels.items()
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


def test_descriptors_are_read_from_their_config_map(tmp_path: Path) -> None:
    mounts = {one["mountPath"]: one["name"] for one in container(ALONE)["volumeMounts"]}
    (volume,) = [one for one in pod(ALONE)["volumes"] if one["name"] == mounts[MOUNTED]]
    assert volume["configMap"]["name"] == DESCRIPTORS["metadata"]["name"]
    found = settings(ALONE, tmp_path)
    assert found.descriptors_summary is not None
    assert found.descriptors_summary.endswith(": 1 limit in shop")


def test_startup_probe_outlasts_the_wait_for_stores(tmp_path: Path) -> None:
    probe = container(ALONE)["startupProbe"]
    assert probe["periodSeconds"] * probe["failureThreshold"] > settings(ALONE, tmp_path).server.store_wait_seconds > 0


def test_network_policy_covers_all_ports_and_stores() -> None:
    spec = ALONE["NetworkPolicy"]["spec"]
    assert spec["policyTypes"] == ["Ingress", "Egress"]
    opened = {port["port"] for rule in spec["ingress"] for port in rule["ports"]}
    assert opened == {port["name"] for port in container(ALONE)["ports"]}
    reached = {port["port"] for rule in spec["egress"] for port in rule["ports"]}
    assert {53, *(urlsplit(SECRET[name]).port for name in ("store", "rules-store"))} <= reached
    assert all("from" in rule for rule in spec["ingress"]), "not from everywhere"


def test_image_has_the_tag_that_the_dockerfile_builds() -> None:
    built = f"crestgate:{__version__}"
    dockerfile = (FOLDER.parent / "Dockerfile").read_text()
    assert f"docker build -f deploy/Dockerfile -t {built} " in dockerfile
    job = yaml.safe_load((FOLDER / "upgrade" / "job.yaml").read_text())
    used = [container(ALONE), container(SIDECAR), *job["spec"]["template"]["spec"]["containers"]]
    assert {one["image"] for one in used} == {built}
    for path in (FOLDER, FOLDER / "upgrade"):
        (image,) = yaml.safe_load((path / "kustomization.yaml").read_text())["images"]
        assert image == {"name": "crestgate", "newTag": __version__}
