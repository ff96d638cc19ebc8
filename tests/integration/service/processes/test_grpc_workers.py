"""gRPC in every worker: one port, counters shared with HTTP, graceful shutdown, TLS."""

from __future__ import annotations

import os
import signal
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import grpc
import pytest

from crestgate.protobuf.messages import (
    CheckRequest,
    CheckResponse,
    HealthCheckRequest,
    HealthCheckResponse,
    RateLimitRequest,
    RateLimitResponse,
)
from integration.service.processes.concurrent_clients import Client, wait_until
from integration.service.processes.partial_call import PartialCall
from integration.service.service_process import TIMEOUT, Service
from servers.machine import free_port, gone
from servers.redis import self_signed
from servers.signing import Signer

WORKERS = 2
LIMIT = 40
SERVING, NOT_SERVING = 1, 2
ENVOY = """\
domain: shop
descriptors:
  - key: user
    rate_limit: {{unit: hour, requests_per_unit: {count}}}
"""
Serve = Callable[..., Service]


def open_channel(address: str, credentials: grpc.ChannelCredentials | None = None) -> grpc.Channel:
    """A channel with its own connection: by default grpcio shares connections to the same address."""
    options = [("grpc.use_local_subchannel_pool", 1), ("grpc.enable_http_proxy", 0)]
    if credentials is None:
        return grpc.insecure_channel(address, options)
    return grpc.secure_channel(address, credentials, options)


def call_unary(channel: grpc.Channel, path: str, request: Any, response_type: Any) -> tuple[Any, str]:
    """The response, and the worker that sent it."""
    method = channel.unary_unary(path, type(request).SerializeToString, response_type.FromString)
    response, call = method.with_call(request, timeout=TIMEOUT)
    ids = [value for name, value in call.initial_metadata() if name == "x-request-id"]
    return response, ids[0].partition("-")[0]


def check(channel: grpc.Channel, key: str, plan: str = "many") -> tuple[Any, str]:
    request = CheckRequest(key=key, plans=[plan])
    return call_unary(channel, "/crestgate.v1.RateLimiter/CheckRateLimit", request, CheckResponse)


def health(channel: grpc.Channel) -> int:
    response, _ = call_unary(channel, "/grpc.health.v1.Health/Check", HealthCheckRequest(), HealthCheckResponse)
    status: int = response.status
    return status


def limits(service: Service) -> dict[str, int]:
    """The Envoy limit per user that each worker has loaded."""
    entry = {"key": "user", "value": "somebody"}
    request = RateLimitRequest(domain="shop", descriptors=[{"entries": [entry]}])
    limits_by_worker: dict[str, int] = {}
    for _ in range(8 * WORKERS):
        with open_channel(service.rpc) as connection:
            path = "/envoy.service.ratelimit.v3.RateLimitService/ShouldRateLimit"
            response, worker = call_unary(connection, path, request, RateLimitResponse)
            limits_by_worker[worker] = response.statuses[0].current_limit.requests_per_unit
        if len(limits_by_worker) == WORKERS:
            break
    return limits_by_worker


@pytest.fixture(scope="module")
def service(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Service]:
    """Two workers that poll for changes every hour, and listen on the address of the command line."""
    folder = tmp_path_factory.mktemp("grpc")
    (folder / "envoy.yaml").write_text(ENVOY.format(count=1000))
    config = f"refresh_seconds: 3600\nplans: {{many: {LIMIT}/day using fixed_window}}\nenvoy: {{config: envoy.yaml}}\n"
    address = f"127.0.0.1:{free_port()}"
    with Service(folder, config, arguments=("--workers", str(WORKERS), "--grpc", address)) as started:
        assert started.rpc == address
        wait_until("all workers respond", lambda: len(limits(started)) == WORKERS)
        yield started
        assert started.stop() == 0
        assert "Traceback" not in started.logged


def test_all_workers_and_protocols_share_counters(service: Service) -> None:
    allowed: list[Any] = []
    workers: set[str] = set()
    for _ in range(LIMIT // 4):
        with open_channel(service.rpc) as connection, Client(service) as client:
            for _ in range(3):
                response, worker = check(connection, "together")
                workers.add(worker)
                allowed.append(response.allowed)
            allowed.append(client.check({"key": "together", "plans": ["many"]}).data["allowed"])
    assert all(allowed)
    assert len(allowed) == LIMIT
    assert len(workers) == WORKERS, "one worker handled all calls"
    with open_channel(service.rpc) as connection, Client(service) as client:
        assert not check(connection, "together")[0].allowed
        assert not client.check({"key": "together", "plans": ["many"]}).data["allowed"]


def test_sighup_and_new_workers_reload_descriptor_limits(service: Service) -> None:
    before = limits(service)
    assert set(before.values()) == {1000}
    (service.folder / "envoy.yaml").write_text(ENVOY.format(count=2000))
    service.signal(signal.SIGHUP)
    wait_until("all workers have the change", lambda: set(limits(service).values()) == {2000})
    pids = service.worker_pids
    os.kill(pids[0], signal.SIGKILL)
    wait_until("it is gone", lambda: gone(pids[0]))
    wait_until("it was replaced", lambda: bool({*limits(service)} - {*before}))
    assert set(limits(service).values()) == {2000}, "the current file, not the one at the start of the service"


def refuses_calls(service: Service) -> bool:
    """Whether new calls are refused."""
    with open_channel(service.rpc) as late:
        try:
            health(late)
        except grpc.RpcError as error:
            return bool(error.code() == grpc.StatusCode.UNAVAILABLE)
        return False


def test_open_requests_complete_during_shutdown(serve: Serve) -> None:
    service = serve(arguments=("--workers", str(WORKERS)))
    with PartialCall(service, "slow") as partial, open_channel(service.rpc) as connection:
        path = "/grpc.health.v1.Health/Watch"
        watch = connection.unary_stream(path, HealthCheckRequest.SerializeToString, HealthCheckResponse.FromString)
        statuses = watch(HealthCheckRequest(), timeout=TIMEOUT)
        assert next(statuses).status == SERVING
        service.signal(signal.SIGTERM)
        partial.await_goaway()
        assert next(statuses).status == NOT_SERVING
        with pytest.raises(grpc.RpcError) as error:
            next(statuses)
        assert error.value.code() == grpc.StatusCode.UNAVAILABLE
        wait_until("both workers refuse new calls", lambda: refuses_calls(service))
        assert service.process.poll() is None
        trailers, response = partial.finish()
        assert trailers["grpc-status"] == "0"
        assert response.allowed
    assert service.process.wait(TIMEOUT) == 0
    assert "Traceback" not in service.logged


@pytest.mark.parametrize("seconds", ["1", "60"])
def test_slow_calls_are_aborted_at_the_timeout_or_a_second_sigint(seconds: str, serve: Serve) -> None:
    service = serve(environment={"CRESTGATE_SERVER__SHUTDOWN_SECONDS": seconds})
    with PartialCall(service, "slow") as partial:
        service.signal(signal.SIGINT)
        partial.await_goaway()
        assert service.process.poll() is None
        if seconds == "60":
            service.signal(signal.SIGINT)
        assert partial.closed_without_response()
    wait_until("it has ended", lambda: service.process.poll() is not None, 30)
    assert "Traceback" not in service.logged


def test_grpc_requires_a_client_certificate_and_http_does_not(tmp_path: Path, serve: Serve) -> None:
    certificate = self_signed(tmp_path)
    ours, theirs = Signer(tmp_path, "ours"), Signer(tmp_path, "theirs")
    tls = {"certificate": certificate, "key": certificate.with_suffix(".key"), "grpc_client_ca": ours.certificate}
    service = serve(environment={f"CRESTGATE_SERVER__TLS__{name.upper()}": str(path) for name, path in tls.items()})
    assert f"  gRPC       {service.rpc} with TLS, client certificate required\n" in service.output

    def code(name: str, signer: Signer | None = None, trust: Path = certificate) -> grpc.StatusCode:
        client_certificate = () if signer is None else tuple(path.read_bytes() for path in signer.sign(name))
        with open_channel(
            service.rpc, grpc.ssl_channel_credentials(trust.read_bytes(), *reversed(client_certificate))
        ) as connection:
            try:
                assert health(connection) == SERVING
            except grpc.RpcError as error:
                return error.code()
        return grpc.StatusCode.OK

    assert code("caller", ours) == grpc.StatusCode.OK
    assert code("stranger", theirs) == grpc.StatusCode.UNAVAILABLE
    assert code("nobody") == grpc.StatusCode.UNAVAILABLE
    assert code("careful", ours, theirs.certificate) == grpc.StatusCode.UNAVAILABLE, (
        "the server's certificate is not trusted"
    )
    with open_channel(service.rpc) as plain, pytest.raises(grpc.RpcError):
        health(plain)
    with service.client() as client:
        assert client.get("/readyz").status_code == 200
    assert service.stop() == 0
    assert "Traceback" not in service.logged
