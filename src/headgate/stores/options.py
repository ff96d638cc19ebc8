"""A store URL taken apart: each part and option is asked for by name, and what nobody knows is an error.

Errors show the URL with its password masked.
"""

from __future__ import annotations

import re
from urllib.parse import parse_qsl, unquote, urlsplit

from headgate.core.masking import masked_values
from headgate.errors import ConfigError
from headgate.stores.port import DEFAULT_PREFIX

__all__ = ["Options", "masked"]

_SAME = {"valkey": "redis", "valkeys": "rediss", "mariadb": "mysql", "postgres": "postgresql"}
"""Schemes that are other names of the same."""
_PORTS = {"redis": 6379, "rediss": 6379, "mysql": 3306, "postgresql": 5432, "headgate": 8080, "headgates": 8080}
_KEYED = ("headgate", "headgates")
"""Services know keys, and no users: what stands before the @ is a secret wherever its colon is."""
_COMMON = ("prefix", "timeout_ms", "pool_size")
_SERVER = re.compile(r"(?:\[([0-9a-fA-F:.]+(?:%[\w.~-]+)?)\]|([^\[\]:/@\s]+))(?::([0-9]{1,5}))?")


def masked(url: str) -> str:
    """A URL as it may be shown: without its password.

    >>> masked("redis://user:secret@localhost:6379/0")
    'redis://user:***@localhost:6379/0'

    Also when it is written wrongly, with a character in the password that ends the place of the server:

    >>> masked("mysql://user:sec/r?et@localhost/db")
    'mysql://user:***@localhost/db'
    >>> masked("headgate://hg_secret@localhost")
    'headgate://:***@localhost'
    """
    scheme, colon, rest = url.partition("://")
    if not colon:  # not a URL at all: whatever stands before an @ may be a secret
        before, at, after = url.rpartition("@")
        return masked_values(f"***@{after}" if at else before + after)
    userinfo, at, place = rest.rpartition("@")
    if at and scheme.lower() in _KEYED:
        rest = f":***@{place}"
    elif at and ":" in userinfo and not rest.startswith("/"):
        rest = f"{userinfo.partition(':')[0]}:***@{place}"
    return masked_values(f"{scheme}{colon}{rest}")


class Options:
    """The parts of one store URL."""

    def __init__(self, url: str) -> None:
        self.url = url
        try:
            parts = urlsplit(url)
        except ValueError as error:
            raise ConfigError(f"store URL {masked(url)!r}: {error}") from None
        userinfo, _, place = parts.netloc.rpartition("@")
        username, _, password = userinfo.partition(":")
        self.scheme = parts.scheme.lower()
        self.username = unquote(username) or None
        self.password = unquote(password) if ":" in userinfo else None
        self.place = place
        self.host = unquote(parts.netloc)
        self.path = unquote(parts.path)
        astray = ":" in parts.netloc and "@" in parts.path + parts.fragment
        if not userinfo and "@" in url and ":" in place and not all(map(_SERVER.fullmatch, place.split(","))):
            astray = True
        if astray:
            # What looks like a server is the beginning of a password, and the rest of it must not be shown either.
            raise self.error("in a user name or password, '/', '?', '#' and '@' are written %2F, %3F, %23 and %40")
        if parts.fragment or "\0" in self.path:
            raise self.error("a path may not hold a NUL, and a '#' in it is written %23")
        self.values: dict[str, str] = {}
        for name, value in parse_qsl(parts.query, keep_blank_values=True):
            if name in self.values:
                raise self.error(f"option {name!r} is given twice")
            self.values[name] = value

    def address(self) -> str:
        """The store's own part of the URL, without user, password and options, and however it is abbreviated.

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
        if port is None or not self.place:
            return f"{scheme}://{self.place}{path}"
        servers = ",".join(f"{host.lower()}:{number}" for host, number in self.places(port))
        return f"{scheme}://{servers}{path}"

    def allow(self, *names: str) -> None:
        known = names + _COMMON
        for name in self.values:
            if name not in known:
                raise self.error(f"unknown option {name!r}; there are {', '.join(known)}")

    def places(self, default_port: int) -> list[tuple[str, int]]:
        """The servers named between `//` and `/`: `host`, `host:port`, `[::1]:port`, separated by commas."""
        found = []
        for item in self.place.split(",") if self.place else ["localhost"]:
            match = _SERVER.fullmatch(item)
            port = int(match[3]) if match and match[3] else default_port
            if match is None or not 0 < port < 65536:
                raise self.error(f"{item!r} is not a server: write host, host:port or [address]:port")
            found.append((unquote(match[1] or match[2]), port))
        return found

    def whole(self, name: str, default: int | None, most: int) -> int | None:
        text = self.values.get(name)
        if text is None:
            return default
        if not re.fullmatch(r"[0-9]{1,15}", text) or not 1 <= int(text) <= most:
            raise self.error(f"{name} must be a whole number from 1 to {most:,}, not {text!r}")
        return int(text)

    def yes(self, name: str) -> bool:
        text = self.values.get(name, "no").lower()
        if text not in ("yes", "true", "1", "no", "false", "0"):
            raise self.error(f"{name} must be yes or no, not {text!r}")
        return text in ("yes", "true", "1")

    def prefix(self) -> str:
        prefix = self.values.get("prefix", DEFAULT_PREFIX)
        if not prefix:
            raise self.error("prefix must not be empty; leave it out for the usual one")
        return prefix

    def timeout_ms(self, default: int) -> int:
        return self.whole("timeout_ms", default, 600_000) or default

    def pool_size(self) -> int | None:
        return self.whole("pool_size", None, 10_000)

    def error(self, problem: str) -> ConfigError:
        return ConfigError(f"store URL {masked(self.url)!r}: {problem}")

    def missing(self, error: ImportError) -> ConfigError:
        """What is at this URL needs a package that is not installed: the extra that brings it."""
        family = self.scheme.partition("+")[0]
        extra = _EXTRAS.get(family, family)
        what = f"the package {error.name!r} is missing" if error.name else str(error)
        return self.error(f"{what}: pip install 'headgate[{extra}]'")


_EXTRAS = {
    "mariadb": "mysql",
    "postgresql": "postgres",
    **dict.fromkeys(("rediss", "valkey", "valkeys"), "redis"),
}
"""Extras that are not called as the scheme is."""
