"""Slips in Flask, above all those of people who come from Flask-Limiter: each is told what to write."""

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


def told_by(**config: Any) -> str:
    """The error about an application with this configuration."""
    app = Flask("site")
    app.config.update(config)
    with pytest.raises(ConfigError) as error:
        Crestgate(app, limiter=limiter_on())
    return str(error.value)


@pytest.mark.parametrize("more", [{}, {"app": Flask("site")}], ids=["alone", "with an application"])
def test_a_key_in_the_place_of_the_application(more: dict[str, Any]) -> None:
    with pytest.raises(ConfigError, match=r"; whom to count is said by Crestgate\(app, key=get_remote_address\)$"):
        Crestgate(get_remote_address, **more)  # type: ignore[arg-type]  # that is the slip


def test_the_application_by_its_name() -> None:
    app = Flask("site")
    assert Crestgate(app=app, limiter=limiter_on()) in app.extensions["crestgate"]


def test_an_option_of_the_extension_by_nearly_its_name() -> None:
    with pytest.raises(
        ConfigError, match=r"no option default_limit \(did you mean default_limits\?\): there are limiter,"
    ):
        site(default_limit="5/minute")


def test_an_option_of_a_view_by_nearly_its_name() -> None:
    _, gate = site()
    with pytest.raises(
        ConfigError, match=r"no option permethod \(did you mean per_method\?\): there are limits, scope,"
    ):
        gate.limit("5/minute", permethod=True)  # type: ignore[call-arg]  # that is the slip


@pytest.mark.parametrize(("name", "here"), [("storage_uri", "limiter"), ("on_breach", "on_denied")])
def test_an_option_of_flask_limiter(name: str, here: str) -> None:
    with pytest.raises(ConfigError, match=rf"^there is no option {name}: here it is {here}\b"):
        site(**{name: "x"})


def test_a_setting_by_nearly_its_name() -> None:
    assert told_by(CRESTGATE_DEFAULT_LIMIT="5/minute") == (
        "app.config has 'CRESTGATE_DEFAULT_LIMIT', which is not read: did you mean CRESTGATE_DEFAULT_LIMITS?"
    )


def test_a_setting_by_the_name_of_the_argument() -> None:
    assert told_by(CRESTGATE_LIMITER="memory://").endswith(": did you mean CRESTGATE_STORE?")


def test_an_option_as_a_setting() -> None:
    assert told_by(CRESTGATE_KEY="user").endswith(": write Crestgate(app, key=…)")


def test_a_setting_like_no_other() -> None:
    assert ": there are CRESTGATE_STORE, CRESTGATE_DEFAULT_LIMITS, " in told_by(CRESTGATE_XYZZY=1)


def test_variables_of_the_environment_that_were_copied_are_no_slips(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CRESTGATE_SERVER__PORT", "8080")
    app = Flask("site")
    app.config["CRESTGATE_SERVER__PORT"] = "8080"
    Crestgate(app, limiter=limiter_on())


def test_settings_that_flask_limiter_has_left_behind(caplog: pytest.LogCaptureFixture) -> None:
    app = Flask("site")
    app.config.update(RATELIMIT_DEFAULT="5/minute", RATELIMIT_STORAGE_URI="memory://", RATELIMIT_OF_MY_OWN=1)
    with caplog.at_level(logging.WARNING, "crestgate"):
        Crestgate(app, limiter=limiter_on())
    assert [record.getMessage() for record in caplog.records] == [
        "RATELIMIT_DEFAULT in app.config is Flask-Limiter's, and not read: here it is CRESTGATE_DEFAULT_LIMITS",
        "RATELIMIT_STORAGE_URI in app.config is Flask-Limiter's, and not read: here it is CRESTGATE_STORE",
    ]


def test_settings_of_a_flask_limiter_that_is_there(caplog: pytest.LogCaptureFixture) -> None:
    app = Flask("site")
    app.extensions["limiter"] = {object()}
    app.config["RATELIMIT_DEFAULT"] = "5/minute"
    with caplog.at_level(logging.WARNING, "crestgate"):
        Crestgate(app, limiter=limiter_on())
    assert caplog.records == []
