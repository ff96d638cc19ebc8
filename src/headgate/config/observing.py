"""What the service says of itself, and how: headers, metrics, logs, traces, and a webhook for pressure.

headers: {ratelimit: true, x_ratelimit: true, retry_after: true, reset: seconds}        # or reset: epoch
metrics: {prefix: headgate, tokens_remaining: false}
logs: {level: info, format: json, keys: hashed, requests: admin}
tracing: {enabled: false}
pressure: {webhook: https://example.org/pressure}
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Literal
from urllib.parse import urlsplit

from headgate.config.section import names_of, section
from headgate.http.style import RESETS, HeaderStyle
from headgate.reading.fields import Fields, kind_of

__all__ = [
    "LogFormat",
    "LogKeys",
    "LogLevel",
    "LogRequests",
    "Logs",
    "Metrics",
    "Tracing",
    "is_web_address",
    "read_headers",
    "read_logs",
    "read_metrics",
    "read_tracing",
    "read_webhook",
]

LogLevel = Literal["debug", "info", "warning", "error"]
LEVELS: tuple[LogLevel, ...] = ("debug", "info", "warning", "error")
LogFormat = Literal["json", "text"]
FORMATS: tuple[LogFormat, ...] = ("json", "text")
LogKeys = Literal["hashed", "plain"]
KEYS: tuple[LogKeys, ...] = ("hashed", "plain")
LogRequests = Literal["admin", "all", "none"]
REQUESTS: tuple[LogRequests, ...] = ("admin", "all", "none")
PRESSURE = ("webhook",)
_PREFIX = re.compile("[a-zA-Z_][a-zA-Z0-9_]{0,63}")


@dataclass(frozen=True, slots=True)
class Metrics:
    """What metrics are called, and whether there is one for what remains of each counter."""

    prefix: str = "headgate"
    tokens_remaining: bool = False


@dataclass(frozen=True, slots=True)
class Logs:
    """What is logged, and in which form."""

    level: LogLevel = "info"
    format: LogFormat | None = None
    """None: text on a terminal, JSON elsewhere."""
    keys: LogKeys = "hashed"
    """How the keys of callers are shown."""
    requests: LogRequests = "admin"
    """Which requests have a line each."""


@dataclass(frozen=True, slots=True)
class Tracing:
    """Whether there are spans for OpenTelemetry."""

    enabled: bool = False


def read_headers(fields: Fields, name: str) -> HeaderStyle:
    inner = section(fields, name, names_of(HeaderStyle))
    return HeaderStyle(
        inner.yes("ratelimit", True),
        inner.yes("x_ratelimit", True),
        inner.yes("retry_after", True),
        inner.choice("reset", RESETS, "seconds"),
    )


def read_metrics(fields: Fields, name: str) -> Metrics:
    default = Metrics()
    inner = section(fields, name, names_of(Metrics))
    prefix = inner.text("prefix", default.prefix)
    if not _PREFIX.fullmatch(prefix):
        inner.wrong("prefix", f"must be 1 to 64 letters, digits and '_', no digit first, not {kind_of(prefix)}")
        prefix = default.prefix
    return Metrics(prefix, inner.yes("tokens_remaining", default.tokens_remaining))


def read_logs(fields: Fields, name: str) -> Logs:
    default = Logs()
    inner = section(fields, name, names_of(Logs))
    return Logs(
        inner.choice("level", LEVELS, default.level),
        inner.choice("format", FORMATS),
        inner.choice("keys", KEYS, default.keys),
        inner.choice("requests", REQUESTS, default.requests),
    )


def read_tracing(fields: Fields, name: str) -> Tracing:
    return Tracing(section(fields, name, names_of(Tracing)).yes("enabled", False))


def read_webhook(fields: Fields, name: str) -> str | None:
    """The address that transitions of pressure are sent to. No message shows it: it is often a secret itself."""
    if isinstance(fields.values.get(name), str):
        fields.wrong(name, "must be a mapping: write {webhook: …} around the URL")
        return None
    inner = section(fields, name, PRESSURE)
    url: str | None = inner.text("webhook", most=2048)
    if url is not None and not is_web_address(url):
        inner.wrong("webhook", "is no URL that can be posted to: write one such as https://example.org/pressure")
        return None
    return url


def is_web_address(text: str) -> bool:
    """Whether it is a complete URL of http or https."""
    try:
        parts = urlsplit(text)
        port = parts.port
    except ValueError:
        return False
    plain = text.isascii() and text.isprintable() and " " not in text
    return plain and parts.scheme in ("http", "https") and bool(parts.hostname) and port != 0
