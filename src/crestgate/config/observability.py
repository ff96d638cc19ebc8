"""Settings of observability: headers, metrics, logs, tracing, and a webhook for pressure.

headers: {ratelimit: true, x_ratelimit: true, retry_after: true, reset: seconds}        # or reset: epoch
metrics: {prefix: crestgate, tokens_remaining: false}
logs: {level: info, format: json, keys: hashed, requests: admin}
tracing: {enabled: false}
traffic: {record: true, max_requests: 20000}
pressure: {webhook: https://example.org/pressure}
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Literal
from urllib.parse import urlsplit

from crestgate.config.section import field_names, section
from crestgate.http.header_options import RESETS, HeaderStyle
from crestgate.loader.fields import Fields, describe

__all__ = [
    "LogFormat",
    "LogKeys",
    "LogLevel",
    "LogRequests",
    "Logs",
    "Metrics",
    "Tracing",
    "Traffic",
    "is_http_url",
    "read_headers",
    "read_logs",
    "read_metrics",
    "read_tracing",
    "read_traffic",
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
MAX_RECORDED = 100_000
"""Records of one worker: they are sampled again in one turn of its event loop when there are too many."""
_PREFIX = re.compile("[a-zA-Z_][a-zA-Z0-9_]{0,63}")


@dataclass(frozen=True, slots=True)
class Metrics:
    """Prefix of metric names, and whether there is a gauge for the quota left of each counter."""

    prefix: str = "crestgate"
    tokens_remaining: bool = False


@dataclass(frozen=True, slots=True)
class Logs:
    """What is logged, and in which format."""

    level: LogLevel = "info"
    format: LogFormat | None = None
    """None: text on a terminal, JSON elsewhere."""
    keys: LogKeys = "hashed"
    """How keys of clients appear."""
    requests: LogRequests = "admin"
    """Which requests are logged."""


@dataclass(frozen=True, slots=True)
class Tracing:
    """Whether to create OpenTelemetry spans."""

    enabled: bool = False


@dataclass(frozen=True, slots=True)
class Traffic:
    """Whether recent checks are recorded for `POST /api/v1/simulate`, and how many in each worker."""

    record: bool = True
    max_requests: int = 20_000


def read_headers(fields: Fields, name: str) -> HeaderStyle:
    inner = section(fields, name, field_names(HeaderStyle))
    return HeaderStyle(
        inner.boolean("ratelimit", True),
        inner.boolean("x_ratelimit", True),
        inner.boolean("retry_after", True),
        inner.choice("reset", RESETS, "seconds"),
    )


def read_metrics(fields: Fields, name: str) -> Metrics:
    default = Metrics()
    inner = section(fields, name, field_names(Metrics))
    prefix = inner.text("prefix", default.prefix)
    if not _PREFIX.fullmatch(prefix):
        inner.report("prefix", f"must be 1 to 64 letters, digits and '_', no digit first, not {describe(prefix)}")
        prefix = default.prefix
    return Metrics(prefix, inner.boolean("tokens_remaining", default.tokens_remaining))


def read_logs(fields: Fields, name: str) -> Logs:
    default = Logs()
    inner = section(fields, name, field_names(Logs))
    return Logs(
        inner.choice("level", LEVELS, default.level),
        inner.choice("format", FORMATS),
        inner.choice("keys", KEYS, default.keys),
        inner.choice("requests", REQUESTS, default.requests),
    )


def read_tracing(fields: Fields, name: str) -> Tracing:
    return Tracing(section(fields, name, field_names(Tracing)).boolean("enabled", False))


def read_traffic(fields: Fields, name: str) -> Traffic:
    default = Traffic()
    inner = section(fields, name, field_names(Traffic))
    return Traffic(
        inner.boolean("record", default.record),
        inner.integer("max_requests", default.max_requests, minimum=100, maximum=MAX_RECORDED),
    )


def read_webhook(fields: Fields, name: str) -> str | None:
    """The URL that pressure changes are posted to. Never logged or shown in errors: it is often a secret."""
    if isinstance(fields.values.get(name), str):
        fields.report(name, "must be a mapping: write {webhook: …} around the URL")
        return None
    inner = section(fields, name, PRESSURE)
    url: str | None = inner.text("webhook", maximum=2048)
    if url is not None and not is_http_url(url):
        inner.report("webhook", "is not an HTTP URL: write one such as https://example.org/pressure")
        return None
    return url


def is_http_url(text: str) -> bool:
    """Whether it is an absolute http or https URL."""
    try:
        parts = urlsplit(text)
        port = parts.port
    except ValueError:
        return False
    plain = text.isascii() and text.isprintable() and " " not in text
    return plain and parts.scheme in ("http", "https") and bool(parts.hostname) and port != 0
