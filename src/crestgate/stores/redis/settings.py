"""Credentials, database and TLS of Redis connections."""

from __future__ import annotations

import ssl
from dataclasses import dataclass, field

from crestgate.stores.redis.protocol import ServerAddress, pack

__all__ = ["RedisSettings"]


@dataclass(frozen=True, slots=True)
class RedisSettings:
    """The same for every server. Passwords are not in its repr."""

    username: str | None = None
    password: str | None = field(default=None, repr=False)
    database: int = 0
    sentinel_username: str | None = None
    sentinel_password: str | None = field(default=None, repr=False)
    tls: ssl.SSLContext | None = None

    def handshake(self, address: ServerAddress) -> list[bytes]:
        """The first commands of a connection; each is answered with OK."""
        username = self.sentinel_username if address.sentinel else self.username
        password = self.sentinel_password if address.sentinel else self.password
        commands = []
        if password is not None:
            commands.append(pack(("AUTH", username, password) if username else ("AUTH", password)))
        if self.database and not address.sentinel:
            commands.append(pack(("SELECT", self.database)))
        return commands
