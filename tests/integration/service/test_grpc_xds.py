"""A real service whose limits come from a control plane (grpcio): in force within 2 s, kept without it, over mTLS."""

from __future__ import annotations

import json
import time
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from typing import Any

import grpc
import pytest

from control_plane import ControlPlane, domain
from crestgate.protobuf import messages
from integration.service.service_process import GENEROUS, Service
from servers.machine import free_port, until
from servers.redis import self_signed
from servers.signing import Signer

METHOD = "/envoy.service.ratelimit.v3.RateLimitService/ShouldRateLimit"
IN_FORCE_SECONDS = 2.0


def limit(count: int) -> dict[str, Any]:
    return {"key": "user", "rate_limit": {"unit": 6, "requests_per_unit": count}}


def ask(service: Service, name: str = "edge") -> Any:
    """The RateLimitResponse over a new connection, so that any worker may answer."""
    with grpc.insecure_channel(service.rpc, options=[("grpc.use_local_subchannel_pool", 1)]) as channel:
        call = channel.unary_unary(
            METHOD, messages.RateLimitRequest.SerializeToString, messages.RateLimitResponse.FromString
        )
        look = {"entries": [{"key": "user", "value": "a"}], "hits_addend": {"value": 0}}
        return call(messages.RateLimitRequest(domain=name, descriptors=[look]), timeout=30)


def limits_of(service: Service, times: int = 8) -> set[int]:
    """The limits that the workers have."""
    return {ask(service).statuses[0].current_limit.requests_per_unit for _ in range(times)}


def is_logged(service: Service, text: str) -> bool:
    return text in service.logged


def has_limits(service: Service, count: int) -> bool:
    """Whether all workers have this limit, and no other."""
    try:
        return limits_of(service) == {count}
    except grpc.RpcError:  # one of them has none yet
        return False


@pytest.fixture
def plane() -> Iterator[ControlPlane]:
    with ControlPlane() as started:
        yield started


def test_changes_are_in_force_in_all_workers_within_two_seconds(plane: ControlPlane, tmp_path: Path) -> None:
    plane.send("1", domain("edge", limit(10)))
    config = f'envoy: {{xds: {{server: "{plane.address}", node_id: here}}}}\n'
    with Service(tmp_path, config, GENEROUS, ("--workers", "2")) as service:
        until("both workers have it", lambda: has_limits(service, 10))
        took = []
        for count in (20, 30, 40):
            started = time.monotonic()
            plane.send(str(count), domain("edge", limit(count)))
            until("both workers have it", partial(has_limits, service, count))
            took.append(time.monotonic() - started)
        assert min(took) < IN_FORCE_SECONDS, took  # the shortest: others may keep the machine busy
        plane.send("bad", domain("edge", {"key": "user", "rate_limit": {"requests_per_unit": 1}}))
        until("it is refused", lambda: plane.answers()[-1][2] != "")
        assert plane.answers()[-1][0] == "40"
        assert limits_of(service) == {40}
        assert "refused, keeping the previous one" in service.logged
        assert len(plane.headers) == 1, "one stream for all workers"
        assert "Traceback" not in service.logged


def test_limits_survive_a_restart_without_the_control_plane(tmp_path: Path) -> None:
    port = free_port()
    config = f'envoy: {{xds: {{server: "127.0.0.1:{port}"}}}}\n'
    with Service(tmp_path, config, GENEROUS, ready=False) as service:
        with pytest.raises(grpc.RpcError) as raised:
            ask(service)
        assert isinstance(raised.value, grpc.Call)
        assert raised.value.code() is grpc.StatusCode.UNAVAILABLE, "no configuration yet: never an OK"
        with service.client() as client:
            answer = client.get("/readyz")
        assert (answer.status_code, "envoy.xds" in answer.json()["detail"]) == (503, True)
        with ControlPlane(port) as plane:
            plane.send("1", domain("edge", limit(10)))
            service.await_ready()
            assert limits_of(service, 1) == {10}
        key = service.key
    saved = json.loads((tmp_path / ".crestgate" / "xds.json").read_text())
    assert (saved["version"], [one["domain"] for one in saved["resources"]]) == ("1", ["edge"])
    with Service(tmp_path, config, GENEROUS, key=key) as service:
        assert limits_of(service, 1) == {10}
    (tmp_path / ".crestgate" / "xds.json").write_text("damaged")
    with Service(tmp_path, config, GENEROUS, key=key, ready=False) as service:
        until("it is logged", lambda: "cannot use the last configuration of envoy.xds" in service.logged)
        with ControlPlane(port) as plane:
            plane.send("2", domain("edge", limit(20)))
            service.await_ready()
            assert limits_of(service, 1) == {20}


def test_mtls(tmp_path: Path) -> None:
    self_signed(tmp_path)
    root = Signer(tmp_path, "root")
    root.sign("client")
    credentials = grpc.ssl_server_credentials(
        [((tmp_path / "server.key").read_bytes(), (tmp_path / "server.crt").read_bytes())],
        (tmp_path / "root.pem").read_bytes(),
        require_client_auth=True,
    )
    with ControlPlane(credentials=credentials) as plane:
        plane.send("1", domain("edge", limit(10)))
        xds = f'server: "{plane.address}", cache: last.json, tls: {{ca: server.crt, '
        for names in ("certificate: client.pem, key: client.key", "server_name: localhost"):
            folder = tmp_path / names[:6]
            folder.mkdir()
            for name in ("server.crt", "client.pem", "client.key"):
                (folder / name).write_bytes((tmp_path / name).read_bytes())
            config = f"envoy: {{xds: {{{xds}{names}}}}}}}\n"
            with Service(folder, config, GENEROUS, ready=False) as service:
                if "certificate" in names:
                    service.await_ready()
                    assert limits_of(service, 1) == {10}
                    assert (folder / "last.json").exists()
                else:
                    until("it is logged", partial(is_logged, service, "xDS stream of"))
                    assert not (folder / "last.json").exists(), "it has no certificate of the client"
