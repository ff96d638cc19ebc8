"""Settings of Envoy's descriptors, in a file and in the environment."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

from crestgate.config.envoy import Envoy
from crestgate.config.settings import Settings, load_settings
from crestgate.envoy.xds.settings import Xds, XdsTls
from crestgate.envoy.xds.snapshot import write_snapshot
from crestgate.errors import ConfigError, ValidationError
from crestgate.service.preflight import check_settings

MAIL = "domain: mail\ndescriptors:\n  - key: to\n    rate_limit: {unit: day, requests_per_unit: 5}\n"
VARIABLE = "CRESTGATE_ENVOY__CONFIG"


@pytest.fixture(autouse=True)
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder with subfolders for settings and descriptors."""
    monkeypatch.chdir(tmp_path)
    (tmp_path / "etc" / "envoy.d").mkdir(parents=True)
    (tmp_path / "etc" / "envoy.d" / "mail.yaml").write_text(MAIL)
    return tmp_path


def loaded(text: str, environ: dict[str, str] | None = None) -> Settings:
    Path("etc/crestgate.yaml").write_text(text)
    return load_settings("etc/crestgate.yaml", environ or {})


def messages(text: str, environ: dict[str, str] | None = None) -> list[str]:
    with pytest.raises(ValidationError) as raised:
        loaded(text, environ)
    return [str(problem) for problem in raised.value.problems]


@pytest.mark.parametrize("text", ["", "envoy:", "envoy: {}", "envoy: {config: }"])
def test_no_envoy_section(text: str) -> None:
    settings = loaded(text)
    assert (settings.envoy, settings.descriptors()) == (Envoy(), None)
    assert settings == load_settings(None, {})


@pytest.mark.parametrize("path", ["envoy.d", "envoy.d/mail.yaml", "../etc/envoy.d"])
def test_path_in_a_file_is_relative_to_the_file(path: str) -> None:
    settings = loaded(f"envoy: {{config: {path}}}\n")
    assert settings.envoy == Envoy(f"etc/{path}")
    assert settings.descriptor_files is not None
    assert settings.descriptor_files.domains.counts == {"mail": 1}


def test_path_in_the_environment_is_relative_to_the_working_directory() -> None:
    settings = loaded("envoy: {config: none.yaml}\n", {VARIABLE: "etc/envoy.d"})
    assert settings.envoy == load_settings(None, {VARIABLE: "etc/envoy.d"}).envoy == Envoy("etc/envoy.d")


def test_absolute_path(here: Path) -> None:
    assert loaded(f"envoy: {{config: {here}/etc/envoy.d}}\n").envoy == Envoy(f"{here}/etc/envoy.d")


def test_descriptors_follow_their_files() -> None:
    settings = loaded("envoy: {config: envoy.d}\nrefresh_seconds: 3600\n")
    descriptors = settings.descriptors()
    assert descriptors is not None
    try:
        assert settings.descriptor_files is not None
        assert descriptors.current is settings.descriptor_files.domains, "not read twice"
        Path("etc/envoy.d/shop.yml").write_text("domain: shop\n")
        assert descriptors.refresh() is True
        assert descriptors.current.counts == {"mail": 1, "shop": 0}
    finally:
        descriptors.close()


def test_mistakes_in_descriptor_files_are_reported_with_the_others() -> None:
    Path("etc/envoy.d/mail.yaml").write_text("domain: mail\ndescriptors:\n  - value: x\n")
    Path("etc/envoy.d/shop.yaml").write_text("domain: mail\n")
    assert messages("mode: other\nenvoy:\n  config: envoy.d\n  colour: red\n") == [
        "etc/crestgate.yaml:1: mode: must be one of service, embedded, not 'other'",
        "etc/crestgate.yaml:4: envoy.colour: unknown field: there are config, negative_hits, x_ratelimit, "
        "charge_beyond_limit, max_debt, xds",
        "etc/envoy.d/mail.yaml:3: descriptors[0].key: is missing: write the key that requests have",
        "etc/envoy.d/shop.yaml:1: domain: 'mail' is the domain of etc/envoy.d/mail.yaml too: put all of its "
        "descriptors into one file",
    ]


MISTAKES = [
    ("envoy: envoy.d\n", "envoy: must be a mapping: write {config: …} around the path"),
    (
        "envoy: [envoy.d]\n",
        "envoy: must be a mapping with config, negative_hits, x_ratelimit, charge_beyond_limit, max_debt, xds, "
        "not a list",
    ),
    ("envoy: {max_debt: 0}\n", "envoy.max_debt: must be a whole number from 1 to 100, not 0"),
    (
        "envoy: {xds: {node_id: a}}\n",
        "envoy.xds.server: is missing: write the host and port of the control plane, such as 'xds:18001'",
    ),
    ("envoy: {xds: {server: xds}}\n", "envoy.xds.server: must be a host and a port, such as 'xds:18001', not 'xds'"),
    (
        "envoy: {xds: {server: 'xds:99999'}}\n",
        "envoy.xds.server: must be a host and a port, such as 'xds:18001', not 'xds:99999'",
    ),
    (
        "envoy: {xds: {server: 'a:1', headers: [x]}}\n",
        "envoy.xds.headers: must be a mapping of texts, 'name: …' for each, not a list",
    ),
    (
        "envoy: {xds: {server: 'a:1', headers: {'a b': c}}}\n",
        "envoy.xds.headers: 'a b' cannot be sent as a header: write another name",
    ),
    (
        "envoy: {xds: {server: 'a:1', tls: {ca: no.pem}}}\n",
        "envoy.xds.tls.ca: there is no file 'no.pem': create it, or correct the path",
    ),
    (
        "envoy: {xds: {server: 'a:1', tls: {key: etc/crestgate.yaml}}}\n",
        "envoy.xds.tls.certificate: is missing: key needs it",
    ),
    (
        "envoy: {config: envoy.d, xds: {server: 'a:1'}}\n",
        "envoy.xds: cannot be combined with 'config': limits are in files, or at a control plane",
    ),
    ("envoy: {config: 5}\n", "envoy.config: must be text, not 5: write it in quotes, '5'"),
    ("envoy: {config: ''}\n", "envoy.config: must not be empty: write a string, or leave it out"),
    (
        "envoy: {config: no.yaml}\n",
        "envoy.config: there is no file or folder 'etc/no.yaml': create it, or correct the path",
    ),
    (
        "envoy: {config: empty}\n",
        "envoy.config: there is no *.yaml or *.yml file in 'etc/empty': put one there for each domain",
    ),
]


@pytest.mark.parametrize(("text", "message"), MISTAKES, ids=[text for text, _ in MISTAKES])
def test_mistakes_in_the_settings_have_their_line(text: str, message: str) -> None:
    Path("etc/empty").mkdir()
    assert messages(text) == [f"etc/crestgate.yaml:1: {message}"]


def test_mistake_in_the_environment_names_the_variable() -> None:
    with pytest.raises(ValidationError) as raised:
        load_settings(None, {VARIABLE: "no.d"})
    assert (
        str(raised.value)
        == f"{VARIABLE}: envoy.config: there is no file or folder 'no.d': create it, or correct the path"
    )
    with pytest.raises(ValidationError) as raised:
        load_settings(None, {"CRESTGATE_ENVOY": "etc/envoy.d"})
    assert str(raised.value) == f"CRESTGATE_ENVOY: sets a mapping: set its fields, such as {VARIABLE}"


def test_included_file_has_no_envoy_section() -> None:
    Path("etc/more.yaml").write_text("envoy: {config: envoy.d}\n")
    (problem,) = messages("include: more.yaml\n")
    assert problem.startswith("etc/more.yaml:1: envoy: belongs in etc/crestgate.yaml: ")


def test_negative_hits_are_off_by_default() -> None:
    assert not loaded("").envoy.negative_hits
    assert loaded("envoy: {negative_hits: true}\n").envoy == Envoy(None, True)
    assert loaded("envoy: {config: envoy.d, negative_hits: true}\n").envoy.negative_hits
    assert load_settings(None, {"CRESTGATE_ENVOY__NEGATIVE_HITS": "true"}).envoy.negative_hits
    assert messages("envoy: {negative_hits: 1}\n") == [
        "etc/crestgate.yaml:1: envoy.negative_hits: must be true or false, not 1"
    ]


def test_x_ratelimit_is_off_by_default() -> None:
    assert loaded("envoy: {config: envoy.d}\n").envoy.x_ratelimit is False
    assert loaded("envoy: {config: envoy.d, x_ratelimit: true}\n").envoy.x_ratelimit is True
    assert load_settings(None, {"CRESTGATE_ENVOY__X_RATELIMIT": "true"}).envoy.x_ratelimit is True
    assert messages("envoy: {x_ratelimit: often}\n") == [
        "etc/crestgate.yaml:1: envoy.x_ratelimit: must be true or false, not 'often'"
    ]


def test_reported_hits_are_charged_up_to_one_full_limit_by_default() -> None:
    envoy = loaded("").envoy
    assert (envoy.charge_beyond_limit, envoy.max_debt) == (None, 100)
    envoy = loaded("envoy: {config: envoy.d, charge_beyond_limit: false, max_debt: 20}\n").envoy
    assert (envoy.charge_beyond_limit, envoy.max_debt) == (False, 20)


def test_control_plane() -> None:
    text = "envoy: {xds: {server: 'a:1', node_id: n, node_metadata: {zone: b}, headers: {x: y}, cache: last.json}}\n"
    assert loaded(text).envoy.xds == Xds("a:1", "n", "", {"zone": "b"}, {"x": "y"}, None, "last.json")
    assert loaded("envoy: {xds: {server: '[::1]:18000', tls: {}}}\n").envoy.xds == Xds("[::1]:18000", tls=XdsTls())
    assert "y'" not in repr(loaded(text)), "headers may be secret"


def test_control_plane_in_the_environment() -> None:
    variables = {
        "SERVER": "a:1",
        "NODE_ID": "5",
        "NODE_METADATA": "{zone: b}",
        "TLS__ENABLED": "false",
        "TLS__SERVER_NAME": "s",
    }
    environ = {f"CRESTGATE_ENVOY__XDS__{name}": value for name, value in variables.items()}
    tls = XdsTls(enabled=False, server_name="s")
    assert load_settings(None, environ).envoy.xds == Xds("a:1", "5", node_metadata={"zone": "b"}, tls=tls)


def test_service_with_a_control_plane_needs_grpcio(monkeypatch: pytest.MonkeyPatch) -> None:
    settings = loaded("envoy: {xds: {server: 'a:1'}}\n")
    assert settings.descriptors_summary == "limits from the control plane at a:1"
    check_settings(settings, {})
    monkeypatch.setitem(sys.modules, "grpc", None)
    with pytest.raises(ConfigError, match=r"envoy.xds: needs grpcio: pip install 'crestgate\[grpc\]'"):
        check_settings(settings, {})


def test_descriptors_of_a_control_plane_wait_for_the_first_configuration(here: Path) -> None:
    cache = here / "last.json"
    descriptors = loaded(f"envoy: {{xds: {{server: 'a:1', cache: {cache}}}}}\n").descriptors()
    assert descriptors is not None
    assert (descriptors.waiting, descriptors.current.counts) == (True, {})
    limit = {"key": "to", "rate_limit": {"unit": "day", "requests_per_unit": 5}}
    write_snapshot(str(cache), "1", [{"name": "m", "domain": "mail", "descriptors": [limit]}])
    descriptors.refresh()
    assert (descriptors.waiting, descriptors.current.counts) == (False, {"mail": 1})
    cache.write_text("damaged")
    descriptors.refresh()
    assert (descriptors.failures, descriptors.current.counts) == (1, {"mail": 1})
    descriptors.close()
