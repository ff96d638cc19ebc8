"""`crestgate serve`: address options and their errors."""

from __future__ import annotations

from pathlib import Path

import pytest

from crestgate.config.settings import Settings
from crestgate.service import main
from unit.cli.conftest import Run

started: list[Settings] = []


@pytest.fixture(autouse=True)
def settings(monkeypatch: pytest.MonkeyPatch) -> list[Settings]:
    """Settings passed to `serve`, which is not run."""
    started.clear()
    monkeypatch.setattr(main, "serve", lambda settings, environ, say: started.append(settings))
    return started


@pytest.mark.parametrize(
    ("options", "http", "grpc"),
    [
        ("--http 8080", "127.0.0.1:8080", "127.0.0.1:8081"),
        ("--grpc 9001", "127.0.0.1:8080", "127.0.0.1:9001"),
        ("--http 0 --grpc 0", "127.0.0.1:0", "127.0.0.1:0"),
        ("--http 0.0.0.0:80 --grpc [::1]:81", "0.0.0.0:80", "[::1]:81"),
    ],
)
def test_port_alone_is_on_loopback(options: str, http: str, grpc: str, run: Run, settings: list[Settings]) -> None:
    assert run("serve", *options.split()) == (0, "", "")
    assert [str(settings[0].server.http), str(settings[0].server.grpc)] == [http, grpc]


def test_resp_is_off_unless_told(run: Run, settings: list[Settings]) -> None:
    assert run("serve").code == 0
    assert run("serve", "--resp", "6380").code == 0
    assert [str(one.server.resp) for one in settings] == ["None", "127.0.0.1:6380"]


def test_option_overrides_the_environment(run: Run, settings: list[Settings], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CRESTGATE_SERVER__HTTP", "127.0.0.1:9999")
    assert run("serve", "--http", "7000").code == 0
    assert str(settings[0].server.http) == "127.0.0.1:7000"


@pytest.mark.parametrize(
    ("option", "value", "expected"),
    [
        (
            "--http",
            "here",
            "--http: must be host:port or [address]:port, such as '127.0.0.1:8080', not 'here'\n",
        ),
        (
            "--http",
            ":8080",
            "--http: must be host:port or [address]:port, such as '127.0.0.1:8080', not ':8080'\n",
        ),
        (
            "--grpc",
            "70000",
            "--grpc: has the port 70000: write one from 1 to 65535, or 0 for any free port\n",
        ),
        ("--resp", "8081", "--resp: is also the address of server.grpc: write another port than 8081\n"),
        ("--http", "8081", "--http: is also the address of server.grpc: write another port than 8081\n"),
    ],
)
def test_error_names_the_option(option: str, value: str, expected: str, run: Run, settings: list[Settings]) -> None:
    assert run("serve", option, value) == (2, "", f"crestgate: {expected}")
    assert not settings


def test_empty_option_is_an_error(run: Run, settings: list[Settings]) -> None:
    code, _, err = run("serve", "--http", "")
    assert (code, err == "crestgate: --http: is empty: write host:port, such as 127.0.0.1:8080\n") == (2, True)
    assert not settings


def test_error_elsewhere_keeps_its_location(run: Run, folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (folder / "crestgate.yaml").write_text("server: {workers: none}\n")
    monkeypatch.setenv("CRESTGATE_SERVER__GRPC", "there")
    lines = run("serve", "--http", "x").err.splitlines()
    assert [line.partition(": ")[0] for line in lines] == ["crestgate.yaml:1", "crestgate", "CRESTGATE_SERVER__GRPC"]


def test_envoy_ratelimit_shows_its_settings_without_secrets(run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    variables = {"REDIS_URL": "r:1", "REDIS_AUTH": "hidden", "CONFIG_TYPE": "GRPC_XDS_SOTW", "DEBUG_PORT": "6070"}
    headers = {
        "CONFIG_GRPC_XDS_CLIENT_ADDITIONAL_HEADERS": "x-token:hidden",
        "CRESTGATE_ADMIN_KEY": "hidden-hidden-hidden",
    }
    for name, value in (variables | headers).items():
        monkeypatch.setenv(name, value)
    result = run("envoy-ratelimit", "--show")
    assert result.code == 0
    assert "DEBUG_PORT is without effect" in result.out
    assert "CRESTGATE_STORE=redis://:***@r:1" in result.out
    assert "CRESTGATE_SERVER__GRPC=0.0.0.0:8081" in result.out
    assert "hidden" not in result.out


def test_envoy_ratelimit_names_the_variable_that_stops_it(run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("GRPC_UDS", "/run/x.sock")
    result = run("envoy-ratelimit")
    assert (result.code, result.out) == (2, "")
    assert result.err.startswith("GRPC_UDS: Crestgate listens for gRPC on TCP only")
