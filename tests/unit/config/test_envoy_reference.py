"""The environment variables of envoyproxy/ratelimit as settings of Crestgate."""

from __future__ import annotations

from pathlib import Path

import pytest

from crestgate.config.envoy_reference import IGNORED, REFUSED, SUPPORTED, translate
from crestgate.config.settings import Address, Settings, load_settings
from crestgate.envoy.xds.settings import Xds, XdsTls
from crestgate.errors import ValidationError

DOMAIN = "domain: shop\ndescriptors:\n  - {key: user, rate_limit: {unit: day, requests_per_unit: 5}}\n"
REFERENCE = """
HOST PORT DEBUG_HOST DEBUG_PORT GRPC_UDS GRPC_HOST GRPC_PORT GRPC_MAX_CONNECTION_AGE GRPC_MAX_CONNECTION_AGE_GRACE
GRPC_SERVER_USE_TLS GRPC_SERVER_TLS_CERT GRPC_SERVER_TLS_KEY GRPC_CLIENT_TLS_CACERT GRPC_CLIENT_TLS_SAN LOG_LEVEL
LOG_FORMAT CONFIG_TYPE FORCE_START_WITHOUT_INITIAL_CONFIG CONFIG_GRPC_XDS_NODE_ID CONFIG_GRPC_XDS_NODE_METADATA
CONFIG_GRPC_XDS_SERVER_URL CONFIG_GRPC_XDS_SERVER_CONNECT_RETRY_INTERVAL CONFIG_GRPC_XDS_CLIENT_ADDITIONAL_HEADERS
CONFIG_GRPC_XDS_SERVER_USE_TLS CONFIG_GRPC_XDS_CLIENT_TLS_CERT CONFIG_GRPC_XDS_CLIENT_TLS_KEY
CONFIG_GRPC_XDS_SERVER_TLS_CACERT CONFIG_GRPC_XDS_SERVER_TLS_SAN XDS_CLIENT_BACKOFF_INITIAL_INTERVAL
XDS_CLIENT_BACKOFF_MAX_INTERVAL XDS_CLIENT_BACKOFF_RANDOM_FACTOR XDS_CLIENT_BACKOFF_JITTER
XDS_CLIENT_MAX_MSG_SIZE_IN_BYTES USE_DOG_STATSD USE_DOG_STATSD_MOGRIFIERS USE_STATSD STATSD_HOST STATSD_PORT
EXTRA_TAGS STATS_FLUSH_INTERVAL DISABLE_STATS USE_PROMETHEUS PROMETHEUS_ADDR PROMETHEUS_PATH PROMETHEUS_MAPPER_YAML
PROMETHEUS_RESPONSE_TIME_AS_MILLISECONDS RUNTIME_ROOT RUNTIME_SUBDIRECTORY RUNTIME_APPDIRECTORY RUNTIME_IGNOREDOTFILES
RUNTIME_WATCH_ROOT EXPIRATION_JITTER_MAX_SECONDS LOCAL_CACHE_SIZE_IN_BYTES NEAR_LIMIT_RATIO CACHE_KEY_PREFIX
BACKEND_TYPE STOP_CACHE_KEY_INCREMENT_WHEN_OVERLIMIT LIMIT_RESPONSE_HEADERS_ENABLED LIMIT_LIMIT_HEADER
LIMIT_REMAINING_HEADER LIMIT_RESET_HEADER HEALTHY_WITH_AT_LEAST_ONE_CONFIG_LOADED REDIS_SOCKET_TYPE REDIS_TYPE
REDIS_URL REDIS_POOL_SIZE REDIS_AUTH REDIS_TLS REDIS_TLS_CLIENT_CERT REDIS_TLS_CLIENT_KEY REDIS_TLS_CACERT
REDIS_TLS_SKIP_HOSTNAME_VERIFICATION REDIS_PIPELINE_WINDOW REDIS_PIPELINE_LIMIT REDIS_CLUSTER_PIPELINE_PARALLELISM
REDIS_PERSECOND REDIS_PERSECOND_SOCKET_TYPE REDIS_PERSECOND_TYPE REDIS_PERSECOND_URL REDIS_PERSECOND_POOL_SIZE
REDIS_PERSECOND_AUTH REDIS_PERSECOND_TLS REDIS_SENTINEL_AUTH REDIS_PERSECOND_SENTINEL_AUTH
REDIS_PERSECOND_PIPELINE_WINDOW REDIS_PERSECOND_PIPELINE_LIMIT REDIS_PERSECOND_CLUSTER_PIPELINE_PARALLELISM
REDIS_HEALTH_CHECK_ACTIVE_CONNECTION REDIS_TIMEOUT REDIS_PERSECOND_TIMEOUT REDIS_POOL_ON_EMPTY_BEHAVIOR
REDIS_PERSECOND_POOL_ON_EMPTY_BEHAVIOR REDIS_STARTUP_INITIAL_INTERVAL REDIS_STARTUP_MAX_INTERVAL
REDIS_STARTUP_MAX_ELAPSED_TIME MEMCACHE_HOST_PORT MEMCACHE_MAX_IDLE_CONNS MEMCACHE_SRV MEMCACHE_SRV_REFRESH
MEMCACHE_TLS MEMCACHE_TLS_CLIENT_CERT MEMCACHE_TLS_CLIENT_KEY MEMCACHE_TLS_CACERT
MEMCACHE_TLS_SKIP_HOSTNAME_VERIFICATION SHADOW_MODE QUOTA_MODE RESPONSE_DYNAMIC_METADATA MERGE_DOMAIN_CONFIG
TRACING_ENABLED TRACING_SERVICE_NAME TRACING_SERVICE_NAMESPACE TRACING_SERVICE_INSTANCE_ID TRACING_EXPORTER_PROTOCOL
TRACING_SAMPLING_RATE
""".split()
"""All variables of envoyproxy/ratelimit."""


@pytest.fixture
def root(tmp_path: Path) -> str:
    """A folder of limits as the reference has them."""
    folder = tmp_path / "ratelimit" / "config"
    folder.mkdir(parents=True)
    (folder / "shop.yaml").write_text(DOMAIN)
    return str(tmp_path)


def loaded(root: str, **variables: str) -> Settings:
    given = {"RUNTIME_ROOT": root, "RUNTIME_SUBDIRECTORY": "ratelimit", **variables}
    return load_settings(None, translate(given).variables)


def problems(**variables: str) -> list[str]:
    with pytest.raises(ValidationError) as raised:
        translate(variables)
    return [str(problem) for problem in raised.value.problems]


def test_every_variable_is_supported_or_without_effect_or_refused() -> None:
    assert sorted([*SUPPORTED, *IGNORED, *REFUSED]) == sorted(REFERENCE), "each in exactly one table"


def test_defaults_are_those_of_the_reference(root: str) -> None:
    settings = loaded(root)
    assert (settings.server.http, settings.server.grpc) == (Address("0.0.0.0", 8080), Address("0.0.0.0", 8081))
    assert (settings.server.checks, settings.server.insecure) == ("open", True)
    assert settings.descriptors_summary == f"{root}/ratelimit/config: 1 limit in shop"
    assert (settings.headers.ratelimit, settings.headers.retry_after, settings.envoy.x_ratelimit) == (False,) * 3
    assert (settings.logs.level, settings.logs.format, settings.tracing.enabled) == ("warning", "text", False)
    assert not settings.store_is_set
    assert translate({}).variables["CRESTGATE_ENVOY__CONFIG"] == "/srv/runtime_data/current/config"


def test_addresses_logs_and_headers(root: str) -> None:
    settings = loaded(
        root,
        HOST="::1",
        PORT="1",
        GRPC_HOST="127.0.0.1",
        GRPC_PORT="2",
        LOG_LEVEL="DEBUG",
        LOG_FORMAT="json",
        LIMIT_RESPONSE_HEADERS_ENABLED="True",
    )
    assert (settings.server.http, settings.server.grpc) == (Address("::1", 1), Address("127.0.0.1", 2))
    assert (settings.logs.level, settings.logs.format) == ("debug", "json")
    assert (settings.headers.ratelimit, settings.headers.retry_after) == (True, True)


REDIS = [
    ({"REDIS_URL": "redis:6379"}, "redis://redis:6379"),
    ({"REDIS_URL": "redis://redis:6379"}, "redis://redis:6379"),
    ({"REDIS_URL": "/run/redis.sock", "REDIS_AUTH": "p@ss"}, "redis+unix://:p%40ss@/run/redis.sock"),
    ({"REDIS_URL": "r:1", "REDIS_SOCKET_TYPE": "tcp", "REDIS_AUTH": "u:p:w"}, "redis://u:p%3Aw@r:1"),
    (
        {"REDIS_URL": "r:1", "REDIS_TLS": "1", "REDIS_TLS_SKIP_HOSTNAME_VERIFICATION": "1", "REDIS_POOL_SIZE": "5"},
        "rediss://r:1?pool_size=5&ssl_cert_reqs=none",
    ),
    (
        {"REDIS_URL": "r:1", "REDIS_TIMEOUT": "1m1.5s", "CACHE_KEY_PREFIX": "a b"},
        "redis://r:1?prefix=a+b&timeout_ms=61500",
    ),
    ({"REDIS_URL": "a:1,b:2", "REDIS_TYPE": "cluster"}, "redis+cluster://a:1,b:2"),
    (
        {"REDIS_URL": "main,a:1,b:2", "REDIS_TYPE": "SENTINEL", "REDIS_AUTH": "x", "REDIS_SENTINEL_AUTH": "y"},
        "redis+sentinel://:x@a:1,b:2/main/0?sentinel_password=y",
    ),
    (
        {"REDIS_URL": "main,a:1", "REDIS_TYPE": "SENTINEL", "REDIS_TLS": "true", "REDIS_SENTINEL_AUTH": "u:y"},
        "rediss+sentinel://a:1/main/0?sentinel_username=u&sentinel_password=y",
    ),
    ({"REDIS_URL": "a:1", "REDIS_TYPE": "cluster", "REDIS_TLS": "t"}, "rediss+cluster://a:1"),
]


@pytest.mark.parametrize(("variables", "url"), REDIS)
def test_redis(root: str, variables: dict[str, str], url: str) -> None:
    settings = loaded(root, **variables)
    assert settings.store == url
    assert settings.store_is_set


def test_certificates_of_redis() -> None:
    names = {"REDIS_TLS_CACERT": "/ca", "REDIS_TLS_CLIENT_CERT": "/c", "REDIS_TLS_CLIENT_KEY": "/k"}
    variables = translate({"REDIS_URL": "r:1", "REDIS_TLS": "true", **names}).variables
    assert variables["CRESTGATE_STORE"] == "rediss://r:1?ssl_ca_certs=%2Fca&ssl_certfile=%2Fc&ssl_keyfile=%2Fk"
    assert translate({"REDIS_URL": "r:1", **names}).variables["CRESTGATE_STORE"] == "redis://r:1", "TLS is off"


def test_without_redis_counters_are_in_shared_memory() -> None:
    assert translate({}).notes == ["REDIS_URL is not set: counters are in shared memory, of this machine only"]


def test_control_plane(tmp_path: Path) -> None:
    for name in ("ca", "cert", "key"):
        (tmp_path / name).write_text("")
    settings = load_settings(
        None,
        translate(
            {
                "CONFIG_TYPE": "GRPC_XDS_SOTW",
                "CONFIG_GRPC_XDS_SERVER_URL": "gateway:18001",
                "CONFIG_GRPC_XDS_NODE_ID": "node",
                "CONFIG_GRPC_XDS_NODE_METADATA": "a=b,c=d=e",
                "CONFIG_GRPC_XDS_CLIENT_ADDITIONAL_HEADERS": "x-token:secret",
                "CONFIG_GRPC_XDS_SERVER_USE_TLS": "true",
                "CONFIG_GRPC_XDS_CLIENT_TLS_CERT": str(tmp_path / "cert"),
                "CONFIG_GRPC_XDS_CLIENT_TLS_KEY": str(tmp_path / "key"),
                "CONFIG_GRPC_XDS_SERVER_TLS_CACERT": str(tmp_path / "ca"),
                "CONFIG_GRPC_XDS_SERVER_TLS_SAN": "gateway.local",
            }
        ).variables,
    )
    tls = XdsTls(True, str(tmp_path / "ca"), str(tmp_path / "cert"), str(tmp_path / "key"), "gateway.local")
    assert settings.envoy.xds == Xds("gateway:18001", "node", "", {"a": "b", "c": "d=e"}, {"x-token": "secret"}, tls)
    default = load_settings(None, translate({"CONFIG_TYPE": "GRPC_XDS_SOTW"}).variables)
    assert default.envoy.xds == Xds("localhost:18000", "default")


def test_tls_of_the_listener() -> None:
    translation = translate(
        {
            "GRPC_SERVER_USE_TLS": "true",
            "GRPC_SERVER_TLS_CERT": "c",
            "GRPC_SERVER_TLS_KEY": "k",
            "GRPC_CLIENT_TLS_CACERT": "a",
        }
    )
    names = {"CERTIFICATE": "c", "KEY": "k", "GRPC_CLIENT_CA": "a"}
    for name, value in names.items():
        assert translation.variables[f"CRESTGATE_SERVER__TLS__{name}"] == value
    assert "GRPC_SERVER_USE_TLS: HTTP on PORT uses the certificate, too" in translation.notes


def test_own_variables_override(root: str) -> None:
    settings = loaded(
        root, PORT="1", CRESTGATE_SERVER__HTTP="127.0.0.1:2", CRESTGATE_STORE="memory://", REDIS_URL="r:1"
    )
    assert (settings.server.http, settings.store) == (Address("127.0.0.1", 2), "memory://")


def test_what_is_without_effect_or_unknown_is_told() -> None:
    notes = translate(
        {
            "REDIS_URL": "r:1",
            "USE_STATSD": "false",
            "DEBUG_PORT": "6070",
            "REDIS_POOLSIZE": "5",
            "LIMIT_HEADER": "x",
            "SHADOW_MODE": "false",
            "STATSD_HOST": "",
            "REDIS_SERVICE_HOST": "10.0.0.1",
            "REDIS_PORT": "tcp://10.0.0.1:6379",
            "REDIS_PORT_6379_TCP_ADDR": "10.0.0.1",
            "PATH": "/bin",
            "GRPC_DEFAULT_SSL_ROOTS_FILE_PATH": "/etc/ssl/certs.pem",
            "GRPC_GO_LOG_SEVERITY_LEVEL": "info",
            "GRPC_MAX_CONECTION_AGE": "1h",
        }
    ).notes
    assert notes == [
        "DEBUG_PORT is without effect: metrics and health are on PORT",
        "GRPC_MAX_CONECTION_AGE is unknown: envoyproxy/ratelimit has no such variable",
        "LIMIT_HEADER is unknown: envoyproxy/ratelimit has no such variable",
        "REDIS_POOLSIZE is unknown: envoyproxy/ratelimit has no such variable",
        "USE_STATSD is without effect: metrics are at /metrics on PORT, for Prometheus",
    ]


@pytest.mark.parametrize(
    ("name", "value", "message"),
    [
        ("SHADOW_MODE", "true", "SHADOW_MODE: Crestgate would deny what this lets pass"),
        ("GRPC_UDS", "/run/x.sock", "GRPC_UDS: Crestgate listens for gRPC on TCP only"),
        ("GRPC_CLIENT_TLS_SAN", "a", "GRPC_CLIENT_TLS_SAN: every certificate of GRPC_CLIENT_TLS_CACERT is accepted"),
        ("BACKEND_TYPE", "memcache", "BACKEND_TYPE: 'memcache' is not supported"),
        ("CONFIG_TYPE", "HTTP", "CONFIG_TYPE: must be FILE or GRPC_XDS_SOTW, not 'HTTP'"),
        ("LOG_LEVEL", "loud", "LOG_LEVEL: must be one of trace, debug"),
        ("LOG_FORMAT", "xml", "LOG_FORMAT: must be text or json, not 'xml'"),
        ("TRACING_ENABLED", "yes", "TRACING_ENABLED: must be true or false, not 'yes'"),
    ],
)
def test_what_cannot_be_stops_the_start(name: str, value: str, message: str) -> None:
    (problem,) = problems(**{name: value})
    assert problem.startswith(message), problem


def test_all_problems_are_reported_together() -> None:
    found = problems(REDIS_URL="r:1", REDIS_TIMEOUT="5", REDIS_TYPE="x", QUOTA_MODE="1")
    assert [problem.partition(":")[0] for problem in found] == ["QUOTA_MODE", "REDIS_TIMEOUT", "REDIS_TYPE"]
