"""Settings of Envoy's descriptors, in a file and in the environment."""

from __future__ import annotations

from pathlib import Path

import pytest

from crestgate.config.envoy import Envoy
from crestgate.config.settings import Settings, load_settings
from crestgate.errors import ValidationError

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
        "charge_beyond_limit, max_debt",
        "etc/envoy.d/mail.yaml:3: descriptors[0].key: is missing: write the key that requests have",
        "etc/envoy.d/shop.yaml:1: domain: 'mail' is the domain of etc/envoy.d/mail.yaml too: put all of its "
        "descriptors into one file",
    ]


MISTAKES = [
    ("envoy: envoy.d\n", "envoy: must be a mapping: write {config: …} around the path"),
    (
        "envoy: [envoy.d]\n",
        "envoy: must be a mapping with config, negative_hits, x_ratelimit, charge_beyond_limit, max_debt, not a list",
    ),
    ("envoy: {max_debt: 0}\n", "envoy.max_debt: must be a whole number from 1 to 100, not 0"),
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
