"""Parser of store URLs. Unknown options are errors; error messages show the URL without its password."""

from __future__ import annotations

import re
from urllib.parse import parse_qsl, unquote, urlsplit

from crestgate.core.bounds import DEFAULT_PREFIX
from crestgate.core.redaction import redact_values
from crestgate.errors import ConfigError, install_hint

__all__ = ["REDIS_SCHEMES", "SQL_SCHEMES", "Options", "redact_url"]

SQL_SCHEMES = ("sqlite", "mysql", "mariadb", "postgresql", "postgres")
REDIS_SCHEMES = (
    *(f"{name}{suffix}" for name in ("redis", "valkey") for suffix in ("", "s", "+unix")),
    *(
        f"{name}{topology}"
        for name in ("redis", "rediss", "valkey", "valkeys")
        for topology in ("+sentinel", "+cluster")
    ),
)

_SAME = {"valkey": "redis", "valkeys": "rediss", "mariadb": "mysql", "postgres": "postgresql"}
"""Aliases of schemes."""
_PORTS = {"redis": 6379, "rediss": 6379, "mysql": 3306, "postgresql": 5432, "crestgate": 8080, "crestgates": 8080}
_KEYED = ("crestgate", "crestgates")
"""Schemes of services, which have API keys and no users: all that precedes the @ is secret."""
_COMMON = ("prefix", "timeout_ms", "pool_size")
_SERVER = re.compile(r"(?:\[([0-9a-fA-F:.]+(?:%[\w.~-]+)?)\]|([^\[\]:/@\s]+))(?::([0-9]{1,5}))?")


def redact_url(url: str) -> str:
    """The URL without its password.

    >>> redact_url("redis://user:secret@localhost:6379/0")
    'redis://user:***@localhost:6379/0'

    Also when the password holds a character that is not escaped and ends the host part:

    >>> redact_url("mysql://user:sec/r?et@localhost/db")
    'mysql://user:***@localhost/db'
    >>> redact_url("crestgate://cg_secret@localhost")
    'crestgate://:***@localhost'
    """
    scheme, colon, rest = url.partition("://")
    if not colon:  # not a URL at all: all that precedes an @ may be a secret
        before, at, after = url.rpartition("@")
        return redact_values(f"***@{after}" if at else before + after)
    userinfo, at, location = rest.rpartition("@")
    if at and scheme.lower() in _KEYED:
        rest = f":***@{location}"
    elif at and ":" in userinfo and not rest.startswith("/"):
        rest = f"{userinfo.partition(':')[0]}:***@{location}"
    return redact_values(f"{scheme}{colon}{rest}")


class Options:
    """The parts of one store URL."""

    def __init__(self, url: str) -> None:
        self.url = url
        try:
            parts = urlsplit(url)
        except ValueError as error:
            raise ConfigError(f"store URL {redact_url(url)!r}: {error}") from None
        userinfo, _, self.server_list = parts.netloc.rpartition("@")
        username, _, password = userinfo.partition(":")
        self.scheme = parts.scheme.lower()
        self.username = unquote(username) or None
        self.password = unquote(password) if ":" in userinfo else None

        self.host = unquote(parts.netloc)
        self.path = unquote(parts.path)
        servers = self.server_list.split(",")
        unescaped = ":" in parts.netloc and "@" in parts.path + parts.fragment
        if not userinfo and "@" in url and ":" in self.server_list and not all(map(_SERVER.fullmatch, servers)):
            unescaped = True
        if unescaped:
            # What looks like a server is the beginning of a password, so the message shows neither.
            raise self.error("in a user name or password, '/', '?', '#' and '@' are written %2F, %3F, %23 and %40")
        if parts.fragment or "\0" in self.path:
            raise self.error("a path may not hold a NUL, and a '#' in it is written %23")
        self.values: dict[str, str] = {}
        for name, value in parse_qsl(parts.query, keep_blank_values=True):
            if name in self.values:
                raise self.error(f"option {name!r} is given twice")
            self.values[name] = value

    def address(self) -> str:
        """The same for all spellings of one store: without login and options, with default port and database.

        >>> Options("redis://user:secret@Cache:6379?timeout_ms=50").address() == Options("redis://cache/0").address()
        True
        """
        family, plus, kind = self.scheme.partition("+")
        family = _SAME.get(family, family)
        scheme = f"{family}{plus}{kind}"
        port = 26379 if kind == "sentinel" else _PORTS.get(family)
        path = self.path.rstrip("/")
        if family in ("redis", "rediss"):
            database = self.values.get("db", "0") if kind == "unix" else "0"
            parts = path.count("/")
            path += f"/{database}" if kind == "unix" or parts < (2 if kind == "sentinel" else 1) else ""
        if port is None or not self.server_list:
            return f"{scheme}://{self.server_list}{path}"
        servers = ",".join(f"{host.lower()}:{number}" for host, number in self.servers(port))
        return f"{scheme}://{servers}{path}"

    def allow(self, *names: str) -> None:
        known = names + _COMMON
        for name in self.values:
            if name not in known:
                raise self.error(f"unknown option {name!r}; there are {', '.join(known)}")

    def servers(self, default_port: int) -> list[tuple[str, int]]:
        """The servers named between `//` and `/`: `host`, `host:port`, `[::1]:port`, separated by commas."""
        servers = []
        for item in self.server_list.split(",") if self.server_list else ["localhost"]:
            match = _SERVER.fullmatch(item)
            port = int(match[3]) if match and match[3] else default_port
            if match is None or not 0 < port < 65536:
                raise self.error(f"{item!r} is not a server: write host, host:port or [address]:port")
            servers.append((unquote(match[1] or match[2]), port))
        return servers

    def integer(self, name: str, default: int | None, maximum: int) -> int | None:
        text = self.values.get(name)
        if text is None:
            return default
        if not re.fullmatch(r"[0-9]{1,15}", text) or not 1 <= int(text) <= maximum:
            raise self.error(f"{name} must be a whole number from 1 to {maximum:,}, not {text!r}")
        return int(text)

    def boolean(self, name: str) -> bool:
        text = self.values.get(name, "no").lower()
        if text not in ("yes", "true", "1", "no", "false", "0"):
            raise self.error(f"{name} must be yes or no, not {text!r}")
        return text in ("yes", "true", "1")

    def prefix(self) -> str:
        prefix = self.values.get("prefix", DEFAULT_PREFIX)
        if not prefix:
            raise self.error("prefix must not be empty; leave it out for the default one")
        return prefix

    def timeout_ms(self, default: int) -> int:
        return self.integer("timeout_ms", default, 600_000) or default

    def pool_size(self) -> int | None:
        return self.integer("pool_size", None, 10_000)

    def error(self, problem: str) -> ConfigError:
        return ConfigError(f"store URL {redact_url(self.url)!r}: {problem}")

    def missing_package(self, error: ImportError) -> ConfigError:
        """The error for a package that is not installed; names the extra that brings it."""
        family = self.scheme.partition("+")[0]
        extra = _EXTRAS.get(family, family)
        what = f"the package {error.name!r} is missing" if error.name else str(error)
        return self.error(f"{what}: {install_hint(extra)}")


_EXTRAS = {
    "mariadb": "mysql",
    "postgresql": "postgres",
    **dict.fromkeys(("rediss", "valkey", "valkeys"), "redis"),
}
"""Extras whose name is not the scheme."""
