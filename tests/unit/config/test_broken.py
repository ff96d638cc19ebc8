"""One mistake in a file, one message: what an operator reads, word by word.

Every file in `broken/` has one mistake; `broken/expected.txt` has what is said about it. A message names the file, the
line, the field (where there is one: what is no YAML has no fields), what is wrong, and what to write.
"""

from __future__ import annotations

import re
from pathlib import Path

import pytest
import yaml

from headgate.config.settings import load_settings
from headgate.errors import Invalid

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
    if parser == "Python":  # what PyYAML has where it was built without its C library
        monkeypatch.delattr(yaml, "CSafeLoader")
    with pytest.raises(Invalid) as raised:
        load_settings(name, {})
    assert str(raised.value) == EXPECTED[name]
    (problem,) = raised.value.problems
    assert problem.file is not None
    assert problem.line is not None
    assert "hunter2" not in str(raised.value)


def test_every_message_is_of_a_file() -> None:
    assert sorted(EXPECTED) == FILES


ENVIRONMENTS = [
    ({"HEADGATE_STOR": "memory://"}, "HEADGATE_STOR: unknown variable: did you mean HEADGATE_STORE?"),
    ({"HEADGATE_SERVER__HTPP": "x"}, "HEADGATE_SERVER__HTPP: unknown variable: did you mean HEADGATE_SERVER__HTTP?"),
    ({"HEADGATE_PLAN__GOLD": "5/s"}, "HEADGATE_PLAN__GOLD: unknown variable: did you mean HEADGATE_PLANS?"),
    (
        {"HEADGATE_SERVER": "127.0.0.1:80"},
        "HEADGATE_SERVER: sets a mapping: set the fields inside of it, such as HEADGATE_SERVER__HTTP",
    ),
    ({"HEADGATE_STORE__URL": "x"}, "HEADGATE_STORE__URL: 'store' has no fields inside: set HEADGATE_STORE"),
    (
        {"HEADGATE_RULES__0__LIMIT": "5"},
        "HEADGATE_RULES__0__LIMIT: sets a part of a list: set all of it, as HEADGATE_RULES=[…], or write it in a file",
    ),
    (
        {"HEADGATE_PLANS__": "5/s"},
        "HEADGATE_PLANS__: a name is missing between or after '__': write it, or take the '__' away",
    ),
    (
        {"HEADGATE_STORE": "redis://headgate:hunter2@localhost:port"},
        "HEADGATE_STORE: store: store URL 'redis://headgate:***@localhost:port': 'localhost:port' is not a server: "
        "write host, host:port or [address]:port",
    ),
    (
        {"HEADGATE_STORE": "[redis://one, redis://two"},
        "HEADGATE_STORE: store: the '[' that begins here is never closed: write ']' at the end",
    ),
    (
        {"HEADGATE_MODE": "servce"},
        "HEADGATE_MODE: mode: must be one of service, embedded, not 'servce'; did you mean 'service'?",
    ),
    (
        {"HEADGATE_REFRESH_SECONDS": "soon"},
        "HEADGATE_REFRESH_SECONDS: refresh_seconds: must be a number of seconds from 0.05 to 3600, not 'soon'",
    ),
    (
        {"HEADGATE_REFRESH_SECONDS": "0.01"},
        "HEADGATE_REFRESH_SECONDS: refresh_seconds: must be a number of seconds from 0.05 to 3600, not 0.01",
    ),
    ({"HEADGATE_PORT": "8080"}, "HEADGATE_PORT: unknown variable: did you mean HEADGATE_STORE?"),
    (
        {"HEADGATE_STORE": "[redis://\udcff]"},
        "HEADGATE_STORE: store: holds the character U+DCFF, which no YAML may have: take it away",
    ),
    (
        {"HEADGATE_SERVER__HTTP": "8080"},
        "HEADGATE_SERVER__HTTP: server.http: must be host:port or [address]:port, such as '127.0.0.1:8080', not '8080'",
    ),
    (
        {"HEADGATE_SERVER__HTTP": "127.0.0.1:8081"},
        "HEADGATE_SERVER__HTTP: server.http: is the address of server.grpc too: write another port than 8081",
    ),
    (
        {"HEADGATE_RULES": "[{rule_id: all, dimension: ip, limit: many, window_seconds: 60}]"},
        "HEADGATE_RULES: rules[0].limit: must be a whole number, 0 or more, not 'many'",
    ),
    (
        {"HEADGATE_TIERS__ALICE": "3"},
        "HEADGATE_TIERS__ALICE: tiers.alice: must be the name of a tier, such as premium, not 3",
    ),
    (
        {"HEADGATE_INCLUDE": "none.yaml"},
        "HEADGATE_INCLUDE: include: there is no file or folder 'none.yaml': make it, or mend the path",
    ),
    (
        {"HEADGATE_DEFAULT_POLICY__REFILL_RATE": "0"},
        "HEADGATE_DEFAULT_POLICY__REFILL_RATE: default_policy.refillRate: must be a whole number, 1 or more, not 0",
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
    with pytest.raises(Invalid) as raised:
        load_settings(None, {f"HEADGATE_{name}": secret})
    assert "er2" not in str(raised.value)


@pytest.mark.parametrize(("environ", "message"), ENVIRONMENTS, ids=[message[:60] for _, message in ENVIRONMENTS])
def test_message_about_a_variable(
    environ: dict[str, str], message: str, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.chdir(tmp_path)
    with pytest.raises(Invalid) as raised:
        load_settings(None, environ)
    assert str(raised.value) == message
