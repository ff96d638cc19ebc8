"""Settings from the environment variables of envoyproxy/ratelimit, for whoever changes only the image.

Each variable of the reference is one of three: it sets fields of Crestgate (as CRESTGATE_… variables, from which the
settings are then read), it is without effect, with a reason that is printed at the start, or it stops the start, where
ignoring it would limit other requests, or let in other callers, than its operator has asked for. An empty variable is
unset. CRESTGATE_… variables override what is derived here.
"""

from __future__ import annotations

import json
import os
import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Final
from urllib.parse import quote, urlencode

from crestgate.errors import Problem, ValidationError

__all__ = ["IGNORED", "REFUSED", "SUPPORTED", "Translation", "translate"]

BATCHING: Final = "batching is automatic"
METRICS: Final = "metrics are at /metrics on PORT, for Prometheus"
MEMCACHED: Final = "counters are in Redis, in SQL or in shared memory"
ONE_REDIS: Final = "all limits are counted in REDIS_URL"
OWN_BACKOFF: Final = "the client of the control plane waits 0.5 to 30 s between attempts, with jitter"
OTEL: Final = "OpenTelemetry's own variables, such as OTEL_SERVICE_NAME, set it"
IGNORED: Final[Mapping[str, str]] = {
    "DEBUG_HOST": "metrics and health are on PORT",
    "DEBUG_PORT": "metrics and health are on PORT",
    "GRPC_MAX_CONNECTION_AGE": "a connection lasts until one side closes it",
    "GRPC_MAX_CONNECTION_AGE_GRACE": "a connection lasts until one side closes it",
    "FORCE_START_WITHOUT_INITIAL_CONFIG": "with a control plane it always starts, and refuses requests until the "
    "first configuration; files must be valid",
    "HEALTHY_WITH_AT_LEAST_ONE_CONFIG_LOADED": "it is healthy only with a configuration",
    "CONFIG_GRPC_XDS_SERVER_CONNECT_RETRY_INTERVAL": OWN_BACKOFF,
    "XDS_CLIENT_BACKOFF_INITIAL_INTERVAL": OWN_BACKOFF,
    "XDS_CLIENT_BACKOFF_MAX_INTERVAL": OWN_BACKOFF,
    "XDS_CLIENT_BACKOFF_RANDOM_FACTOR": OWN_BACKOFF,
    "XDS_CLIENT_BACKOFF_JITTER": OWN_BACKOFF,
    "XDS_CLIENT_MAX_MSG_SIZE_IN_BYTES": "a configuration may have 64 MiB",
    **dict.fromkeys(
        ("USE_STATSD", "STATSD_HOST", "STATSD_PORT", "USE_DOG_STATSD", "USE_DOG_STATSD_MOGRIFIERS"), METRICS
    ),
    **dict.fromkeys(("STATS_FLUSH_INTERVAL", "DISABLE_STATS", "USE_PROMETHEUS", "PROMETHEUS_ADDR"), METRICS),
    **dict.fromkeys(("PROMETHEUS_PATH", "PROMETHEUS_MAPPER_YAML", "PROMETHEUS_RESPONSE_TIME_AS_MILLISECONDS"), METRICS),
    "EXTRA_TAGS": "add labels in Prometheus",
    "RUNTIME_IGNOREDOTFILES": "hidden files are never read",
    "RUNTIME_WATCH_ROOT": "files and symbolic links are watched",
    "EXPIRATION_JITTER_MAX_SECONDS": "counters expire by themselves, without jitter",
    "LOCAL_CACHE_SIZE_IN_BYTES": "not needed: a denied request costs one call, as others",
    "NEAR_LIMIT_RATIO": "the state `warning` begins above 80 %",
    "STOP_CACHE_KEY_INCREMENT_WHEN_OVERLIMIT": "always so, except for hits that are reported after the response",
    "LIMIT_LIMIT_HEADER": "the headers are RateLimit and RateLimit-Policy",
    "LIMIT_REMAINING_HEADER": "the headers are RateLimit and RateLimit-Policy",
    "LIMIT_RESET_HEADER": "the headers are RateLimit and RateLimit-Policy",
    "REDIS_PIPELINE_WINDOW": BATCHING,
    "REDIS_PIPELINE_LIMIT": BATCHING,
    "REDIS_CLUSTER_PIPELINE_PARALLELISM": BATCHING,
    "REDIS_HEALTH_CHECK_ACTIVE_CONNECTION": "/readyz and grpc.health.v1 test Redis",
    "REDIS_POOL_ON_EMPTY_BEHAVIOR": "requests wait for a connection, within the timeout",
    "REDIS_STARTUP_INITIAL_INTERVAL": "server.store_wait_seconds sets how long a start waits",
    "REDIS_STARTUP_MAX_INTERVAL": "server.store_wait_seconds sets how long a start waits",
    "REDIS_STARTUP_MAX_ELAPSED_TIME": "server.store_wait_seconds sets how long a start waits",
    **{
        f"REDIS_PERSECOND{name}": ONE_REDIS
        for name in (
            *("", "_SOCKET_TYPE", "_TYPE", "_URL", "_POOL_SIZE", "_AUTH", "_TLS", "_SENTINEL_AUTH", "_TIMEOUT"),
            *("_PIPELINE_WINDOW", "_PIPELINE_LIMIT", "_CLUSTER_PIPELINE_PARALLELISM", "_POOL_ON_EMPTY_BEHAVIOR"),
        )
    },
    **{
        f"MEMCACHE_{name}": MEMCACHED
        for name in (
            *("HOST_PORT", "MAX_IDLE_CONNS", "SRV", "SRV_REFRESH", "TLS", "TLS_CLIENT_CERT", "TLS_CLIENT_KEY"),
            *("TLS_CACERT", "TLS_SKIP_HOSTNAME_VERIFICATION"),
        )
    },
    "RESPONSE_DYNAMIC_METADATA": "sent if a limit has `metadata`",
    "TRACING_SERVICE_NAME": OTEL,
    "TRACING_SERVICE_NAMESPACE": OTEL,
    "TRACING_SERVICE_INSTANCE_ID": OTEL,
    "TRACING_EXPORTER_PROTOCOL": OTEL,
    "TRACING_SAMPLING_RATE": OTEL,
}
"""Variables without effect, and why."""
REFUSED: Final[Mapping[str, str]] = {
    "GRPC_UDS": "Crestgate listens for gRPC on TCP only: set GRPC_HOST and GRPC_PORT instead",
    "GRPC_CLIENT_TLS_SAN": "every certificate of GRPC_CLIENT_TLS_CACERT is accepted, whatever its names: remove this, "
    "and use an authority that signs those clients only",
    "SHADOW_MODE": "Crestgate would deny what this lets pass: set 'shadow_mode: true' for each limit instead",
    "QUOTA_MODE": "Crestgate would deny what this lets pass: set 'quota_mode: true' for each limit instead",
    "MERGE_DOMAIN_CONFIG": "a domain is one file: put all of its descriptors into one, and remove this",
}
"""Variables that stop the start, if they are set to anything but false, and the remedy."""
SUPPORTED: Final = frozenset(
    {
        *("HOST", "PORT", "GRPC_HOST", "GRPC_PORT", "LOG_LEVEL", "LOG_FORMAT", "CONFIG_TYPE", "BACKEND_TYPE"),
        *("GRPC_SERVER_USE_TLS", "GRPC_SERVER_TLS_CERT", "GRPC_SERVER_TLS_KEY", "GRPC_CLIENT_TLS_CACERT"),
        *(f"CONFIG_GRPC_XDS_{name}" for name in ("NODE_ID", "NODE_METADATA", "SERVER_URL", "SERVER_USE_TLS")),
        *(f"CONFIG_GRPC_XDS_CLIENT_{name}" for name in ("ADDITIONAL_HEADERS", "TLS_CERT", "TLS_KEY")),
        *("CONFIG_GRPC_XDS_SERVER_TLS_CACERT", "CONFIG_GRPC_XDS_SERVER_TLS_SAN"),
        *("RUNTIME_ROOT", "RUNTIME_SUBDIRECTORY", "RUNTIME_APPDIRECTORY", "CACHE_KEY_PREFIX"),
        *("LIMIT_RESPONSE_HEADERS_ENABLED", "TRACING_ENABLED"),
        *(f"REDIS_{name}" for name in ("SOCKET_TYPE", "TYPE", "URL", "POOL_SIZE", "AUTH", "TLS", "TIMEOUT")),
        *(f"REDIS_TLS_{name}" for name in ("CLIENT_CERT", "CLIENT_KEY", "CACERT", "SKIP_HOSTNAME_VERIFICATION")),
        "REDIS_SENTINEL_AUTH",
    }
)
_PREFIXES: Final = re.compile(
    r"(?:REDIS|RUNTIME|CONFIG_GRPC|GRPC|LIMIT|MEMCACHE|XDS_CLIENT|STATSD|PROMETHEUS|TRACING)_[A-Z0-9_]+"
)
_KUBERNETES: Final = re.compile(r"[A-Z0-9_]+_(?:SERVICE_(?:HOST|PORT)(?:_.*)?|PORT(?:_[0-9]+_(?:TCP|UDP)(?:_.*)?)?)")
"""Set by Kubernetes for each Service of a namespace, such as one that is called redis."""
_GRPC: Final = re.compile(
    r"GRPC_(?:GO_[A-Z0-9_]+|DEFAULT_SSL_ROOTS_FILE_PATH|SSL_CIPHER_SUITES|VERBOSITY|TRACE|STACKTRACE_MINLOGLEVEL|"
    r"DNS_RESOLVER|POLL_STRATEGY|ENABLE_FORK_SUPPORT|XDS_BOOTSTRAP(?:_CONFIG)?|EXPERIMENTAL_[A-Z0-9_]+)"
)
"""Read by gRPC itself, in Go or in the client for xDS."""
_DURATION: Final = re.compile(r"([0-9]+(?:\.[0-9]+)?)(ns|us|µs|ms|s|m|h)")
_SECONDS: Final = {"ns": 1e-9, "us": 1e-6, "µs": 1e-6, "ms": 1e-3, "s": 1.0, "m": 60.0, "h": 3600.0}
_TRUE, _FALSE = ("1", "t", "true"), ("0", "f", "false")
_LEVELS: Final = {
    "trace": "debug",
    "debug": "debug",
    "info": "info",
    "warn": "warning",
    "warning": "warning",
    "error": "error",
    "fatal": "error",
    "panic": "error",
}


@dataclass(slots=True)
class Translation:
    """The variables of Crestgate, and what is to be told."""

    variables: dict[str, str] = field(default_factory=dict)
    notes: list[str] = field(default_factory=list)
    """About variables without effect, or unknown ones."""


def translate(environ: Mapping[str, str]) -> Translation:
    """The settings of the reference's variables. ValidationError, with all problems, for what cannot be."""
    return _Translator(environ).run()


class _Translator:
    def __init__(self, environ: Mapping[str, str]) -> None:
        self.given = {name: value for name, value in environ.items() if value.strip()}
        self.problems: list[Problem] = []
        self.result = Translation()

    def run(self) -> Translation:
        for step in (self._notes, self._server, self._limits, self._store):
            step()
        if self.problems:
            raise ValidationError(self.problems)
        # What is set for Crestgate itself counts.
        own = {name: value for name, value in self.given.items() if name.startswith("CRESTGATE_")}
        self.result.variables |= own
        return self.result

    def _notes(self) -> None:
        notes = self.result.notes
        for name in sorted(self.given):
            if name in IGNORED:
                notes.append(f"{name} is without effect: {IGNORED[name]}")
            elif name in REFUSED:
                if self.given[name].strip().lower() not in _FALSE:
                    self._report(name, REFUSED[name])
            elif name in SUPPORTED or _KUBERNETES.fullmatch(name) or _GRPC.fullmatch(name):
                continue
            elif _PREFIXES.fullmatch(name):
                notes.append(f"{name} is unknown: envoyproxy/ratelimit has no such variable")

    def _server(self) -> None:
        self._set("SERVER__HTTP", self._address("HOST", "PORT", "8080"))
        self._set("SERVER__GRPC", self._address("GRPC_HOST", "GRPC_PORT", "8081"))
        self._set("SERVER__CHECKS", "open")  # as the reference, which knows no keys
        self._set("SERVER__INSECURE", "true")
        if self._flag("GRPC_SERVER_USE_TLS"):
            self._set("SERVER__TLS__CERTIFICATE", self._text("GRPC_SERVER_TLS_CERT"))
            self._set("SERVER__TLS__KEY", self._text("GRPC_SERVER_TLS_KEY"))
            self._set("SERVER__TLS__GRPC_CLIENT_CA", self._text("GRPC_CLIENT_TLS_CACERT"))
            self.result.notes.append("GRPC_SERVER_USE_TLS: HTTP on PORT uses the certificate, too")
        level, form = self._text("LOG_LEVEL", "warn").lower(), self._text("LOG_FORMAT", "text").lower()
        if level not in _LEVELS:
            self._report("LOG_LEVEL", f"must be one of {', '.join(_LEVELS)}, not {level!r}")
        self._set("LOGS__LEVEL", _LEVELS.get(level, ""))
        if form not in ("text", "json"):
            self._report("LOG_FORMAT", f"must be text or json, not {form!r}")
        self._set("LOGS__FORMAT", form)
        headers = "true" if self._flag("LIMIT_RESPONSE_HEADERS_ENABLED") else "false"
        self._set("HEADERS__RATELIMIT", headers)
        self._set("HEADERS__RETRY_AFTER", headers)
        if self._flag("TRACING_ENABLED"):
            self._set("TRACING__ENABLED", "true")

    def _limits(self) -> None:
        source = self._text("CONFIG_TYPE", "FILE")
        if source == "FILE":
            parts = (
                self._text("RUNTIME_ROOT", "/srv/runtime_data/current"),
                self._text("RUNTIME_SUBDIRECTORY"),
                self._text("RUNTIME_APPDIRECTORY", "config"),
            )
            self._set("ENVOY__CONFIG", os.path.join(*(part for part in parts if part)))
        elif source == "GRPC_XDS_SOTW":
            self._xds()
        else:
            self._report("CONFIG_TYPE", f"must be FILE or GRPC_XDS_SOTW, not {source!r}")

    def _xds(self) -> None:
        name = "CONFIG_GRPC_XDS_"
        self._set("ENVOY__XDS__SERVER", self._text(f"{name}SERVER_URL", "localhost:18000"))
        self._set("ENVOY__XDS__NODE_ID", self._text(f"{name}NODE_ID", "default"))
        self._set("ENVOY__XDS__NODE_METADATA", self._pairs(f"{name}NODE_METADATA", "="))
        self._set("ENVOY__XDS__HEADERS", self._pairs(f"{name}CLIENT_ADDITIONAL_HEADERS", ":"))
        if self._flag(f"{name}SERVER_USE_TLS"):
            self._set("ENVOY__XDS__TLS__ENABLED", "true")
            self._set("ENVOY__XDS__TLS__CERTIFICATE", self._text(f"{name}CLIENT_TLS_CERT"))
            self._set("ENVOY__XDS__TLS__KEY", self._text(f"{name}CLIENT_TLS_KEY"))
            self._set("ENVOY__XDS__TLS__CA", self._text(f"{name}SERVER_TLS_CACERT"))
            self._set("ENVOY__XDS__TLS__SERVER_NAME", self._text(f"{name}SERVER_TLS_SAN"))

    def _store(self) -> None:
        backend = self._text("BACKEND_TYPE", "redis")
        if "CRESTGATE_STORE" in self.given:
            return
        if backend != "redis":
            self._report("BACKEND_TYPE", f"{backend!r} is not supported: {MEMCACHED}; set REDIS_URL or CRESTGATE_STORE")
        elif self._text("REDIS_URL"):
            self._set("STORE", self._redis_url())
        else:
            self.result.notes.append("REDIS_URL is not set: counters are in shared memory, of this machine only")

    def _redis_url(self) -> str:
        url, kind = self._text("REDIS_URL"), self._text("REDIS_TYPE", "SINGLE").lower()
        tls = self._flag("REDIS_TLS")
        scheme = "rediss" if tls else "redis"
        user, found, password = self._text("REDIS_AUTH").partition(":")
        if not found:
            user, password = "", user
        login = f"{quote(user, safe='')}:{quote(password, safe='')}@" if password else ""
        options = self._redis_options(tls, kind)
        query = f"?{urlencode(options)}" if options else ""
        servers = [re.sub(r"^[a-z+]+://", "", one.strip()) for one in url.split(",")]
        if kind == "sentinel":
            name, *sentinels = servers
            return f"{scheme}+sentinel://{login}{','.join(sentinels)}/{quote(name, safe='')}/0{query}"
        if kind == "cluster":
            return f"{scheme}+cluster://{login}{','.join(servers)}{query}"
        if kind != "single":
            self._report("REDIS_TYPE", f"must be SINGLE, SENTINEL or CLUSTER, not {kind!r}")
        if self._text("REDIS_SOCKET_TYPE", "unix") == "unix" and url.startswith("/"):
            return f"redis+unix://{login}{quote(url)}{query}"
        return f"{scheme}://{login}{servers[0]}{query}"

    def _redis_options(self, tls: bool, kind: str) -> dict[str, str]:
        options = {"prefix": self._text("CACHE_KEY_PREFIX"), "pool_size": self._text("REDIS_POOL_SIZE")}
        if self._text("REDIS_TIMEOUT"):
            options["timeout_ms"] = str(max(1, round(self._seconds("REDIS_TIMEOUT") * 1000)))
        if tls:
            options["ssl_ca_certs"] = self._text("REDIS_TLS_CACERT")
            options["ssl_certfile"] = self._text("REDIS_TLS_CLIENT_CERT")
            options["ssl_keyfile"] = self._text("REDIS_TLS_CLIENT_KEY")
            if self._flag("REDIS_TLS_SKIP_HOSTNAME_VERIFICATION"):
                options["ssl_cert_reqs"] = "none"
                self.result.notes.append("REDIS_TLS_SKIP_HOSTNAME_VERIFICATION: the certificate is not verified either")
        if kind == "sentinel" and self._text("REDIS_SENTINEL_AUTH"):
            user, found, password = self._text("REDIS_SENTINEL_AUTH").partition(":")
            options["sentinel_username"] = user if found else ""
            options["sentinel_password"] = password if found else user
        return {name: value for name, value in options.items() if value}

    def _set(self, name: str, value: str) -> None:
        if value:
            self.result.variables[f"CRESTGATE_{name}"] = value

    def _report(self, name: str, message: str) -> None:
        self.problems.append(Problem("", message, name))

    def _text(self, name: str, default: str = "") -> str:
        return self.given.get(name, default).strip()

    def _address(self, host: str, port: str, default: str) -> str:
        name = self._text(host, "0.0.0.0")  # noqa: S104 - as the reference
        return f"[{name}]:{self._text(port, default)}" if ":" in name else f"{name}:{self._text(port, default)}"

    def _flag(self, name: str) -> bool:
        """As Go's ParseBool."""
        text = self._text(name, "false").lower()
        if text not in (*_TRUE, *_FALSE):
            self._report(name, f"must be true or false, not {text!r}")
        return text in _TRUE

    def _seconds(self, name: str) -> float:
        """As Go's ParseDuration: 10s, 1m30s, 150us."""
        text = self._text(name)
        if not re.fullmatch(f"(?:{_DURATION.pattern})+", text):
            self._report(name, f"must be a duration, such as 10s or 150ms, not {text!r}")
            return 0.0
        return sum(float(number) * _SECONDS[unit] for number, unit in _DURATION.findall(text))

    def _pairs(self, name: str, separator: str) -> str:
        """`a=b,c=d` as JSON."""
        pairs = [pair.partition(separator) for pair in self._text(name).split(",") if pair.strip()]
        found = {key.strip(): value.strip() for key, middle, value in pairs if middle}
        return json.dumps(found) if found else ""
