"""How to reach Redis servers: names, passwords and TLS, the same for every one of them."""

from __future__ import annotations

import ssl
from dataclasses import dataclass, field

from headgate.stores.redis.talk import Address, pack

__all__ = ["Settings"]


@dataclass(frozen=True, slots=True)
class Settings:
    """What a new connection says first. Passwords are never shown."""

    username: str | None = None
    password: str | None = field(default=None, repr=False)
    database: int = 0
    sentinel_username: str | None = None
    sentinel_password: str | None = field(default=None, repr=False)
    tls: ssl.SSLContext | None = None

    def greeting(self, address: Address) -> list[bytes]:
        """The commands that open a connection; each is answered with OK."""
        username = self.sentinel_username if address.sentinel else self.username
        password = self.sentinel_password if address.sentinel else self.password
        commands = []
        if password is not None:
            commands.append(pack(("AUTH", username, password) if username else ("AUTH", password)))
        if self.database and not address.sentinel:
            commands.append(pack(("SELECT", self.database)))
        return commands
