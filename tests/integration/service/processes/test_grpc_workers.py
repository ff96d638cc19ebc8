"""gRPC in every worker: on one port, by the same counters as HTTP, ended as HTTP is ended, and over TLS."""

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
from integration.service.processes.concurrent_clients import Caller, until
from integration.service.processes.partial_call import HalfCall
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


def channel(address: str, credentials: grpc.ChannelCredentials | None = None) -> grpc.Channel:
    """A connection of its own: grpcio would else share one among all that go to the same place."""
    options = [("grpc.use_local_subchannel_pool", 1), ("grpc.enable_http_proxy", 0)]
    if credentials is None:
        return grpc.insecure_channel(address, options)
    return grpc.secure_channel(address, credentials, options)


def ask(asked: grpc.Channel, path: str, request: Any, answer: Any) -> tuple[Any, str]:
    """The answer, and which worker gave it."""
    calling = asked.unary_unary(path, type(request).SerializeToString, answer.FromString)
    told, call = calling.with_call(request, timeout=TIMEOUT)
    ids = [value for name, value in call.initial_metadata() if name == "x-request-id"]
    return told, ids[0].partition("-")[0]


def check(asked: grpc.Channel, key: str, plan: str = "many") -> tuple[Any, str]:
    request = CheckRequest(key=key, plans=[plan])
    return ask(asked, "/crestgate.v1.RateLimiter/CheckRateLimit", request, CheckResponse)


def health(asked: grpc.Channel) -> int:
    status: int = ask(asked, "/grpc.health.v1.Health/Check", HealthCheckRequest(), HealthCheckResponse)[0].status
    return status


def limits(service: Service) -> dict[str, int]:
    """How many a user may have in Envoy's limits, as each worker knows them."""
    entry = {"key": "user", "value": "somebody"}
    request = RateLimitRequest(domain="shop", descriptors=[{"entries": [entry]}])
    found: dict[str, int] = {}
    for _ in range(8 * WORKERS):
        with channel(service.rpc) as one:
            path = "/envoy.service.ratelimit.v3.RateLimitService/ShouldRateLimit"
            told, worker = ask(one, path, request, RateLimitResponse)
            found[worker] = told.statuses[0].current_limit.requests_per_unit
        if len(found) == WORKERS:
            break
    return found


@pytest.fixture(scope="module")
def service(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Service]:
    """Two workers that look for changes every hour, and listen where the command line says."""
    folder = tmp_path_factory.mktemp("grpc")
    (folder / "envoy.yaml").write_text(ENVOY.format(count=1000))
    config = f"refresh_seconds: 3600\nplans: {{many: {LIMIT}/day using fixed_window}}\nenvoy: {{config: envoy.yaml}}\n"
    address = f"127.0.0.1:{free_port()}"
    with Service(folder, config, arguments=("--workers", str(WORKERS), "--grpc", address)) as started:
        assert started.rpc == address
        until("all workers answer", lambda: len(limits(started)) == WORKERS)
        yield started
        assert started.stop() == 0
        assert "Traceback" not in started.logged


def test_all_workers_and_protocols_share_counters(service: Service) -> None:
    told: list[Any] = []
    workers: set[str] = set()
    for _ in range(LIMIT // 4):
        with channel(service.rpc) as one, Caller(service) as caller:
            for _ in range(3):
                answer, worker = check(one, "together")
                workers.add(worker)
                told.append(answer.allowed)
            told.append(caller.check({"key": "together", "plans": ["many"]}).data["allowed"])
    assert all(told)
    assert len(told) == LIMIT
    assert len(workers) == WORKERS, "one worker has answered all"
    with channel(service.rpc) as one, Caller(service) as caller:
        assert not check(one, "together")[0].allowed
        assert not caller.check({"key": "together", "plans": ["many"]}).data["allowed"]


def test_sighup_and_new_workers_reload_descriptor_limits(service: Service) -> None:
    before = limits(service)
    assert set(before.values()) == {1000}
    (service.folder / "envoy.yaml").write_text(ENVOY.format(count=2000))
    service.signal(signal.SIGHUP)
    until("all workers know it", lambda: set(limits(service).values()) == {2000})
    pids = service.worker_pids
    os.kill(pids[0], signal.SIGKILL)
    until("it is gone", lambda: gone(pids[0]))
    until("another has taken its place", lambda: bool({*limits(service)} - {*before}))
    assert set(limits(service).values()) == {2000}, "the file, and not what it said when the service was started"


def turned_away(service: Service) -> bool:
    """Whether who comes now is not let in."""
    with channel(service.rpc) as late:
        try:
            health(late)
        except grpc.RpcError as error:
            return bool(error.code() == grpc.StatusCode.UNAVAILABLE)
        return False


def test_open_requests_complete_during_shutdown(serve: Serve) -> None:
    service = serve(arguments=("--workers", str(WORKERS)))
    with HalfCall(service, "slow") as half, channel(service.rpc) as watching:
        path = "/grpc.health.v1.Health/Watch"
        calling = watching.unary_stream(path, HealthCheckRequest.SerializeToString, HealthCheckResponse.FromString)
        watched = calling(HealthCheckRequest(), timeout=TIMEOUT)
        assert next(watched).status == SERVING
        service.signal(signal.SIGTERM)
        half.told_to_go()
        assert next(watched).status == NOT_SERVING
        with pytest.raises(grpc.RpcError) as ended:
            next(watched)
        assert ended.value.code() == grpc.StatusCode.UNAVAILABLE
        until("neither worker lets anybody in", lambda: turned_away(service))
        assert service.process.poll() is None
        trailers, answer = half.finish()
        assert trailers["grpc-status"] == "0"
        assert answer.allowed
    assert service.process.wait(TIMEOUT) == 0
    assert "Traceback" not in service.logged


@pytest.mark.parametrize("seconds", ["1", "60"])
def test_slow_calls_are_aborted_and_at_once_after_a_second_sigint(seconds: str, serve: Serve) -> None:
    service = serve(environment={"CRESTGATE_SERVER__SHUTDOWN_SECONDS": seconds})
    with HalfCall(service, "slow") as half:
        service.signal(signal.SIGINT)
        half.told_to_go()
        assert service.process.poll() is None
        if seconds == "60":
            service.signal(signal.SIGINT)
        assert half.cut_off()
    until("it has ended", lambda: service.process.poll() is not None, 30)
    assert "Traceback" not in service.logged


def test_grpc_requires_a_client_certificate_and_http_does_not(tmp_path: Path, serve: Serve) -> None:
    certificate = self_signed(tmp_path)
    ours, theirs = Signer(tmp_path, "ours"), Signer(tmp_path, "theirs")
    tls = {"certificate": certificate, "key": certificate.with_suffix(".key"), "grpc_client_ca": ours.certificate}
    service = serve(environment={f"CRESTGATE_SERVER__TLS__{name.upper()}": str(path) for name, path in tls.items()})
    assert f"  gRPC       {service.rpc} with TLS, client certificate required\n" in service.output

    def code(name: str, signer: Signer | None = None, trust: Path = certificate) -> grpc.StatusCode:
        shown = () if signer is None else tuple(path.read_bytes() for path in signer.sign(name))
        with channel(service.rpc, grpc.ssl_channel_credentials(trust.read_bytes(), *reversed(shown))) as one:
            try:
                assert health(one) == SERVING
            except grpc.RpcError as error:
                return error.code()
        return grpc.StatusCode.OK

    assert code("caller", ours) == grpc.StatusCode.OK
    assert code("stranger", theirs) == grpc.StatusCode.UNAVAILABLE
    assert code("nobody") == grpc.StatusCode.UNAVAILABLE
    assert code("careful", ours, theirs.certificate) == grpc.StatusCode.UNAVAILABLE, "it is not who it says it is"
    with channel(service.rpc) as plain, pytest.raises(grpc.RpcError):
        health(plain)
    with service.client() as client:
        assert client.get("/readyz").status_code == 200
    assert service.stop() == 0
    assert "Traceback" not in service.logged
