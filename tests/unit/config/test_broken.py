"""Exact error messages for invalid files.

Every file in `broken/` has one error; `broken/expected.txt` has its message. A message names the file, the
line, the field (if there is one), what is wrong, and what to write.
"""

from __future__ import annotations

import re
from pathlib import Path

import pytest
import yaml

from crestgate.config.settings import load_settings
from crestgate.errors import ValidationError

BROKEN = Path(__file__).parent / "broken"
EXPECTED = dict(
    re.findall(
        r"^== (\S+)\n(.*?)\n(?=\n== |\Z)", (BROKEN / "expected.txt").read_text("utf-8"), re.DOTALL | re.MULTILINE
    )
)
FILES = sorted(path.name for path in BROKEN.glob("*.yaml"))


@pytest.mark.parametrize("parser", ["C", "Python"])
@pytest.mark.parametrize("name", FILES)
def test_message(name: str, parser: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(BROKEN)
    if parser == "Python":  # PyYAML's fallback when built without its C library
        monkeypatch.delattr(yaml, "CSafeLoader")
    with pytest.raises(ValidationError) as raised:
        load_settings(name, {})
    assert str(raised.value) == EXPECTED[name]
    (problem,) = raised.value.problems
    assert problem.file is not None
    assert problem.line is not None
    assert "hunter2" not in str(raised.value)


def test_every_expected_message_has_a_file() -> None:
    assert sorted(EXPECTED) == FILES


ENVIRONMENTS = [
    ({"CRESTGATE_STOR": "memory://"}, "CRESTGATE_STOR: unknown variable: did you mean CRESTGATE_STORE?"),
    ({"CRESTGATE_SERVER__HTPP": "x"}, "CRESTGATE_SERVER__HTPP: unknown variable: did you mean CRESTGATE_SERVER__HTTP?"),
    ({"CRESTGATE_PLAN__GOLD": "5/s"}, "CRESTGATE_PLAN__GOLD: unknown variable: did you mean CRESTGATE_PLANS?"),
    (
        {"CRESTGATE_SERVER": "127.0.0.1:80"},
        "CRESTGATE_SERVER: sets a mapping: set its fields, such as CRESTGATE_SERVER__HTTP",
    ),
    ({"CRESTGATE_STORE__URL": "x"}, "CRESTGATE_STORE__URL: 'store' has no fields: set CRESTGATE_STORE"),
    (
        {"CRESTGATE_RULES__0__LIMIT": "5"},
        "CRESTGATE_RULES__0__LIMIT: sets a part of a list: set the whole list, as CRESTGATE_RULES=[…], or write "
        "it in a file",
    ),
    (
        {"CRESTGATE_PLANS__": "5/s"},
        "CRESTGATE_PLANS__: a name is missing between or after '__': write it, or remove the '__'",
    ),
    (
        {"CRESTGATE_STORE": "redis://crestgate:hunter2@localhost:port"},
        "CRESTGATE_STORE: store: store URL 'redis://crestgate:***@localhost:port': 'localhost:port' is not a server: "
        "write host, host:port or [address]:port",
    ),
    (
        {"CRESTGATE_STORE": "[redis://one, redis://two"},
        "CRESTGATE_STORE: store: the '[' is never closed: write ']' at the end",
    ),
    (
        {"CRESTGATE_MODE": "servce"},
        "CRESTGATE_MODE: mode: must be one of service, embedded, not 'servce'; did you mean 'service'?",
    ),
    (
        {"CRESTGATE_REFRESH_SECONDS": "soon"},
        "CRESTGATE_REFRESH_SECONDS: refresh_seconds: must be a number of seconds from 0.05 to 3600, not 'soon'",
    ),
    (
        {"CRESTGATE_REFRESH_SECONDS": "0.01"},
        "CRESTGATE_REFRESH_SECONDS: refresh_seconds: must be a number of seconds from 0.05 to 3600, not 0.01",
    ),
    ({"CRESTGATE_PORT": "8080"}, "CRESTGATE_PORT: unknown variable: did you mean CRESTGATE_STORE?"),
    (
        {"CRESTGATE_STORE": "[redis://\udcff]"},
        "CRESTGATE_STORE: store: contains the character U+DCFF, which YAML does not allow: remove it",
    ),
    (
        {"CRESTGATE_SERVER__HTTP": "8080"},
        "CRESTGATE_SERVER__HTTP: server.http: must be host:port or [address]:port, such as '127.0.0.1:8080', "
        "not '8080'",
    ),
    (
        {"CRESTGATE_SERVER__HTTP": "127.0.0.1:8081"},
        "CRESTGATE_SERVER__HTTP: server.http: is also the address of server.grpc: write another port than 8081",
    ),
    (
        {"CRESTGATE_RULES": "[{rule_id: all, dimension: ip, limit: many, window_seconds: 60}]"},
        "CRESTGATE_RULES: rules[0].limit: must be a whole number, 0 or more, not 'many'",
    ),
    (
        {"CRESTGATE_TIERS__ALICE": "3"},
        "CRESTGATE_TIERS__ALICE: tiers.alice: must be the name of a tier, such as premium, not 3",
    ),
    (
        {"CRESTGATE_INCLUDE": "none.yaml"},
        "CRESTGATE_INCLUDE: include: there is no file or folder 'none.yaml': create it, or correct the path",
    ),
    (
        {"CRESTGATE_DEFAULT_POLICY__REFILL_RATE": "0"},
        "CRESTGATE_DEFAULT_POLICY__REFILL_RATE: default_policy.refillRate: must be a whole number, 1 or more, not 0",
    ),
]


PLACES = [
    *("MODE", "ON_STORE_ERROR", "SERVER__HTTP", "DEFAULT_CLIENT_LIMITS", "PLANS__GOLD", "STRATEGIES__IP__LIMIT"),
    *("POLICY_KEY", "REFRESH_SECONDS", "DEFAULT_POLICY__TYPE", "DEFAULT_POLICY__CAPACITY", "RULES_STORE", "STORE"),
    *("SERVER__WORKERS", "SERVER__TLS__CERTIFICATE", "SERVER__TLS__KEY", "SERVER__TRUSTED_PROXIES", "SERVER__CHECKS"),
    "SERVER__TLS__GRPC_CLIENT_CA",
    *("SERVER__ADMIN_FROM", "SERVER__LIMITS__READS", "SERVER__INSECURE", "HEADERS__RESET", "METRICS__PREFIX"),
    *("LOGS__LEVEL", "TRACING__ENABLED", "PRESSURE__WEBHOOK", "DEPRECATED"),
]
SECRETS = [
    *("redis://user:hunter2@host:x", "redis://user:hunt er2@host:x", "redis:user:hunter2@host", "user:hunter2@host"),
    *("reddis://host?password=hunter2", "[redis://user:hunter2@host:x]", "'redis://user:hunter2@host:x'"),
]


@pytest.mark.parametrize("name", PLACES)
@pytest.mark.parametrize("secret", SECRETS)
def test_no_message_shows_a_password(name: str, secret: str) -> None:
    with pytest.raises(ValidationError) as raised:
        load_settings(None, {f"CRESTGATE_{name}": secret})
    assert "er2" not in str(raised.value)


@pytest.mark.parametrize(("environ", "message"), ENVIRONMENTS, ids=[message[:60] for _, message in ENVIRONMENTS])
def test_message_about_a_variable(
    environ: dict[str, str], message: str, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.chdir(tmp_path)
    with pytest.raises(ValidationError) as raised:
        load_settings(None, environ)
    assert str(raised.value) == message
