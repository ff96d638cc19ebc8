"""The startup output, and where the service refuses to start."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from crestgate.config.settings import Address, ServerSettings, Settings, Tls
from crestgate.errors import ConfigError
from crestgate.service.preflight import PreflightReport, complete_settings, run_preflight

HTTP, GRPC = Address("127.0.0.1", 8080), Address("::1", 8081)
REPORT = PreflightReport("here", "there", 3, None, False, False, None, True, 1)
PAIR = Tls("server.pem", "server.key")
OPEN = "are open: no key is needed"


def printed(server: ServerSettings, report: PreflightReport = REPORT) -> list[str]:
    return list(report.lines(HTTP, GRPC, server))


def test_both_addresses_are_printed() -> None:
    assert printed(ServerSettings()) == [
        "Crestgate listens on http://127.0.0.1:8080 with 1 worker.",
        "  gRPC       [::1]:8081",
        "  counters   here",
        "  rules      there (3 now)",
        f"  checks     {OPEN}",
        "  admin key  the one in CRESTGATE_ADMIN_KEY",
        "  dashboard  http://127.0.0.1:8080/",
        "  API        http://127.0.0.1:8080/docs",
    ]


def test_resp_is_printed_where_it_is_on() -> None:
    resp = Address("127.0.0.1", 6380)
    lines = list(REPORT.lines(HTTP, GRPC, ServerSettings(resp=resp), resp))
    assert lines[1:4] == ["  gRPC       [::1]:8081", "  RESP       127.0.0.1:6380", "  counters   here"]
    lines = list(REPORT.lines(HTTP, GRPC, ServerSettings(resp=resp, tls=PAIR), resp))
    assert lines[2] == "  RESP       127.0.0.1:6380 with TLS"


def test_descriptor_limits_are_printed() -> None:
    report = replace(REPORT, descriptors="envoy.d: 2 limits in mail, 1 limit in shop")
    assert "  envoy      envoy.d: 2 limits in mail, 1 limit in shop" in printed(ServerSettings(), report)


@pytest.mark.parametrize(
    ("tls", "grpc"),
    [
        (PAIR, "[::1]:8081 with TLS"),
        (replace(PAIR, grpc_client_ca="ca.pem"), "[::1]:8081 with TLS, client certificate required"),
    ],
)
def test_tls_is_printed_for_both(tls: Tls, grpc: str) -> None:
    lines = printed(ServerSettings(workers=2, tls=tls))
    assert lines[0] == "Crestgate listens on https://127.0.0.1:8080 with 2 workers."
    assert lines[1] == f"  gRPC       {grpc}"
    assert lines[-2:] == ["  dashboard  https://127.0.0.1:8080/", "  API        https://127.0.0.1:8080/docs"]


@pytest.mark.parametrize(
    ("http", "grpc", "text"),
    [
        (True, True, "need a key"),
        (False, False, OPEN),
        (True, False, "need a key over HTTP, and none over gRPC"),
        (False, True, "need a key over gRPC, and none over HTTP"),
    ],
)
def test_check_scope_is_printed_for_both(http: bool, grpc: bool, text: str) -> None:
    assert f"  checks     {text}" in printed(
        ServerSettings(), replace(REPORT, http_needs_key=http, grpc_needs_key=grpc)
    )


@pytest.mark.parametrize(
    ("http", "resp", "text"),
    [
        (False, False, OPEN),
        (True, False, "need a key over HTTP, and none over gRPC and RESP"),
        (False, True, "need a key over RESP, and none over HTTP and gRPC"),
    ],
)
def test_check_scope_of_resp_is_printed(http: bool, resp: bool, text: str) -> None:
    assert f"  checks     {text}" in printed(
        ServerSettings(), replace(REPORT, http_needs_key=http, resp_needs_key=resp)
    )


@pytest.fixture
def settings(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Settings:
    monkeypatch.chdir(tmp_path)
    return complete_settings(Settings())


EVERYWHERE = Address("0.0.0.0", 9000)


@pytest.mark.parametrize(
    ("server", "where"),
    [
        (ServerSettings(http=EVERYWHERE), "server.http: 0.0.0.0:9000 is"),
        (ServerSettings(grpc=EVERYWHERE), "server.grpc: 0.0.0.0:9000 is"),
        (ServerSettings(resp=EVERYWHERE), "server.resp: 0.0.0.0:9000 is"),
        (
            ServerSettings(http=EVERYWHERE, grpc=Address("::", 9001)),
            "server.http: 0.0.0.0:9000 and server.grpc: [::]:9001 are",
        ),
    ],
)
def test_other_machines_need_a_key_on_any_address(server: ServerSettings, where: str, settings: Settings) -> None:
    settings = replace(settings, server=server)
    with pytest.raises(ConfigError) as raised:
        run_preflight(settings, {})
    assert str(raised.value).startswith(f"{where} reached from other machines, and there is no admin key yet: ")
    found = run_preflight(settings, {"CRESTGATE_ADMIN_KEY": "the-operators-own-key"})
    beyond = [one.host != "127.0.0.1" for one in (server.http, server.grpc)]
    assert [found.http_needs_key, found.grpc_needs_key] == beyond
    assert found.resp_needs_key is (None if server.resp is None else True)
    insecure = run_preflight(replace(settings, server=replace(server, insecure=True)), {})
    assert insecure.new_token
    assert (insecure.http_needs_key, insecure.grpc_needs_key) == (False, False)
