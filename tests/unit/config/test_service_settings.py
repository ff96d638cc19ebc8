"""Settings of the service, in a file and in the environment, and their defaults."""

from __future__ import annotations

import dataclasses
from datetime import date, timedelta
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from crestgate import Limit
from crestgate.config.deprecations import Deprecation
from crestgate.config.environment import NESTED_FIELDS
from crestgate.config.envoy import Envoy
from crestgate.config.observability import Logs, Metrics, Tracing, Traffic
from crestgate.config.section import field_names
from crestgate.config.server import Address, ServerLimits, ServerSettings, Tls
from crestgate.config.settings import Settings, load_settings
from crestgate.envoy.xds.settings import Xds, XdsTls
from crestgate.errors import ValidationError
from crestgate.http.client_address import TrustedProxies
from crestgate.http.header_options import HeaderStyle

EVERYTHING = """\
server:
  http: 0.0.0.0:80
  grpc: "[::1]:0"
  resp: 127.0.0.1:6380
  workers: 4
  trusted_proxies: [10.0.0.0/8, "::ffff:192.0.2.0/120", unix, 2001:DB8::1]
  checks: Key
  admin_from: 10.1.0.0/16
  allowed_hosts: [Gate.Example.com., "*.example.org", "[::1]", 192.0.2.1]
  allowed_origins: HTTPS://App.example.com:443
  limits:
    reads: 500/minute
    writes: 50 per minute burst 10
    checks: 1000/second using gcra
    failed_logins: 5/hour
  insecure: true
  shutdown_seconds: 2.5
  ready_without_store: false
  store_wait_seconds: 60
headers: {ratelimit: false, x_ratelimit: false, retry_after: false, reset: epoch}
metrics: {prefix: throttlex, tokens_remaining: true}
logs: {level: DEBUG, format: text, keys: plain, requests: all}
tracing: {enabled: true}
traffic: {record: false, max_requests: 500}
pressure: {webhook: "https://hooks.example.org/hunter2"}
deprecated:
  - {path: /ratelimiter/*, since: 2026-01-31, sunset: 2026-07-31, link: "https://example.org/moving"}
  - {path: "*", since: 2024-08-31, sunset: 2025-02-28}
"""


def loaded(text: str, folder: Path, environ: dict[str, str] | None = None) -> Settings:
    path = folder / "crestgate.yaml"
    path.write_text(text)
    return load_settings(str(path), environ or {})


def messages_for(environ: dict[str, str]) -> list[str]:
    with pytest.raises(ValidationError) as raised:
        load_settings(None, environ)
    return [str(problem) for problem in raised.value.problems]


def test_service_defaults() -> None:
    settings = load_settings(None, {})
    assert settings.server == ServerSettings(
        http=Address("127.0.0.1", 8080),
        grpc=Address("127.0.0.1", 8081),
        resp=None,
        workers=1,
        tls=None,
        trusted_proxies=(),
        checks=None,
        admin_from=(),
        allowed_hosts=(),
        allowed_origins=(),
        limits=ServerLimits(
            reads=Limit.parse("1000/minute using sliding_window_log"),
            writes=Limit.parse("100/minute using sliding_window_log"),
            checks=Limit.parse("100000/second using sliding_window_counter"),
            failed_logins=Limit.parse("10/minute using sliding_window_log"),
        ),
        insecure=False,
        shutdown_seconds=10.0,
        ready_without_store=None,
        store_wait_seconds=0.0,
    )
    assert settings.headers == HeaderStyle(ratelimit=True, x_ratelimit=True, retry_after=True, reset="seconds")
    assert settings.metrics == Metrics(prefix="crestgate", tokens_remaining=False)
    assert settings.logs == Logs(level="info", format=None, keys="hashed", requests="admin")
    assert settings.tracing == Tracing(enabled=False)
    assert settings.traffic == Traffic(record=True, max_requests=20_000)
    assert (settings.webhook, settings.deprecated) == (None, ())


def test_everything(tmp_path: Path) -> None:
    settings = loaded(EVERYTHING, tmp_path)
    assert settings.server == ServerSettings(
        http=Address("0.0.0.0", 80),
        grpc=Address("::1", 0),
        resp=Address("127.0.0.1", 6380),
        workers=4,
        trusted_proxies=("10.0.0.0/8", "192.0.2.0/24", "unix", "2001:db8::1/128"),
        checks="key",
        admin_from=("10.1.0.0/16",),
        allowed_hosts=("gate.example.com", "*.example.org", "::1", "192.0.2.1"),
        allowed_origins=("https://app.example.com",),
        limits=ServerLimits(
            Limit(500, 60, algorithm="sliding_window_log"),
            Limit(50, 60, burst=10),
            Limit(1000, 1, algorithm="gcra"),
            Limit(5, 3600, algorithm="sliding_window_log"),
        ),
        insecure=True,
        shutdown_seconds=2.5,
        ready_without_store=False,
        store_wait_seconds=60.0,
    )
    assert settings.headers == HeaderStyle(False, False, False, "epoch")
    assert settings.metrics == Metrics("throttlex", True)
    assert settings.logs == Logs("debug", "text", "plain", "all")
    assert settings.tracing == Tracing(True)
    assert settings.traffic == Traffic(record=False, max_requests=500)
    assert settings.webhook == "https://hooks.example.org/hunter2"
    assert settings.deprecated == (
        Deprecation("/ratelimiter/*", date(2026, 1, 31), date(2026, 7, 31), "https://example.org/moving"),
        Deprecation("*", date(2024, 8, 31), date(2025, 2, 28)),
    )
    assert "hunter2" not in repr(settings)


def test_empty_sections(tmp_path: Path) -> None:
    text = "server:\nheaders: {}\nmetrics:\nlogs: {}\ntracing:\npressure: {webhook: }\ndeprecated: []\n"
    assert loaded(text, tmp_path) == load_settings(None, {})
    assert loaded("server: {tls: , limits: {reads: }, trusted_proxies: []}", tmp_path) == load_settings(None, {})


def test_number_of_proxies(tmp_path: Path) -> None:
    assert loaded("server: {trusted_proxies: 2}", tmp_path).server.trusted_proxies == 2


@pytest.mark.parametrize("written", ["2", "[10.0.0.0/8, unix]", "10.0.0.1"])
def test_trusted_proxies(written: str) -> None:
    proxies = load_settings(None, {"CRESTGATE_SERVER__TRUSTED_PROXIES": written}).server.trusted_proxies
    assert TrustedProxies(proxies).trusts("10.0.0.1")


ENVIRONMENT = {
    "CRESTGATE_SERVER__HTTP": "0.0.0.0:80",
    "CRESTGATE_SERVER__GRPC": "[::1]:0",
    "CRESTGATE_SERVER__RESP": "127.0.0.1:6380",
    "CRESTGATE_SERVER__WORKERS": "4",
    "CRESTGATE_SERVER__TRUSTED_PROXIES": '[10.0.0.0/8, "::ffff:192.0.2.0/120", unix, "2001:DB8::1"]',
    "CRESTGATE_SERVER__CHECKS": "Key",
    "CRESTGATE_SERVER__ADMIN_FROM": "10.1.0.0/16",
    "CRESTGATE_SERVER__ALLOWED_HOSTS": '[Gate.Example.com., "*.example.org", "[::1]", 192.0.2.1]',
    "CRESTGATE_SERVER__ALLOWED_ORIGINS": "https://app.example.com",
    "CRESTGATE_SERVER__LIMITS__READS": "500/minute",
    "CRESTGATE_SERVER__LIMITS__WRITES": "50 per minute burst 10",
    "CRESTGATE_SERVER__LIMITS__CHECKS": "1000/second using gcra",
    "CRESTGATE_SERVER__LIMITS__FAILED_LOGINS": "5/hour",
    "CRESTGATE_SERVER__INSECURE": "true",
    "CRESTGATE_SERVER__SHUTDOWN_SECONDS": "2.5",
    "CRESTGATE_SERVER__READY_WITHOUT_STORE": "false",
    "CRESTGATE_SERVER__STORE_WAIT_SECONDS": "60",
    "CRESTGATE_HEADERS__RATELIMIT": "false",
    "CRESTGATE_HEADERS__X_RATELIMIT": "false",
    "CRESTGATE_HEADERS__RETRY_AFTER": "false",
    "CRESTGATE_HEADERS__RESET": "epoch",
    "CRESTGATE_METRICS__PREFIX": "throttlex",
    "CRESTGATE_METRICS__TOKENS_REMAINING": "true",
    "CRESTGATE_LOGS__LEVEL": "DEBUG",
    "CRESTGATE_LOGS__FORMAT": "text",
    "CRESTGATE_LOGS__KEYS": "plain",
    "CRESTGATE_LOGS__REQUESTS": "all",
    "CRESTGATE_TRACING__ENABLED": "true",
    "CRESTGATE_TRAFFIC__RECORD": "false",
    "CRESTGATE_TRAFFIC__MAX_REQUESTS": "500",
    "CRESTGATE_PRESSURE__WEBHOOK": "https://hooks.example.org/hunter2",
    "CRESTGATE_DEPRECATED": "[{path: /ratelimiter/*, since: 2026-01-31, sunset: 2026-07-31, "
    "link: 'https://example.org/moving'}, {path: '*', since: 2024-08-31, sunset: 2025-02-28}]",
}


def test_everything_in_the_environment(tmp_path: Path) -> None:
    assert load_settings(None, ENVIRONMENT) == loaded(EVERYTHING, tmp_path)


def test_each_variable_changes_its_own_field_alone(tmp_path: Path) -> None:
    before = loaded(EVERYTHING, tmp_path)
    after = loaded(
        EVERYTHING, tmp_path, {"CRESTGATE_SERVER__LIMITS__READS": "7/minute", "CRESTGATE_LOGS__KEYS": "hashed"}
    )
    limits = dataclasses.replace(before.server.limits, reads=Limit(7, 60, algorithm="sliding_window_log"))
    server = dataclasses.replace(before.server, limits=limits)
    assert after == dataclasses.replace(before, server=server, logs=dataclasses.replace(before.logs, keys="hashed"))


def test_every_field_of_a_section_has_a_variable() -> None:
    sections = {
        ("server",): ServerSettings,
        ("server", "tls"): Tls,
        ("server", "limits"): ServerLimits,
        ("headers",): HeaderStyle,
        ("metrics",): Metrics,
        ("logs",): Logs,
        ("tracing",): Tracing,
        ("traffic",): Traffic,
        ("envoy",): Envoy,
        ("envoy", "xds"): Xds,
        ("envoy", "xds", "tls"): XdsTls,
    }
    names = {path: field_names(section) for path, section in sections.items()}
    names["pressure",] = ("webhook",)
    names["migrate",] = ("from", "to", "percent", "rules", "endpoints")
    assert {path: inside for path, inside in NESTED_FIELDS.items() if path != ("default_policy",)} == names
    leaves = {"__".join(("CRESTGATE", *path, name)).replace("__", "_", 1) for path in names for name in names[path]}
    leaves = {leaf.upper() for leaf in leaves} - {
        "CRESTGATE_SERVER__TLS",
        "CRESTGATE_SERVER__LIMITS",
        "CRESTGATE_ENVOY__XDS",
        "CRESTGATE_ENVOY__XDS__TLS",
    }
    variables = {*ENVIRONMENT} - {"CRESTGATE_DEPRECATED"}
    tls = {f"CRESTGATE_SERVER__TLS__{name}" for name in ("CERTIFICATE", "KEY", "GRPC_CLIENT_CA")}
    envoy = {leaf for leaf in leaves if leaf.startswith("CRESTGATE_ENVOY__")}
    migrate = {f"CRESTGATE_MIGRATE__{name.upper()}" for name in names["migrate",]}  # see test_store_settings.py
    assert leaves == variables | tls | envoy | migrate  # these name files that are read: see test_envoy_settings.py


VARIABLES = [
    ("SERVER__WORKER", "4", "unknown variable: did you mean CRESTGATE_SERVER__WORKERS?"),
    ("SERVER__TLS", "x", "sets a mapping: set its fields, such as CRESTGATE_SERVER__TLS__CERTIFICATE"),
    ("SERVER__TLS__CERT", "x", "unknown variable: did you mean CRESTGATE_SERVER__TLS__CERTIFICATE?"),
    ("SERVER__HTTP__PORT", "80", "unknown variable: did you mean CRESTGATE_SERVER__HTTP?"),
    ("SERVER__LIMITS__READS__X", "5", "unknown variable: did you mean CRESTGATE_SERVER__LIMITS__READS?"),
    ("LOGS", "debug", "sets a mapping: set its fields, such as CRESTGATE_LOGS__LEVEL"),
    ("PRESSURE", "x", "sets a mapping: set its fields, such as CRESTGATE_PRESSURE__WEBHOOK"),
    (
        "DEPRECATED__0__PATH",
        "/x",
        "sets a part of a list: set the whole list, as CRESTGATE_DEPRECATED=[…], or write it in a file",
    ),
    ("SERVER__WORKERS", "many", "server.workers: must be a whole number from 1 to 512, not 'many'"),
    ("SERVER__INSECURE", "1", "server.insecure: must be true or false, not 1"),
    ("LOGS__LEVEL", "true", "logs.level: must be one of debug, info, warning, error, not 'true'"),
    ("SERVER__TLS__KEY", "none.key", "server.tls.certificate: is missing: write the path of a file in PEM format"),
    (
        "PRESSURE__WEBHOOK",
        "[hunter2]",
        "pressure.webhook: is not an HTTP URL: write one such as https://example.org/pressure",
    ),
]


@pytest.mark.parametrize(("name", "value", "message"), VARIABLES, ids=[name for name, *_ in VARIABLES])
def test_message_about_a_variable(name: str, value: str, message: str) -> None:
    messages = messages_for({f"CRESTGATE_{name}": value})
    assert any(line.endswith(message) for line in messages), messages


def test_all_errors_are_reported_together(tmp_path: Path) -> None:
    text = """\
server: {workers: 0, checks: maybe, limits: {reads: many, writes: 0/s}, admin_from: [x, 10.0.0.1/8]}
headers: {reset: never}
metrics: {prefix: "-"}
logs: {level: loud, format: xml}
tracing: {enabled: maybe}
pressure: {webhook: nowhere}
deprecated: [{path: x, since: now, sunset: soon}, {}]
"""
    with pytest.raises(ValidationError) as raised:
        loaded(text, tmp_path)
    assert [(problem.field, problem.line) for problem in raised.value.problems] == [
        ("server.workers", 1),
        ("server.checks", 1),
        ("server.admin_from[0]", 1),
        ("server.admin_from[1]", 1),
        ("server.limits.reads", 1),
        ("server.limits.writes", 1),
        ("headers.reset", 2),
        ("metrics.prefix", 3),
        ("logs.level", 4),
        ("logs.format", 4),
        ("tracing.enabled", 5),
        ("pressure.webhook", 6),
        ("deprecated[0].path", 7),
        ("deprecated[0].since", 7),
        ("deprecated[0].sunset", 7),
        ("deprecated[1].path", 7),
        ("deprecated[1].since", 7),
        ("deprecated[1].sunset", 7),
    ]


URLS = {
    "https://example.org": True,
    "http://user:secret@[::1]:8080/x?y=z": True,
    "HTTPS://EXAMPLE.ORG/": True,
    "ftp://example.org": False,
    "https:///path": False,
    "https://": False,
    "//example.org": False,
    "https://example.org:0/": False,
    "https://example.org:99999/": False,
    "https://exa mple.org/": False,
    "https://[::1/": False,
    "https://example.org/ü": False,
}


@pytest.mark.parametrize("url", URLS)
def test_webhook(url: str) -> None:
    environ = {"CRESTGATE_PRESSURE__WEBHOOK": url}
    if URLS[url]:
        assert load_settings(None, environ).webhook == url
    else:
        assert len(messages_for(environ)) == 1


@given(st.dates(date(2000, 1, 1), date(2100, 1, 1)), st.integers(150, 200))
def test_sunset_is_at_least_six_calendar_months_away(since: date, days: int) -> None:
    sunset = since + timedelta(days=days)
    environ = {"CRESTGATE_DEPRECATED": f"[{{path: /x, since: {since}, sunset: {sunset}}}]"}
    months = (sunset.year - since.year) * 12 + sunset.month - since.month
    last_of_month = (sunset + timedelta(days=1)).day == 1
    if months > 6 or (months == 6 and (sunset.day >= since.day or last_of_month)):
        assert load_settings(None, environ).deprecated == (Deprecation("/x", since, sunset),)
    else:
        assert "deprecated[0].sunset: is too soon" in messages_for(environ)[0]
