"""`crestgate keys`: keys in the rule database of a service."""

from __future__ import annotations

import json
import re
import stat
import time
from contextlib import closing
from pathlib import Path

import pytest

from crestgate.cli.locations import key_store
from crestgate.config.settings import Settings
from crestgate.rules.port import Actor, AuditQuery
from crestgate.rules.storage.factory import open_repository
from crestgate.rules.timestamps import format_timestamp
from crestgate.service.auth.keys import ApiKeys, create_key
from crestgate.service.preflight import complete_settings
from servers.process import GivenServer
from servers.redis import RedisServer
from unit.cli.conftest import URL, Run
from unit.cli.fake_service import TOKEN as SERVICE_TOKEN
from unit.cli.fake_service import fake_service

TOKEN = re.compile(r"cg_([0-9a-f]{12})_[\w-]{43}")
DAY_US = 86_400_000_000


def find_key(url: str, token: str) -> tuple[str, str] | None:
    """The name and scope that a service finds for a token."""
    with closing(open_repository(url)) as repository:
        bodies = {record.id: record.body for record in repository.list("key")}
    caller = ApiKeys(lambda: bodies).find(token, time.time_ns() // 1000)
    return None if caller is None else (caller.name, caller.scope)


def test_create_list_and_revoke_a_key(run: Run, folder: Path) -> None:
    code, out, err = run("keys", "create", "ci", "--scope", "WRITE", "--rules-store", URL)
    token = TOKEN.fullmatch(out.strip())
    assert (code, token is not None) == (0, True)
    assert token is not None
    assert err == (
        f"created SQLite file {folder}/rules.db\nkey {token[1]} for 'ci', scope write; its token is shown this once:\n"
    )
    assert find_key(URL, token[0]) == ("ci", "write")
    code, out, err = run("keys", "create", "grafana", "--rules-store", URL)
    assert (code, err.startswith("key ")) == (0, True), "the database is created once"
    assert find_key(URL, out.strip()) == ("grafana", "check")
    code, out, err = run("keys", "list", "--rules-store", URL)
    assert (code, err) == (0, "")
    assert re.fullmatch(
        "ID +NAME +SCOPE +CREATED +EXPIRES\n"
        rf"{token[1]}  ci       write  [\d:.TZ-]+ +-\n"
        r"[0-9a-f]{12}  grafana  check  [\d:.TZ-]+ +-\n",
        out,
    )
    assert run("keys", "revoke", token[1], "--rules-store", URL) == (0, f"revoked  key {token[1]}\n", "")
    assert find_key(URL, token[0]) is None
    assert run("keys", "revoke", token[1], "--rules-store", URL) == (
        2,
        "",
        f"crestgate: there is no key '{token[1]}'\n",
    )


def test_audit_log_has_the_actor_and_no_secret(run: Run) -> None:
    token = run("keys", "create", "ci", "--rules-store", URL).out.strip()
    match = TOKEN.fullmatch(token)
    assert match is not None
    run("keys", "revoke", match[1], "--rules-store", URL)
    with closing(open_repository(URL)) as repository:
        revoked, created = repository.audit(AuditQuery())
    assert (created.action, revoked.action) == ("create", "delete")
    assert created.subject == revoked.subject == f"key:{match[1]}"
    assert created.actor.startswith("cli:")
    assert created.after == revoked.before == {"name": "ci", "scope": "check", "expires_us": None}


def test_default_database_is_that_of_the_service(run: Run, folder: Path) -> None:
    assert key_store(None, None) == complete_settings(Settings()).rules_store
    (folder / ".crestgate").rmdir()
    code, out, err = run("keys", "list")
    assert (code, out) == (2, "")
    assert err == (
        f"crestgate: SQLite file {folder}/.crestgate/rules.db: there is no such file, so there are no keys yet: name "
        "the database of the service with --rules-store URL, or create a key with `crestgate keys create NAME`\n"
    )
    assert list(folder.iterdir()) == [], "listing creates nothing"
    token = run("keys", "create", "first").out.strip()
    assert find_key(f"sqlite:///{folder}/.crestgate/rules.db", token) == ("first", "check")
    assert stat.S_IMODE((folder / ".crestgate").stat().st_mode) == 0o700
    assert "first" in run("keys", "list").out


def test_configured_database(run: Run, folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (folder / "crestgate.yaml").write_text("rules_store: sqlite:///mine.db?timeout_ms=30000\n")
    assert run("keys", "create", "one").code == 0
    assert (folder / "mine.db").exists()
    monkeypatch.setenv("CRESTGATE_RULES_STORE", URL)
    assert run("keys", "create", "two").code == 0
    assert [key["name"] for key in json.loads(run("keys", "list", "--json").out)] == ["two"]
    assert [key["name"] for key in json.loads(run("keys", "list", "--json", "--rules-store", "sqlite:///mine.db").out)]


@pytest.mark.parametrize("command", ["create ci", "list", "revoke 0123456789ab", "rotate 0123456789ab"])
@pytest.mark.parametrize("by", ["option", "variable"])
def test_url_names_a_service_and_creates_nothing_here(
    run: Run, folder: Path, monkeypatch: pytest.MonkeyPatch, command: str, by: str
) -> None:
    options = ("--url", "http://127.0.0.1:1") if by == "option" else ()
    if by == "variable":
        monkeypatch.setenv("CRESTGATE_URL", "http://127.0.0.1:1")
    before = set(folder.rglob("*"))
    code, out, err = run("keys", *command.split(), *options)
    assert (code, out) == (2, "")
    assert "http://127.0.0.1:1 cannot be reached" in err
    assert set(folder.rglob("*")) == before


def test_local_options_override_the_variable(run: Run, folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CRESTGATE_URL", "http://127.0.0.1:1")
    assert run("keys", "create", "ci", "--rules-store", URL).code == 0
    (folder / "mine.yaml").write_text(f"rules_store: {URL}\n")
    assert "ci" in run("keys", "list", "--config", "mine.yaml").out
    done = run("keys", "list", "--rules-store", URL, "--url", "http://127.0.0.1:1")
    assert (done.code, "leave --rules-store out" in done.err) == (2, True)


ENTRY = {
    "key_id": "0123456789ab",
    "name": "ci",
    "scope": "check",
    "created_at": "2026-01-01T00:00:00Z",
    "expires_at": None,
}
OLD = {**ENTRY, "key_id": "ba9876543210", "expires_at": "2026-01-01T01:00:00Z"}


def test_keys_of_a_service(run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CRESTGATE_ADMIN_KEY", SERVICE_TOKEN)
    with fake_service() as service:
        monkeypatch.setenv("CRESTGATE_URL", service.url)
        service.responses = [
            (201, {**ENTRY, "token": "cg_new"}),
            (200, {"keys": [ENTRY], "next": "0123456789ab"}),
            (200, {"keys": [OLD], "next": None}),
            (201, {**ENTRY, "token": "cg_newer", "replaces": OLD}),
            (204, b""),
        ]
        made = run("keys", "create", "ci", "--expires", "2999-01-31")
        assert (made.code, made.out) == (0, "cg_new\n")
        assert made.err == "key 0123456789ab for 'ci', scope check; its token is shown this once:\n"
        listed = run("keys", "list")
        assert listed.out.count("\n") == 3
        assert "2026-01-01T01:00:00Z (expired)" in listed.out
        rotated = json.loads(run("keys", "rotate", "ci/1", "--grace", "0s", "--json").out)
        assert (rotated["token"], rotated["replaces"]) == ("cg_newer", OLD)
        token = f"cg_0123456789ab_{'x' * 43}"
        revoked = run("keys", "revoke", token, "--json")
        assert json.loads(revoked.out) == {"key_id": "0123456789ab", "revoked": True}
        assert service.requests == [
            ("POST", "/api/v1/keys", {"name": "ci", "scope": "check", "expires_at": "2999-01-31T00:00:00Z"}),
            ("GET", "/api/v1/keys?limit=1000&after=", None),
            ("GET", "/api/v1/keys?limit=1000&after=0123456789ab", None),
            ("POST", "/api/v1/keys/ci%2F1/rotate", {"grace_seconds": 0, "expires_at": None}),
            ("DELETE", "/api/v1/keys/0123456789ab", None),
        ]


@pytest.mark.parametrize("answer", [{}, {"keys": [{}]}, {"keys": 1}, {**ENTRY, "created_at": 5, "keys": [ENTRY, 1]}])
def test_response_of_something_else(run: Run, monkeypatch: pytest.MonkeyPatch, answer: object) -> None:
    monkeypatch.setenv("CRESTGATE_ADMIN_KEY", SERVICE_TOKEN)
    with fake_service() as service:
        for command in ("list", "create ci", "rotate ci"):
            service.responses = [(200, answer)]
            done = run("keys", *command.split(), "--url", service.url)
            assert (done.code, done.out) == (2, "")
            assert "is this the address of a Crestgate service?" in done.err


def test_rotation_of_an_expired_key_needs_an_expiry(run: Run) -> None:
    with closing(open_repository(URL)) as repository:
        key, _ = create_key(repository, Actor("alice"), "ci", "check", time.time_ns() // 1000 - 1)
    done = run("keys", "rotate", key.key_id, "--rules-store", URL)
    assert (done.code, done.out) == (2, "")
    assert f"key '{key.key_id}' expired at {format_timestamp(key.expires_us)}" in done.err
    done = run("keys", "rotate", key.key_id, "--expires", "90d", "--rules-store", URL)
    assert done.code == 0
    assert find_key(URL, done.out.strip()) == ("ci", "check")


def test_rotation_without_grace_ends_the_old_token_now(run: Run) -> None:
    made = json.loads(run("keys", "create", "ci", "--json", "--rules-store", URL).out)
    done = run("keys", "rotate", made["key_id"], "--grace", "0s", "--rules-store", URL)
    assert (done.code, "which no longer works; the new token" in done.err) == (0, True)
    assert find_key(URL, made["token"]) is None
    assert find_key(URL, done.out.strip()) == ("ci", "check")


@pytest.mark.parametrize("grace", ["soon", "5", "-1h", "400d"])
def test_invalid_grace(run: Run, grace: str) -> None:
    made = json.loads(run("keys", "create", "ci", "--json", "--rules-store", URL).out)
    done = run("keys", "rotate", made["key_id"], f"--grace={grace}", "--rules-store", URL)
    assert (done.code, done.out) == (2, "")
    assert "grace" in done.err


def test_files_cannot_store_keys(run: Run, folder: Path) -> None:
    (folder / "rules.yaml").write_text("rules: []\n")
    for command in ("create ci", "list", "revoke 0123456789ab"):
        code, out, err = run("keys", *command.split(), "--rules-store", "rules.yaml")
        assert (code, out) == (2, "")
        assert err == (
            "crestgate: keys are not stored in files such as rules.yaml: name a rule database with --rules-store URL\n"
        )


def test_json(run: Run) -> None:
    made = json.loads(run("keys", "create", "ci", "--expires", "2999-01-31", "--json", "--rules-store", URL).out)
    assert TOKEN.fullmatch(made.pop("token"))
    assert (made["name"], made["scope"], made["expires_at"]) == ("ci", "check", "2999-01-31T00:00:00Z")
    assert json.loads(run("keys", "list", "--json", "--rules-store", URL).out) == [made]


def test_no_keys(run: Run) -> None:
    made = json.loads(run("keys", "create", "ci", "--json", "--rules-store", URL).out)
    run("keys", "revoke", made["key_id"], "--rules-store", URL)
    assert run("keys", "list", "--rules-store", URL) == (0, "no keys\n", "")


@pytest.mark.parametrize(
    ("expires", "days"), [("90d", 90), ("90 days", 90), ("12h", 0.5), ("2W", 14), ("1 year", 365), ("30min", 1 / 48)]
)
def test_key_expires_after_a_duration(run: Run, expires: str, days: float) -> None:
    before = time.time_ns() // 1000
    assert run("keys", "create", "ci", "--expires", expires, "--rules-store", URL).code == 0
    after = time.time_ns() // 1000
    with closing(open_repository(URL)) as repository:
        (record,) = repository.list("key")
    assert record.expires_us == record.body["expires_us"]
    assert record.expires_us is not None
    assert before <= record.expires_us - days * DAY_US <= after


def test_key_expires_at_a_timestamp(run: Run) -> None:
    _, out, err = run("keys", "create", "ci", "--expires", "2999-06-01T14:00:00+02:00", "--rules-store", URL)
    assert "scope check until 2999-06-01T12:00:00Z; its token" in err
    assert find_key(URL, out.strip()) == ("ci", "check")
    assert "2999-06-01T12:00:00Z\n" in run("keys", "list", "--rules-store", URL).out


@pytest.mark.parametrize(
    "expires", ["soon", "90", "5 parsecs", "2999-02-31", "999999999 years", "2999-06-01T12:00", ""]
)
def test_invalid_expiry(run: Run, expires: str, folder: Path) -> None:
    code, out, err = run("keys", "create", "ci", "--expires", expires, "--rules-store", URL)
    assert (code, out) == (2, "")
    assert err.startswith(
        "crestgate: --expires is a duration such as 90d or 12h, a date such as 2030-01-31, or a timestamp"
    )
    assert list(folder.iterdir()) == [], "nothing is created"


@pytest.mark.parametrize("expires", ["0d", "2020-01-31", "2020-01-31T00:00:00Z"])
def test_expiry_in_the_past(run: Run, expires: str) -> None:
    err = f"crestgate: --expires {expires} is in the past\n"
    assert run("keys", "create", "ci", "--expires", expires, "--rules-store", URL) == (2, "", err)


def test_expired_key_is_marked(run: Run) -> None:
    with closing(open_repository(URL)) as repository:
        key, _ = create_key(repository, Actor("alice"), "ci", "check", time.time_ns() // 1000 - 1)
    assert f"{format_timestamp(key.expires_us)} (expired)\n" in run("keys", "list", "--rules-store", URL).out


def test_usage_errors(run: Run) -> None:
    assert run("keys", "create", "ci", "--scope", "admin", "--rules-store", URL).err == (
        "crestgate: --scope is one of check, read, write, not 'admin'\n"
    )
    assert "a key's name must be 1 to 100 printable characters" in run("keys", "create", " ", "--rules-store", URL).err
    assert run("keys", "create").code == 2
    assert run("keys", "revoke").code == 2


def test_revoke_by_name_suggests_the_id(run: Run) -> None:
    one, two = (json.loads(run("keys", "create", "ci", "--json", "--rules-store", URL).out) for _ in range(2))
    err = run("keys", "revoke", "ci", "--rules-store", URL).err
    assert err.startswith("crestgate: there is no key 'ci': the key with this name has the ids ")
    assert run("keys", "rotate", "ci", "--rules-store", URL).err == err
    assert one["key_id"] in err
    run("keys", "revoke", one["key_id"], "--rules-store", URL)
    assert run("keys", "revoke", "ci", "--rules-store", URL).err == (
        f"crestgate: there is no key 'ci': the key with this name has the id {two['key_id']}\n"
    )


def test_revoke_by_token_does_not_show_it(run: Run) -> None:
    made = json.loads(run("keys", "create", "ci", "--json", "--rules-store", URL).out)
    result = run("keys", "revoke", made["token"], "--rules-store", URL)
    assert result == (0, f"revoked  key {made['key_id']}\n", "")
    assert find_key(URL, made["token"]) is None
    for wrong in (("keys", "list", made["token"]), ("keys", made["token"]), (made["token"],), ("rules", made["token"])):
        code, out, err = run(*wrong)
        assert code == 2
        assert made["token"] not in out + err
        assert "cg_***" in err


def test_keys_in_redis(run: Run, redis_server: RedisServer | GivenServer, folder: Path) -> None:
    joint = "&" if "?" in redis_server.url else "?"
    url = f"{redis_server.url}{joint}timeout_ms=30000&prefix=cli-keys-{folder.name}"
    made = json.loads(run("keys", "create", "ci", "--json", "--rules-store", url).out)
    assert find_key(url, made["token"]) == ("ci", "check")
    assert run("keys", "revoke", made["key_id"], "--rules-store", url).code == 0
    assert run("keys", "list", "--rules-store", url).out == "no keys\n"
