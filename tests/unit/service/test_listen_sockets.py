"""Startup with an address in use creates nothing."""

from __future__ import annotations

import signal
import socket
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

import pytest

from crestgate.config.settings import Address, ServerSettings, load_settings
from crestgate.errors import ConfigError
from crestgate.service.main import serve
from crestgate.service.node import address_of, listen

ANY_PORTS = {"CRESTGATE_SERVER__HTTP": "127.0.0.1:0", "CRESTGATE_SERVER__GRPC": "127.0.0.1:0"}


@pytest.fixture(autouse=True)
def restore_sighup() -> Iterator[None]:
    """Restore the SIGHUP handler, which a service changes."""
    before = signal.getsignal(signal.SIGHUP)
    yield
    signal.signal(signal.SIGHUP, before)


@pytest.mark.parametrize("name", ["http", "grpc", "resp"])
def test_no_key_is_created_for_a_service_that_cannot_listen(
    name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    output: list[str] = []
    with socket.create_server(("127.0.0.1", 0)) as taken:
        address = f"127.0.0.1:{taken.getsockname()[1]}"
        environ = {**ANY_PORTS, f"CRESTGATE_SERVER__{name.upper()}": address}
        with pytest.raises(ConfigError) as raised:
            serve(load_settings(None, environ), {}, output.append)
    assert str(raised.value) == (
        f"server.{name}: cannot listen on {address}: Address already in use; "
        f"--{name} HOST:PORT or CRESTGATE_SERVER__{name.upper()} sets another address"
    )
    assert output == []
    assert not (tmp_path / ".crestgate" / "rules.db").exists(), "the next start creates and prints the first key"


def test_first_socket_is_closed_if_the_second_address_is_in_use() -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken, socket.create_server(("127.0.0.1", 0)) as found:
        addresses = [Address("127.0.0.1", one.getsockname()[1]) for one in (found, taken)]
        found.close()
        with pytest.raises(ConfigError, match=r"server\.grpc"):
            listen(ServerSettings(http=addresses[0], grpc=addresses[1]))
        socket.create_server(("127.0.0.1", addresses[0].port)).close()


@pytest.mark.parametrize("host", ["127.0.0.1", "::1"])
def test_port_zero_is_resolved(host: str) -> None:
    any_port = Address(host, 0)
    with closing(listen(ServerSettings(http=any_port, grpc=any_port, resp=any_port))) as listening:
        assert listening.resp is not None
        addresses = [address_of(one) for one in (listening.http, listening.grpc, listening.resp)]
        assert [address.host for address in addresses] == [host] * 3
        assert len({address.port for address in addresses} - {0}) == 3
        for one in (listening.http, listening.grpc, listening.resp):
            socket.create_connection(one.getsockname()[:2]).close()
