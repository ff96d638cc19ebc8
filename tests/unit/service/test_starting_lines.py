"""What a service says when it starts, and where it refuses to."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from headgate.config.settings import Address, Server, Settings, Tls
from headgate.errors import ConfigError
from headgate.service.starting import Start, completed, start

HTTP, GRPC = Address("127.0.0.1", 8080), Address("::1", 8081)
FOUND = Start("here", "there", 3, None, False, False, None, True, 1)
PAIR = Tls("server.pem", "server.key")
OPEN = "are open: no key is needed"


def said(server: Server, found: Start = FOUND) -> list[str]:
    return list(found.lines(HTTP, GRPC, server))


def test_both_addresses_are_told() -> None:
    assert said(Server()) == [
        "Headgate listens on http://127.0.0.1:8080 with 1 worker.",
        "  gRPC       [::1]:8081",
        "  counters   here",
        "  rules      there (3 now)",
        f"  checks     {OPEN}",
        "  admin key  the one in HEADGATE_ADMIN_KEY",
        "  API        http://127.0.0.1:8080/docs",
    ]


def test_limits_on_descriptors_are_told() -> None:
    found = replace(FOUND, descriptors="envoy.d: 2 limits in mail, 1 limit in shop")
    assert "  envoy      envoy.d: 2 limits in mail, 1 limit in shop" in said(Server(), found)


@pytest.mark.parametrize(
    ("tls", "grpc"),
    [
        (PAIR, "[::1]:8081 with TLS"),
        (replace(PAIR, grpc_client_ca="ca.pem"), "[::1]:8081 with TLS, for callers with a certificate"),
    ],
)
def test_tls_is_told_of_both(tls: Tls, grpc: str) -> None:
    lines = said(Server(workers=2, tls=tls))
    assert lines[0] == "Headgate listens on https://127.0.0.1:8080 with 2 workers."
    assert lines[1] == f"  gRPC       {grpc}"
    assert lines[-1] == "  API        https://127.0.0.1:8080/docs"


@pytest.mark.parametrize(
    ("http", "grpc", "words"),
    [
        (True, True, "need a key"),
        (False, False, OPEN),
        (True, False, "need a key over HTTP, and none over gRPC"),
        (False, True, "need a key over gRPC, and none over HTTP"),
    ],
)
def test_whether_checks_need_a_key_is_told_of_both(http: bool, grpc: bool, words: str) -> None:
    assert f"  checks     {words}" in said(Server(), replace(FOUND, http_needs_key=http, grpc_needs_key=grpc))


@pytest.fixture
def settings(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Settings:
    monkeypatch.chdir(tmp_path)
    return completed(Settings())


EVERYWHERE = Address("0.0.0.0", 9000)


@pytest.mark.parametrize(
    ("server", "where"),
    [
        (Server(http=EVERYWHERE), "server.http: 0.0.0.0:9000 is"),
        (Server(grpc=EVERYWHERE), "server.grpc: 0.0.0.0:9000 is"),
        (Server(http=EVERYWHERE, grpc=Address("::", 9001)), "server.http: 0.0.0.0:9000 and server.grpc: [::]:9001 are"),
    ],
)
def test_other_machines_need_a_key_on_either_address(server: Server, where: str, settings: Settings) -> None:
    settings = replace(settings, server=server)
    with pytest.raises(ConfigError) as raised:
        start(settings, {})
    assert str(raised.value).startswith(f"{where} reached from other machines, and there is no admin key yet: ")
    found = start(settings, {"HEADGATE_ADMIN_KEY": "the-operators-own-key"})
    beyond = [one.host != "127.0.0.1" for one in (server.http, server.grpc)]
    assert [found.http_needs_key, found.grpc_needs_key] == beyond
    insecure = start(replace(settings, server=replace(server, insecure=True)), {})
    assert insecure.new_token
    assert (insecure.http_needs_key, insecure.grpc_needs_key) == (False, False)
