"""Redis for the tests: one server, with a socket, a password, TLS or little memory where a test wants them."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

from servers.machine import PATIENCE, ServerError, find, run
from servers.process import ServerProcess

__all__ = ["RedisServer"]

_PACKAGE = "redis-server"


class RedisServer(ServerProcess):
    """One Redis that keeps nothing on disk: what it counted is lost when it ends, as in most installations.

    `settings` are further lines of its configuration, such as `{"maxmemory-policy": "allkeys-lru"}`.
    """

    kind = "redis"

    def __init__(
        self,
        *,
        unix: bool = False,
        password: str | None = None,
        tls: bool = False,
        maxmemory: str | None = None,
        settings: Mapping[str, str] | None = None,
        port: int | None = None,
    ) -> None:
        super().__init__(port)
        self.password = password
        self.socket = self.folder / "redis.sock" if unix else None
        self.certificate = self_signed(self.folder) if tls else None
        self.settings = {"bind": "127.0.0.1", "save": "", "appendonly": "no", "dir": str(self.folder)}
        self.settings["tls-port" if tls else "port"] = str(self.port)
        if self.certificate is not None:
            self.settings |= {
                "port": "0",
                "tls-cert-file": str(self.certificate),
                "tls-key-file": str(self.certificate.with_suffix(".key")),
                "tls-ca-cert-file": str(self.certificate),
                "tls-auth-clients": "no",
            }
        if self.socket is not None:
            self.settings["unixsocket"] = str(self.socket)
        if password is not None:
            self.settings["requirepass"] = password
        if maxmemory is not None:
            self.settings["maxmemory"] = maxmemory
        self.settings |= settings or {}

    @property
    def url(self) -> str:
        return f"{'rediss' if self.certificate else 'redis'}://{self._login}127.0.0.1:{self.port}/0"

    @property
    def unix_url(self) -> str:
        assert self.socket is not None, "started without a socket"
        return f"redis+unix://{self._login}{self.socket}"

    @property
    def _login(self) -> str:
        return "" if self.password is None else f":{self.password}@"

    def command(self) -> list[str]:
        program = find("redis-server", _PACKAGE)
        return [program, *(word for name, value in self.settings.items() for word in (f"--{name}", value))]

    def ready(self) -> bool:
        try:
            return f"process_id:{self.pid}\r" in self.cli("INFO", "server")
        except ServerError:
            return False

    def cli(self, *words: str | int, patience: float = PATIENCE) -> str:
        """What the server answers, as `redis-cli` writes it down."""
        tls = [] if self.certificate is None else ["--tls", "--cacert", str(self.certificate)]
        login = {} if self.password is None else {"REDISCLI_AUTH": self.password}
        command = [find("redis-cli", "redis-tools"), "-e", "-p", str(self.port), *tls, *map(str, words)]
        return run(command, patience=patience, environment=login)


def self_signed(folder: Path) -> Path:
    """A certificate for 127.0.0.1 and localhost that signs itself; its key lies beside it, as `.key`."""
    certificate = folder / "server.crt"
    subject = ["-subj", "/CN=localhost", "-addext", "subjectAltName=DNS:localhost,IP:127.0.0.1"]
    key = ["-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:prime256v1", "-nodes"]
    files = ["-keyout", str(certificate.with_suffix(".key")), "-out", str(certificate)]
    run([find("openssl", "openssl"), "req", "-x509", "-days", "2", *key, *subject, *files])
    return certificate
