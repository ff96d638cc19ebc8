"""Configuration mistakes in Flask, especially those of Flask-Limiter users: the error names the remedy."""

from __future__ import annotations

import logging
from typing import Any

import pytest
from flask import Flask

from crestgate import ConfigError
from crestgate.integrations.flask import Crestgate
from unit.integrations.flask_sites import site
from unit.integrations.wsgi_calls import limiter_on


def get_remote_address() -> str:
    return "198.51.100.7"


def error_of(**config: Any) -> str:
    """The error for an application with this configuration."""
    app = Flask("site")
    app.config.update(config)
    with pytest.raises(ConfigError) as error:
        Crestgate(app, limiter=limiter_on())
    return str(error.value)


@pytest.mark.parametrize("more", [{}, {"app": Flask("site")}], ids=["alone", "with an application"])
def test_key_passed_as_the_application_is_refused(more: dict[str, Any]) -> None:
    with pytest.raises(ConfigError, match=r"; for the key write Crestgate\(app, key=get_remote_address\)$"):
        Crestgate(get_remote_address, **more)  # type: ignore[arg-type]  # that is the slip


def test_application_by_keyword() -> None:
    app = Flask("site")
    assert Crestgate(app=app, limiter=limiter_on()) in app.extensions["crestgate"]


def test_misspelt_extension_option_has_a_suggestion() -> None:
    with pytest.raises(
        ConfigError, match=r"no option default_limit \(did you mean default_limits\?\): there are limiter,"
    ):
        site(default_limit="5/minute")


def test_misspelt_view_option_has_a_suggestion() -> None:
    _, gate = site()
    with pytest.raises(
        ConfigError, match=r"no option permethod \(did you mean per_method\?\): there are limits, scope,"
    ):
        gate.limit("5/minute", permethod=True)  # type: ignore[call-arg]  # that is the slip


@pytest.mark.parametrize(("name", "here"), [("storage_uri", "limiter"), ("on_breach", "on_denied")])
def test_flask_limiter_option_has_a_hint(name: str, here: str) -> None:
    with pytest.raises(ConfigError, match=rf"^there is no option {name}: here it is {here}\b"):
        site(**{name: "x"})


def test_misspelt_setting_has_a_suggestion() -> None:
    assert error_of(CRESTGATE_DEFAULT_LIMIT="5/minute") == (
        "app.config has 'CRESTGATE_DEFAULT_LIMIT', which is not read: did you mean CRESTGATE_DEFAULT_LIMITS?"
    )


def test_argument_name_as_setting_has_a_suggestion() -> None:
    assert error_of(CRESTGATE_LIMITER="memory://").endswith(": did you mean CRESTGATE_STORE?")


def test_view_option_as_setting_is_refused() -> None:
    assert error_of(CRESTGATE_KEY="user").endswith(": write Crestgate(app, key=…)")


def test_unknown_setting_is_refused() -> None:
    assert ": there are CRESTGATE_STORE, CRESTGATE_DEFAULT_LIMITS, " in error_of(CRESTGATE_XYZZY=1)


def test_copied_environment_variables_are_ignored(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CRESTGATE_SERVER__PORT", "8080")
    app = Flask("site")
    app.config["CRESTGATE_SERVER__PORT"] = "8080"
    Crestgate(app, limiter=limiter_on())


def test_leftover_flask_limiter_settings_are_reported(caplog: pytest.LogCaptureFixture) -> None:
    app = Flask("site")
    app.config.update(RATELIMIT_DEFAULT="5/minute", RATELIMIT_STORAGE_URI="memory://", RATELIMIT_OF_MY_OWN=1)
    with caplog.at_level(logging.WARNING, "crestgate"):
        Crestgate(app, limiter=limiter_on())
    assert [record.getMessage() for record in caplog.records] == [
        "RATELIMIT_DEFAULT in app.config is Flask-Limiter's, and not read: here it is CRESTGATE_DEFAULT_LIMITS",
        "RATELIMIT_STORAGE_URI in app.config is Flask-Limiter's, and not read: here it is CRESTGATE_STORE",
    ]


def test_settings_of_an_installed_flask_limiter_are_ignored(caplog: pytest.LogCaptureFixture) -> None:
    app = Flask("site")
    app.extensions["limiter"] = {object()}
    app.config["RATELIMIT_DEFAULT"] = "5/minute"
    with caplog.at_level(logging.WARNING, "crestgate"):
        Crestgate(app, limiter=limiter_on())
    assert caplog.records == []
