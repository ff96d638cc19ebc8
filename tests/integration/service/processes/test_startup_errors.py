"""Startup errors: all are reported together in plain words, and the exit code is 2."""

from __future__ import annotations

import os
import re
import socket
import ssl
import subprocess
import sys
from collections.abc import Callable, Mapping
from pathlib import Path

import httpx
import pytest

from integration.service.service_process import ANY_PORTS, TIMEOUT, Service
from servers.machine import free_port
from servers.redis import self_signed

Serve = Callable[..., Service]
ALL_INTERFACES = {"CRESTGATE_SERVER__HTTP": "0.0.0.0:0"}


def startup_error(
    folder: Path, config: str | None = None, environment: Mapping[str, str] | None = None, *arguments: str
) -> str:
    """Start a service that must fail; return its error message."""
    env = {name: value for name, value in os.environ.items() if not name.startswith("CRESTGATE_")}
    env |= {"PYTHONPATH": os.pathsep.join(entry for entry in sys.path if entry)}
    env |= {**ANY_PORTS, **(environment or {})}
    if config is not None:
        (folder / "crestgate.yaml").write_text(config)
    process = subprocess.run(
        [sys.executable, "-m", "crestgate", "serve", *arguments],
        cwd=folder,
        env=env,
        capture_output=True,
        text=True,
        timeout=TIMEOUT,
    )
    assert process.returncode == 2, (process.returncode, process.stdout, process.stderr)
    assert process.stdout == ""
    assert "Traceback" not in process.stderr
    return process.stderr


def test_address_in_use_creates_no_key(tmp_path: Path, serve: Serve) -> None:
    """The first admin key is created and printed only by the first successful start."""
    with socket.create_server(("127.0.0.1", 0)) as other:
        taken = f"127.0.0.1:{other.getsockname()[1]}"
        message = startup_error(tmp_path, None, {"CRESTGATE_SERVER__HTTP": taken})
    assert message.startswith(
        f"crestgate: server.http: cannot listen on {taken}: Address already in use; --http HOST:PORT "
    )
    assert serve().key.startswith("cg_")


@pytest.mark.parametrize(("setting", "scheme"), [("store", "redis"), ("rules_store", "mysql")])
def test_unreachable_server_is_named(setting: str, scheme: str, tmp_path: Path) -> None:
    port = free_port()
    message = startup_error(tmp_path, f"{setting}: {scheme}://somebody:hidden@127.0.0.1:{port}/0\n")
    assert len(message.splitlines()) == 1
    assert message.startswith("crestgate: ")
    assert str(port) in message
    assert "hidden" not in message


def test_non_loopback_requires_a_key(tmp_path: Path, serve: Serve) -> None:
    message = startup_error(tmp_path, None, ALL_INTERFACES)
    assert re.search("server.http: 0.0.0.0:0 .* no admin key yet.* CRESTGATE_ADMIN_KEY.*--insecure", message)
    insecure = serve(environment=ALL_INTERFACES, arguments=("--insecure",))
    assert "checks     are open" in insecure.output
    assert httpx.get(f"http://127.0.0.1:{insecure.port}/api/v1/rules").status_code == 401


def test_memory_store_is_refused_with_several_workers(tmp_path: Path) -> None:
    message = startup_error(tmp_path, "store: memory://\n", None, "--workers", "4")
    assert re.search("store: memory:// .* 4 workers .* leave store out", message)


def test_all_failures_are_reported(tmp_path: Path) -> None:
    config = (
        "store: redis://\nserver: {workers: 0, shutdown_seconds: soon, colour: red}\nlogs: {level: loud}\nrulez: []\n"
    )
    message = startup_error(tmp_path, config, {"CRESTGATE_SERVER__CHECKS": "perhaps"})
    for field in ("server.workers", "server.shutdown_seconds", "server.colour", "logs.level", "rulez"):
        assert re.search(rf"crestgate\.yaml:\d.*{re.escape(field)}", message), field
    assert "CRESTGATE_SERVER__CHECKS" in message


def test_short_admin_key_is_refused(tmp_path: Path) -> None:
    key = "let-me-in"
    message = startup_error(tmp_path, None, {"CRESTGATE_ADMIN_KEY": key})
    assert "CRESTGATE_ADMIN_KEY" in message
    assert key not in message


def test_non_loopback_with_tls_and_key(tmp_path: Path, serve: Serve) -> None:
    certificate = self_signed(tmp_path)
    tls = f"server: {{tls: {{certificate: {certificate}, key: {certificate.with_suffix('.key')}}}}}\n"
    key = {"CRESTGATE_ADMIN_KEY": "the-operators-own-key"}
    service = serve(config=tls, environment={**ALL_INTERFACES, **key})
    assert service.url.startswith("https://")
    assert "admin key  the one in CRESTGATE_ADMIN_KEY" in service.output
    assert key["CRESTGATE_ADMIN_KEY"] not in service.output
    assert "checks     need a key" in service.output
    context = ssl.create_default_context(cafile=str(certificate))
    check = {"key": "somebody"}
    with httpx.Client(base_url=f"https://127.0.0.1:{service.port}", verify=context) as client:
        assert client.post("/api/v1/check", json=check).status_code == 401
        assert client.post("/api/v1/check", json=check, headers=service.admin).json()["allowed"]
        assert client.get("/api/v1/rules", headers=service.admin).status_code == 200
    with pytest.raises(httpx.TransportError):
        httpx.get(f"http://127.0.0.1:{service.port}/healthz")
    assert service.stop() == 0
    assert "Traceback" not in service.logged
    certificate.with_suffix(".key").write_text("no key")
    assert "server.tls" in startup_error(tmp_path)
