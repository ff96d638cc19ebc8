"""`crestgate envoy-ratelimit` with an environment as envoyproxy/ratelimit has it: ports, health path, /json, limits."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path
from uuid import uuid4

import grpc
import httpx
import pytest

from control_plane import ControlPlane, domain
from crestgate.protobuf import messages
from servers.machine import free_port, until
from servers.redis import RedisServer

METHOD = "/envoy.service.ratelimit.v3.RateLimitService/ShouldRateLimit"
LIMITS = "domain: shop\ndescriptors:\n  - {key: user, rate_limit: {unit: year, requests_per_unit: 2}}\n"
USER = {"key": "user", "rate_limit": {"unit": 6, "requests_per_unit": 3}}


class Reference:
    """The command, in place of the reference."""

    def __init__(self, folder: Path, **variables: str) -> None:
        self.port, self.grpc = free_port(), free_port()
        env = {name: value for name, value in os.environ.items() if not name.startswith(("CRESTGATE_", "REDIS_"))}
        env["PYTHONPATH"] = os.pathsep.join(path for path in sys.path if path)
        env |= {"HOST": "127.0.0.1", "PORT": str(self.port), "GRPC_HOST": "127.0.0.1", "GRPC_PORT": str(self.grpc)}
        self.log = folder / "log"
        command = [sys.executable, "-m", "crestgate", "envoy-ratelimit"]
        with self.log.open("wb") as log:
            self.process = subprocess.Popen(command, cwd=folder, env=env | variables, stdout=log, stderr=log)

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.port}"

    def health(self) -> tuple[int, str]:
        try:
            answer = httpx.get(f"{self.url}/healthcheck")
        except httpx.TransportError:
            assert self.process.poll() is None, self.log.read_text()
            return 0, ""
        return answer.status_code, answer.text

    def codes(self, times: int) -> list[int]:
        with grpc.insecure_channel(f"127.0.0.1:{self.grpc}") as channel:
            call = channel.unary_unary(
                METHOD, messages.RateLimitRequest.SerializeToString, messages.RateLimitResponse.FromString
            )
            request = messages.RateLimitRequest(
                domain="shop", descriptors=[{"entries": [{"key": "user", "value": "a"}]}]
            )
            return [call(request, timeout=30).overall_code for _ in range(times)]

    def stop(self) -> None:
        self.process.terminate()
        assert self.process.wait(30) == 0, self.log.read_text()
        assert "Traceback" not in self.log.read_text()


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    config = tmp_path / "ratelimit" / "config"
    config.mkdir(parents=True)
    (config / "shop.yaml").write_text(LIMITS)
    return tmp_path


def test_in_place_of_the_reference(folder: Path, redis_server: RedisServer) -> None:
    server = Reference(
        folder,
        RUNTIME_ROOT=str(folder),
        RUNTIME_SUBDIRECTORY="ratelimit",
        REDIS_SOCKET_TYPE="tcp",
        REDIS_URL=redis_server.url.removeprefix("redis://").partition("/")[0],
        CACHE_KEY_PREFIX=uuid4().hex,
        USE_STATSD="false",
        REDIS_POOLSIZE="10",
        LOG_LEVEL="info",
    )
    until("it is healthy", lambda: server.health() == (200, "OK"))
    assert server.codes(3) == [1, 1, 2]
    body = {"domain": "shop", "descriptors": [{"entries": [{"key": "user", "value": "a"}]}]}
    answer = httpx.post(f"{server.url}/json", json=body)
    assert (answer.status_code, answer.json()["overallCode"]) == (429, "OVER_LIMIT")
    assert httpx.get(f"{server.url}/metrics").status_code == 200
    assert httpx.get(f"{server.url}/api/v1/rules").status_code == 401, "the admin API still needs a key"
    server.stop()
    printed = server.log.read_text()
    assert "USE_STATSD is without effect: metrics are at /metrics on PORT" in printed
    assert "REDIS_POOLSIZE is unknown" in printed


def test_with_a_control_plane(folder: Path) -> None:
    port = free_port()
    server = Reference(folder, CONFIG_TYPE="GRPC_XDS_SOTW", CONFIG_GRPC_XDS_SERVER_URL=f"127.0.0.1:{port}")
    until("it is not healthy without a configuration", lambda: server.health()[0] == 500)
    with ControlPlane(port) as plane:
        plane.send("1", domain("shop", USER))
        until("it is healthy", lambda: server.health() == (200, "OK"))
        assert plane.requests[0].node.id == "default"
        assert server.codes(4) == [1, 1, 1, 2]
    server.stop()
