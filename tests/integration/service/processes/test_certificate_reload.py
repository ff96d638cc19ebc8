"""Certificates of a running service are replaced: new connections see the new one, open connections go on."""

from __future__ import annotations

import os
import shutil
import signal
import socket
import ssl
from collections.abc import Callable
from contextlib import closing
from pathlib import Path
from typing import Any

import grpc
import httpx
import pytest

from crestgate.protobuf.messages import HealthCheckRequest, HealthCheckResponse
from integration.service.processes.concurrent_clients import wait_until
from integration.service.service_process import TIMEOUT, Service
from servers.redis import self_signed
from servers.signing import Signer

WORKERS = 2
CONNECTIONS = 8
"""So many new connections that each worker has accepted some."""
Serve = Callable[..., Service]


class Secret:
    """A secret as Kubernetes mounts it: the files are links through ..data, which is switched."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.made = folder / "made"
        self.made.mkdir()
        for name in ("first", "second"):
            (self.made / name).mkdir()
            self_signed(self.made / name)
            authority = Signer(self.made, f"{name}_ca")
            authority.sign(f"{name}_client")
            shutil.copy(authority.certificate, self.made / name / "ca.pem")
        self.switch("first")
        for name in ("server.crt", "server.key", "ca.pem"):
            os.symlink(f"..data/{name}", folder / name)

    def config(self, client_ca: bool = False) -> str:
        ca = f", grpc_client_ca: {self.folder}/ca.pem" if client_ca else ""
        files = f"certificate: {self.folder}/server.crt, key: {self.folder}/server.key{ca}"
        return f"server: {{workers: {WORKERS}, tls: {{{files}}}}}\n"

    def switch(self, name: str) -> None:
        os.symlink(self.made / name, self.folder / "..data_tmp")
        os.replace(self.folder / "..data_tmp", self.folder / "..data")

    def name_of(self, der: bytes | None) -> str:
        """Which certificate this is."""
        pems = {name: (self.made / name / "server.crt").read_text() for name in ("first", "second")}
        return next(name for name, pem in pems.items() if ssl.PEM_cert_to_DER_cert(pem) == der)

    def shown(self, service: Service) -> set[str]:
        """The certificates that many new connections see, over HTTP and gRPC."""
        host, _, port = service.rpc.rpartition(":")
        addresses = [((service.host, service.port), "http/1.1"), ((host, int(port)), "h2")]
        return {self.name_of(connect(*address)) for address in addresses for _ in range(CONNECTIONS)}


def connect(address: tuple[str, int], alpn: str) -> bytes | None:
    """The certificate that a new connection sees."""
    context = ssl.create_default_context()
    context.check_hostname, context.verify_mode = False, ssl.CERT_NONE
    context.set_alpn_protocols([alpn])
    with socket.create_connection(address, TIMEOUT) as plain, context.wrap_socket(plain) as secured:
        return secured.getpeercert(binary_form=True)


def reload_failures(service: Service) -> float:
    with service.client(service.key) as client:
        lines = client.get("/metrics").text.splitlines()
    name = "crestgate_certificate_reload_failures_total "
    return next(float(line.removeprefix(name)) for line in lines if line.startswith(name))


@pytest.fixture
def secret(tmp_path: Path) -> Secret:
    return Secret(tmp_path)


def test_new_certificate_without_a_restart(secret: Secret, serve: Serve) -> None:
    service = serve(config=secret.config())
    pids = service.worker_pids
    assert secret.shown(service) == {"first"}
    trust = ssl.create_default_context(cafile=str(secret.folder / "server.crt"))
    kept = httpx.Limits(keepalive_expiry=None)
    with httpx.Client(
        base_url=f"https://localhost:{service.port}", verify=trust, timeout=TIMEOUT, limits=kept
    ) as client:
        assert client.get("/healthz").status_code == 200
        secret.switch("second")
        wait_until("every worker shows the new certificate", lambda: secret.shown(service) == {"second"}, TIMEOUT)
        response = client.get("/healthz")  # a new connection could not verify the certificate
        assert response.status_code == 200
    assert service.worker_pids == pids
    assert reload_failures(service) == 0
    assert "certificates reloaded" in service.logged


def test_broken_files_keep_the_old_certificate(secret: Secret, serve: Serve) -> None:
    service = serve(config=secret.config())
    (secret.made / "broken").mkdir()
    shutil.copy(secret.made / "second/server.crt", secret.made / "broken")
    shutil.copy(secret.made / "first/server.key", secret.made / "broken")
    secret.switch("broken")
    wait_until(
        "every worker has logged it", lambda: service.logged.count("certificate reload failed") == WORKERS, TIMEOUT
    )
    wait_until("it is counted", lambda: reload_failures(service) > 0, TIMEOUT)
    assert secret.shown(service) == {"first"}
    assert "server.key" in service.logged
    assert "is not the key of" in service.logged
    secret.switch("second")
    service.signal(signal.SIGHUP)
    wait_until("every worker shows the new certificate", lambda: secret.shown(service) == {"second"}, TIMEOUT)
    recovered = "certificate reload recovered"
    wait_until("every worker says so", lambda: service.logged.count(recovered) == WORKERS, TIMEOUT)
    assert service.logged.count("certificate reload failed") == WORKERS, "once for each change"


def test_new_client_ca(secret: Secret, serve: Serve) -> None:
    service = serve(config=secret.config(client_ca=True))
    with closing(channel(service, secret, "first", "first_client")) as before:
        assert is_serving(before)
        assert not connects(service, secret, "first", "second_client")
        secret.switch("second")
        wait_until("the new authority", lambda: connects(service, secret, "second", "second_client"), TIMEOUT)
        wait_until("every worker shows it", lambda: secret.shown(service) == {"second"}, TIMEOUT)
        assert not connects(service, secret, "second", "first_client")
        assert is_serving(before), "an open connection goes on"


def channel(service: Service, secret: Secret, server: str, client: str) -> grpc.Channel:
    files = (secret.made / server / "server.crt", secret.made / f"{client}.key", secret.made / f"{client}.pem")
    credentials = grpc.ssl_channel_credentials(*(path.read_bytes() for path in files))
    options = [("grpc.use_local_subchannel_pool", 1), ("grpc.enable_http_proxy", 0)]
    return grpc.secure_channel(service.rpc, credentials, options)


def is_serving(opened: grpc.Channel) -> bool:
    path, request = "/grpc.health.v1.Health/Check", HealthCheckRequest()
    method = opened.unary_unary(path, HealthCheckRequest.SerializeToString, HealthCheckResponse.FromString)
    response: Any = method(request, timeout=TIMEOUT)
    return bool(response.status == 1)


def connects(service: Service, secret: Secret, server: str, client: str) -> bool:
    with closing(channel(service, secret, server, client)) as opened:
        try:
            return is_serving(opened)
        except grpc.RpcError:
            return False
