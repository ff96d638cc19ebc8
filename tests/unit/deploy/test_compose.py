"""deploy/compose.yaml: secrets are required, services start in order, and Crestgate accepts the settings."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import pytest
import yaml

from crestgate.config.settings import load_settings
from crestgate.service.auth.guard import is_loopback, required_check_scope

DEPLOY = Path(__file__).parent.parent.parent.parent / "deploy"
TEXT = (DEPLOY / "compose.yaml").read_text()
SECRETS = {"CRESTGATE_ADMIN_KEY": "a" * 32, "REDIS_PASSWORD": "b" * 32, "MARIADB_PASSWORD": "c" * 32}
_VARIABLE = re.compile(r"\$\{(\w+)(?::([?-])([^}]*))?\}")


def render(variables: dict[str, str]) -> Any:
    """The file with its variables filled in, as `docker compose config` does; KeyError for one that must be set."""

    def fill(match: re.Match[str]) -> str:
        name, sign, rest = match.groups()
        value = variables.get(name) or (rest if sign == "-" else "")
        if sign == "?" and not value:
            raise KeyError(f"{name}: {rest}")
        return value

    def filled(value: Any) -> Any:
        if isinstance(value, str):
            return _VARIABLE.sub(fill, value).replace("$$", "$")
        if isinstance(value, list):
            return [filled(item) for item in value]
        return {name: filled(item) for name, item in value.items()} if isinstance(value, dict) else value

    return filled(yaml.safe_load(TEXT))


COMPOSED = render(SECRETS)
SERVICES = COMPOSED["services"]


def test_services_are_crestgate_and_its_two_stores() -> None:
    assert {*SERVICES} == {"crestgate", "redis", "mariadb"}


@pytest.mark.parametrize("missing", SECRETS)
def test_nothing_starts_without_a_secret(missing: str) -> None:
    with pytest.raises(KeyError, match=missing):
        render({name: value for name, value in SECRETS.items() if name != missing})


def test_no_secret_has_a_default() -> None:
    found = _VARIABLE.findall(TEXT)
    assert {name for name, sign, _ in found if sign == "?"} == {*SECRETS}
    assert {name for name, sign, _ in found if sign != "?"} == {"PUBLISH", "PUBLISH_GRPC"}
    assert not re.search(r"(?i)(password|key):\s+[\"']?[a-z0-9]+[\"']?$", TEXT.replace('PASSWORD: "yes"', ""), re.M)


def test_example_env_file_names_all_secrets_without_values() -> None:
    lines = [line for line in (DEPLOY / ".env.example").read_text().splitlines() if line and line[0] != "#"]
    assert sorted(lines) == sorted(f"{name}=" for name in SECRETS)
    assert ".env" in (DEPLOY.parent / ".gitignore").read_text().split()


def test_crestgate_reads_its_environment() -> None:
    service = SERVICES["crestgate"]
    settings = load_settings(None, service["environment"])
    addresses = (settings.server.http, settings.server.grpc)
    for address in addresses:
        assert required_check_scope(settings.server, address) == "check"
        assert not is_loopback(address.host)
    published = [f"127.0.0.1:{port}:{address.port}" for port, address in zip((8080, 8081), addresses, strict=True)]
    assert service["ports"] == published, "on loopback only, unless PUBLISH and PUBLISH_GRPC are set"
    assert isinstance(settings.store, str)
    assert isinstance(settings.rules_store, str)
    store, rules_store = urlsplit(settings.store), urlsplit(settings.rules_store)
    mariadb = SERVICES["mariadb"]["environment"]
    assert (store.hostname, store.password) == ("redis", SECRETS["REDIS_PASSWORD"])
    assert store.password == SERVICES["redis"]["environment"]["REDISCLI_AUTH"]
    assert (rules_store.hostname, rules_store.username) == ("mariadb", mariadb["MARIADB_USER"])
    assert (rules_store.password, rules_store.path) == (
        mariadb["MARIADB_PASSWORD"],
        f"/{mariadb['MARIADB_DATABASE']}",
    )
    assert service["environment"]["CRESTGATE_ADMIN_KEY"] == SECRETS["CRESTGATE_ADMIN_KEY"]


def test_redis_has_the_password_and_evicts_nothing() -> None:
    command = SERVICES["redis"]["command"]
    assert command[0] == "redis-server", "the image's entrypoint drops root for this command"
    options = dict(zip(command[1::2], command[2::2], strict=True))
    assert options["--requirepass"] == SECRETS["REDIS_PASSWORD"]
    assert options["--maxmemory-policy"] == "noeviction"


def test_stores_are_healthy_before_the_service_starts_and_reached_by_it_alone() -> None:
    waited = {name: dependency["condition"] for name, dependency in SERVICES["crestgate"]["depends_on"].items()}
    assert waited == {"redis": "service_healthy", "mariadb": "service_healthy"}
    for name in waited:
        assert SERVICES[name]["healthcheck"]["test"][0] in ("CMD", "CMD-SHELL")
        assert SERVICES[name]["networks"] == ["stores"]
        assert "ports" not in SERVICES[name]
        assert SERVICES[name]["volumes"][0].partition(":")[0] in COMPOSED["volumes"]
    assert COMPOSED["networks"]["stores"] == {"internal": True}
    assert "stores" in SERVICES["crestgate"]["networks"]


def test_service_is_built_from_this_tree_and_unprivileged() -> None:
    service = SERVICES["crestgate"]
    folder = (DEPLOY / service["build"]["context"]).resolve()
    assert (folder / "pyproject.toml").exists()
    assert (folder / service["build"]["dockerfile"]).exists()
    assert service["read_only"] is True
    assert service["cap_drop"] == ["ALL"]
    assert "no-new-privileges:true" in service["security_opt"]
    assert [mount.partition(":")[0] for mount in service["tmpfs"]] == ["/tmp"]


def test_health_check_uses_readiness_and_shutdown_has_time() -> None:
    service = SERVICES["crestgate"]
    kind, program, flag, code = service["healthcheck"]["test"]
    assert (kind, program, flag) == ("CMD", "python", "-c")
    compile(code, "healthcheck", "exec")
    assert "'/readyz'" in code
    shutdown = load_settings(None, service["environment"]).server.shutdown_seconds
    assert int(service["stop_grace_period"].removesuffix("s")) >= shutdown + 5
