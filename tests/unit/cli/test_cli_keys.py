"""`headgate keys`: keys in the rule database of a service, whether or not one runs."""

from __future__ import annotations

import json
import re
import stat
import time
from contextlib import closing
from pathlib import Path

import pytest

from headgate.cli.places import key_store
from headgate.config.settings import Settings
from headgate.rules.moments import moment_text
from headgate.rules.repositories.opening import open_repository
from headgate.rules.repositories.port import Actor, AuditQuery
from headgate.service.auth.keys import Keys, create_key
from headgate.service.starting import completed
from servers.process import GivenServer
from servers.redis import RedisServer
from unit.cli.conftest import URL, Run

TOKEN = re.compile(r"hg_([0-9a-f]{12})_[\w-]{43}")
DAY_US = 86_400_000_000


def found(url: str, token: str) -> tuple[str, str] | None:
    """The name and scope that a service would find for a token now."""
    with closing(open_repository(url)) as repository:
        bodies = {record.id: record.body for record in repository.list("key")}
    caller = Keys(lambda: bodies).find(token, time.time_ns() // 1000)
    return None if caller is None else (caller.name, caller.scope)


def test_a_key_is_made_listed_and_revoked(run: Run, folder: Path) -> None:
    code, out, err = run("keys", "create", "ci", "--scope", "WRITE", "--rules-store", URL)
    token = TOKEN.fullmatch(out.strip())
    assert (code, token is not None) == (0, True)
    assert token is not None
    assert err == (
        f"made SQLite file {folder}/rules.db\nkey {token[1]} for 'ci', scope write; its token is shown this once:\n"
    )
    assert found(URL, token[0]) == ("ci", "write")
    code, out, err = run("keys", "create", "grafana", "--rules-store", URL)
    assert (code, err.startswith("key ")) == (0, True), "nothing is made twice"
    assert found(URL, out.strip()) == ("grafana", "check")
    code, out, err = run("keys", "list", "--rules-store", URL)
    assert (code, err) == (0, "")
    assert re.fullmatch(
        "ID +NAME +SCOPE +CREATED +EXPIRES\n"
        rf"{token[1]}  ci       write  [\d:.TZ-]+ +-\n"
        r"[0-9a-f]{12}  grafana  check  [\d:.TZ-]+ +-\n",
        out,
    )
    assert run("keys", "revoke", token[1], "--rules-store", URL) == (0, f"revoked  key {token[1]}\n", "")
    assert found(URL, token[0]) is None
    assert run("keys", "revoke", token[1], "--rules-store", URL) == (2, "", f"headgate: there is no key '{token[1]}'\n")


def test_the_audit_log_says_who_and_no_secret(run: Run) -> None:
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


def test_the_usual_database_is_that_of_the_service(run: Run, folder: Path) -> None:
    assert key_store(None, None) == completed(Settings()).rules_store
    (folder / ".headgate").rmdir()
    code, out, err = run("keys", "list")
    assert (code, out) == (2, "")
    assert err == (
        f"headgate: SQLite file {folder}/.headgate/rules.db: there is no such file, so there are no keys yet: name the "
        "database of the service with --rules-store URL, or make a key with `headgate keys create NAME`\n"
    )
    assert list(folder.iterdir()) == [], "looking makes nothing"
    token = run("keys", "create", "first").out.strip()
    assert found(f"sqlite:///{folder}/.headgate/rules.db", token) == ("first", "check")
    assert stat.S_IMODE((folder / ".headgate").stat().st_mode) == 0o700
    assert "first" in run("keys", "list").out


def test_the_database_that_is_configured(run: Run, folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (folder / "headgate.yaml").write_text("rules_store: sqlite:///mine.db?timeout_ms=30000\n")
    assert run("keys", "create", "one").code == 0
    assert (folder / "mine.db").exists()
    monkeypatch.setenv("HEADGATE_RULES_STORE", URL)
    assert run("keys", "create", "two").code == 0
    assert [key["name"] for key in json.loads(run("keys", "list", "--json").out)] == ["two"]
    assert [key["name"] for key in json.loads(run("keys", "list", "--json", "--rules-store", "sqlite:///mine.db").out)]
    monkeypatch.setenv("HEADGATE_URL", "http://127.0.0.1:1")
    assert run("keys", "list").code == 0, "no service is asked"


@pytest.mark.parametrize("command", ["create ci", "list", "revoke 0123456789ab"])
def test_no_keys_are_made_here_for_a_service_elsewhere(
    run: Run, folder: Path, monkeypatch: pytest.MonkeyPatch, command: str
) -> None:
    monkeypatch.setenv("HEADGATE_URL", "http://127.0.0.1:1")
    before = set(folder.rglob("*"))
    assert run("keys", *command.split()) == (
        2,
        "",
        "headgate: keys are made where the service's rule database is: run this in the folder of the service, or with "
        "its --config; HEADGATE_URL is not used\n",
    )
    assert set(folder.rglob("*")) == before


@pytest.mark.parametrize("named", ["config", "variable", "database", "settings"])
def test_keys_of_the_database_that_is_here_are_made_with_a_warning(
    run: Run, folder: Path, monkeypatch: pytest.MonkeyPatch, named: str
) -> None:
    options: tuple[str, ...] = ()
    path = folder / ".headgate" / "rules.db"
    if named == "config":
        (folder / "mine.yaml").write_text("on_store_error: closed\n")
        options = ("--config", "mine.yaml")
    elif named == "variable":
        (folder / "mine.yaml").write_text("on_store_error: closed\n")
        monkeypatch.setenv("HEADGATE_CONFIG", "mine.yaml")
    elif named == "database":
        assert run("keys", "create", "first").code == 0
    else:
        path = folder / "mine.db"
        (folder / "headgate.yaml").write_text(f"rules_store: sqlite:///{path}\n")
    monkeypatch.setenv("HEADGATE_URL", "http://127.0.0.1:1")
    code, out, err = run("keys", "create", "ci", *options)
    assert code == 0, err
    assert err.startswith(f"headgate: HEADGATE_URL is not used: these are the keys in sqlite:///{path}\n")
    assert found(f"sqlite:///{path}", out.strip()) == ("ci", "check")


def test_option_that_names_the_database_is_not_warned_of(run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HEADGATE_URL", "http://127.0.0.1:1")
    code, _, err = run("keys", "create", "ci", "--rules-store", URL)
    assert (code, "HEADGATE_URL" in err) == (0, False)


def test_files_keep_no_keys(run: Run, folder: Path) -> None:
    (folder / "rules.yaml").write_text("rules: []\n")
    for command in ("create ci", "list", "revoke 0123456789ab"):
        code, out, err = run("keys", *command.split(), "--rules-store", "rules.yaml")
        assert (code, out) == (2, "")
        assert err == (
            "headgate: keys are not kept in files such as rules.yaml: name a rule database with --rules-store URL\n"
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
def test_a_key_may_expire_after_a_while(run: Run, expires: str, days: float) -> None:
    before = time.time_ns() // 1000
    assert run("keys", "create", "ci", "--expires", expires, "--rules-store", URL).code == 0
    after = time.time_ns() // 1000
    with closing(open_repository(URL)) as repository:
        (record,) = repository.list("key")
    assert record.expires_us == record.body["expires_us"]
    assert record.expires_us is not None
    assert before <= record.expires_us - days * DAY_US <= after


def test_a_key_may_expire_at_a_moment(run: Run) -> None:
    _, out, err = run("keys", "create", "ci", "--expires", "2999-06-01T14:00:00+02:00", "--rules-store", URL)
    assert "scope check until 2999-06-01T12:00:00Z; its token" in err
    assert found(URL, out.strip()) == ("ci", "check")
    assert "2999-06-01T12:00:00Z\n" in run("keys", "list", "--rules-store", URL).out


@pytest.mark.parametrize(
    "expires", ["soon", "90", "5 parsecs", "2999-02-31", "999999999 years", "2999-06-01T12:00", ""]
)
def test_a_moment_that_is_none(run: Run, expires: str, folder: Path) -> None:
    code, out, err = run("keys", "create", "ci", "--expires", expires, "--rules-store", URL)
    assert (code, out) == (2, "")
    assert err.startswith("headgate: --expires is a span such as 90d or 12h, a date such as 2030-01-31, or a moment")
    assert list(folder.iterdir()) == [], "nothing is made"


@pytest.mark.parametrize("expires", ["0d", "2020-01-31", "2020-01-31T00:00:00Z"])
def test_a_moment_that_is_over(run: Run, expires: str) -> None:
    err = f"headgate: --expires {expires} is over already: the key would open nothing\n"
    assert run("keys", "create", "ci", "--expires", expires, "--rules-store", URL) == (2, "", err)


def test_an_expired_key_is_marked(run: Run) -> None:
    with closing(open_repository(URL)) as repository:
        key, _ = create_key(repository, Actor("alice"), "ci", "check", time.time_ns() // 1000 - 1)
    assert f"{moment_text(key.expires_us)} (expired)\n" in run("keys", "list", "--rules-store", URL).out


def test_wrong_use(run: Run) -> None:
    assert run("keys", "create", "ci", "--scope", "admin", "--rules-store", URL).err == (
        "headgate: --scope is one of check, read, write, not 'admin'\n"
    )
    assert "a key's name must be 1 to 100 printable characters" in run("keys", "create", " ", "--rules-store", URL).err
    assert run("keys", "create").code == 2
    assert run("keys", "revoke").code == 2


def test_a_name_is_no_id(run: Run) -> None:
    one, two = (json.loads(run("keys", "create", "ci", "--json", "--rules-store", URL).out) for _ in range(2))
    err = run("keys", "revoke", "ci", "--rules-store", URL).err
    assert err.startswith("headgate: there is no key 'ci': the key that is called so has the ids ")
    assert one["key_id"] in err
    run("keys", "revoke", one["key_id"], "--rules-store", URL)
    assert run("keys", "revoke", "ci", "--rules-store", URL).err == (
        f"headgate: there is no key 'ci': the key that is called so has the id {two['key_id']}\n"
    )


def test_a_token_that_went_astray_is_revoked_and_not_shown(run: Run) -> None:
    made = json.loads(run("keys", "create", "ci", "--json", "--rules-store", URL).out)
    said = run("keys", "revoke", made["token"], "--rules-store", URL)
    assert said == (0, f"revoked  key {made['key_id']}\n", "")
    assert found(URL, made["token"]) is None
    for wrong in (("keys", "list", made["token"]), ("keys", made["token"]), (made["token"],), ("rules", made["token"])):
        code, out, err = run(*wrong)
        assert code == 2
        assert made["token"] not in out + err
        assert "hg_***" in err


def test_keys_in_redis(run: Run, redis_server: RedisServer | GivenServer, folder: Path) -> None:
    joint = "&" if "?" in redis_server.url else "?"
    url = f"{redis_server.url}{joint}timeout_ms=30000&prefix=cli-keys-{folder.name}"
    made = json.loads(run("keys", "create", "ci", "--json", "--rules-store", url).out)
    assert found(url, made["token"]) == ("ci", "check")
    assert run("keys", "revoke", made["key_id"], "--rules-store", url).code == 0
    assert run("keys", "list", "--rules-store", url).out == "no keys\n"
