"""The probes of deploy/, run against a healthy, an unhealthy and no server."""

from __future__ import annotations

import json
import re
import subprocess
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, HTTPServer
from pathlib import Path

import pytest

DEPLOY = Path(__file__).parent.parent.parent.parent / "deploy"
PROBE = re.compile(r'"(import http\.client;[^"\n]*)"')
FILES = ["Dockerfile", "compose.yaml", "kubernetes/sidecar.yaml"]
PROBES = sorted({code for name in FILES for code in PROBE.findall((DEPLOY / name).read_text())})


@contextmanager
def server(status: int) -> Iterator[int]:
    """A server that responds with this status to every request."""

    class StatusHandler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            self.send_response(status)
            self.send_header("Content-Length", "0")
            self.end_headers()

        def log_message(self, *_: object) -> None:
            pass

    with HTTPServer(("127.0.0.1", 0), StatusHandler) as one:
        thread = threading.Thread(target=one.serve_forever, kwargs={"poll_interval": 0.01})
        thread.start()
        try:
            yield one.server_address[1]
        finally:
            one.shutdown()
            thread.join()


def run(code: str, port: int) -> int:
    assert "8080" in code
    program = [sys.executable, "-c", code.replace("8080", str(port))]
    return subprocess.run(program, capture_output=True, timeout=60).returncode


def test_each_file_has_its_probe() -> None:
    for name in FILES:
        assert PROBE.search((DEPLOY / name).read_text()), name
    assert json.dumps(PROBES).count("/healthz") == json.dumps(PROBES).count("/readyz") == 1


@pytest.mark.parametrize("code", PROBES)
def test_probe_passes_only_for_a_healthy_service(code: str) -> None:
    with server(200) as port:
        assert run(code, port) == 0
    assert run(code, port) != 0, "the server is down"
    with server(503) as port:
        assert run(code, port) != 0
