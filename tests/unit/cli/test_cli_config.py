"""`headgate config check`."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

from servers.process import GivenServer
from servers.redis import RedisServer
from unit.cli.conftest import Run

GOOD = """\
store: [redis://user:secret@127.0.0.1:1/0, redis://user:secret@127.0.0.1:2/0]
rules_store: sqlite:///rules.db?timeout_ms=30000
on_store_error: closed
include: more.yaml
plans: {gold: 10/second, silver: 5/second}
tiers: {alice: premium}
"""
MORE = """\
rules:
  - {rule_id: per-ip, dimension: ip, limit: 100, window_seconds: 60}
default_policy: {capacity: 5}
"""
SUMMARY = """\
headgate.yaml: fine
  mode            service
  store           redis://user:***@127.0.0.1:1/0, redis://user:***@127.0.0.1:2/0
  on_store_error  closed
  rules from      headgate.yaml, more.yaml, sqlite:///rules.db?timeout_ms=30000
  in files        1 rule, 2 plans, 1 tier, 1 default
"""


def test_a_good_one_is_told_in_short_and_nothing_is_reached(run: Run, folder: Path) -> None:
    (folder / "headgate.yaml").write_text(GOOD)
    (folder / "more.yaml").write_text(MORE)
    assert run("config", "check") == (0, SUMMARY, "")
    assert run("config", "check", "headgate.yaml") == (0, SUMMARY, "")
    assert sorted(path.name for path in folder.iterdir()) == ["headgate.yaml", "more.yaml"]


def test_limits_on_descriptors_are_counted_by_domain(run: Run, folder: Path) -> None:
    (folder / "headgate.yaml").write_text("envoy: {config: envoy.d}\n")
    (folder / "envoy.d").mkdir()
    limit = "rate_limit: {unit: day, requests_per_unit: 5}"
    (folder / "envoy.d" / "mail.yaml").write_text(
        f"domain: mail\ndescriptors:\n  - key: to\n    {limit}\n    descriptors: [{{key: kind, {limit}}}]\n"
    )
    (folder / "envoy.d" / "shop.yaml").write_text(f"domain: shop\ndescriptors: [{{key: user, {limit}}}]\n")
    code, out, _ = run("config", "check")
    assert (code, out.splitlines()[-1]) == (0, "  envoy           envoy.d: 2 limits in mail, 1 limit in shop")


def test_every_mistake_is_told_with_its_place(run: Run, folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (folder / "headgate.yaml").write_text("stroe: x\ninclude: more.yaml\nserver: {http: here}\n")
    (folder / "more.yaml").write_text("rules:\n  - {rule_id: a, dimension: ip, limit: many, window_seconds: 60}\n")
    monkeypatch.setenv("HEADGATE_MODE", "other")
    code, out, err = run("config", "check")
    assert (code, out) == (2, "")
    assert [line.split(": ")[:2] for line in err.splitlines()] == [
        ["headgate.yaml:1", "stroe"],
        ["headgate.yaml:3", "server.http"],
        ["more.yaml:2", "rules[0].limit"],
        ["HEADGATE_MODE", "mode"],
    ]


def test_a_file_that_is_not_there(run: Run, shell: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    told = ": there is no such file: write its path as seen from here, or make it\n"
    assert run("config", "check") == (2, "", f"headgate.yaml{told}")
    assert shell("config", "check", "x.yaml") == (2, "", f"x.yaml{told}")
    monkeypatch.setenv("HEADGATE_CONFIG", "y.yaml")
    assert run("config", "check") == (2, "", f"y.yaml{told}")


def test_an_empty_one_is_fine(run: Run, folder: Path) -> None:
    (folder / "headgate.yaml").write_text("")
    code, out, _ = run("config", "check", "--connect")
    assert code == 0
    assert f"  store           shared://{folder}/.headgate/counters\n" in out, "as the service has it"
    assert f"  rules from      headgate.yaml, sqlite:///{folder}/.headgate/rules.db\n" in out
    assert "  in files        nothing\n" in out
    assert out.endswith("  store: made at the first start\n  rules_store: made at the first start\n")
    assert [path.name for path in folder.iterdir()] == ["headgate.yaml"]


def test_embedded_configuration_counts_in_memory(run: Run, folder: Path) -> None:
    (folder / "headgate.yaml").write_text("mode: embedded\n")
    code, out, _ = run("config", "check", "--connect")
    assert code == 0
    assert "  store           memory://\n" in out
    assert out.endswith("  store: reached\n")


REFUSED = {
    "store: memory://\nserver: {workers: 2}\n": "store: memory:// is one process's own, and 2 workers",
    "store: [redis://127.0.0.1:1/0, memory://]\nserver: {workers: 3}\n": "store: memory:// is one process's own",
    "store: headgate://127.0.0.1:8080\n": "is a service itself",
}


@pytest.mark.parametrize("text", REFUSED)
def test_what_serve_refuses_is_not_fine(text: str, run: Run, folder: Path) -> None:
    (folder / "headgate.yaml").write_text(text)
    checked = run("config", "check")
    assert (checked.code, checked.out) == (2, "")
    assert REFUSED[text] in checked.err
    assert run("serve", "--http", "127.0.0.1:0", "--grpc", "127.0.0.1:0") == checked


def test_admin_key_that_serve_refuses_is_not_fine(run: Run, folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (folder / "headgate.yaml").write_text("")
    monkeypatch.setenv("HEADGATE_ADMIN_KEY", "short")
    checked = run("config", "check")
    assert (checked.code, checked.out) == (2, "")
    assert "HEADGATE_ADMIN_KEY has 5 characters" in checked.err
    assert run("serve", "--http", "127.0.0.1:0", "--grpc", "127.0.0.1:0") == checked


def test_tracing_without_its_package_is_not_fine(run: Run, folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "opentelemetry.trace", None)
    (folder / "headgate.yaml").write_text("tracing: {enabled: true}\n")
    checked = run("config", "check")
    assert (checked.code, checked.out) == (2, "")
    assert "the package 'opentelemetry-api' is missing" in checked.err


def test_address_beyond_this_machine_needs_a_key(run: Run, folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Whether there is one is known where the rule database is looked at."""
    (folder / "headgate.yaml").write_text("server: {http: '0.0.0.0:8080'}\n")
    assert run("config", "check").code == 0
    refused = run("config", "check", "--connect")
    assert refused.code == 2
    assert "server.http: 0.0.0.0:8080 is reached from other machines, and there is no admin key yet" in refused.err
    monkeypatch.setenv("HEADGATE_ADMIN_KEY", "k" * 43)
    assert run("config", "check", "--connect").code == 0
    monkeypatch.delenv("HEADGATE_ADMIN_KEY")
    assert run("keys", "create", "first", "--scope", "write").code == 0
    assert run("config", "check", "--connect").code == 0


def test_connect_reaches_all(run: Run, folder: Path, redis_server: RedisServer | GivenServer) -> None:
    joint = "&" if "?" in redis_server.url else "?"
    store = f"{redis_server.url}{joint}timeout_ms=30000"
    (folder / "rules.yaml").write_text("plans: {gold: 1/s}\npolicies: [{key: k}]\n")
    rules = "sqlite:///rules.db?timeout_ms=30000"
    run("rules", "apply", "-f", "rules.yaml", "--rules-store", rules)
    (folder / "headgate.yaml").write_text(f"store: '{store}'\nrules_store: '{rules}'\n")
    code, out, err = run("config", "check", "--connect")
    assert (code, err) == (0, "")
    assert out.splitlines()[-2:] == [
        "  store: reached",
        f"  rules_store: reached, SQLite file {folder}/rules.db: 1 rule, 1 plan",
    ]


def test_what_cannot_be_reached_is_told(run: Run, folder: Path) -> None:
    (folder / "headgate.yaml").write_text(
        "store: redis://u:secret@127.0.0.1:1/0\nrules_store: mysql://u:secret@127.0.0.1:1/db\n"
    )
    code, out, err = run("config", "check", "--connect")
    assert code == 2
    assert out.startswith("headgate.yaml: fine\n")
    assert [line.split(": ")[:2] for line in err.splitlines()] == [["headgate", "store"], ["headgate", "rules_store"]]


def test_rules_that_cannot_be_used_are_told(run: Run, folder: Path) -> None:
    import sqlite3

    (folder / "headgate.yaml").write_text(
        "rules_store: sqlite:///rules.db?timeout_ms=30000\n"
        "rules: [{rule_id: a, dimension: ip, limit: 1, window_seconds: 1}]\n"
    )
    run("rules", "apply", "-f", "headgate.yaml")
    with sqlite3.connect(folder / "rules.db") as connection:
        connection.execute("UPDATE headgate_records SET body = replace(body, '\"limit\":1', '\"limit\":-1')")
        connection.execute("UPDATE headgate_records SET body = replace(body, '\"limit\": 1', '\"limit\": -1')")
    code, _, err = run("config", "check", "--connect")
    assert code == 2
    assert "rules_store: rule 'a': limit: " in err


def test_connecting_makes_no_rules_store(run: Run, folder: Path) -> None:
    (folder / "headgate.yaml").write_text("rules_store: sqlite:///ruels.db\n")
    code, _, err = run("config", "check", "--connect")
    assert code == 2
    assert err.startswith(f"headgate: rules_store: SQLite file {folder}/ruels.db: there is no such file: ")
    assert [path.name for path in folder.iterdir()] == ["headgate.yaml"]


def test_a_service_is_no_store_of_a_service(run: Run, folder: Path) -> None:
    (folder / "headgate.yaml").write_text("store: headgate://:hg_secret@limits\n")
    code, out, err = run("config", "check")
    assert (code, out) == (2, "")
    assert "store: 'headgate://:***@limits' is a service itself" in err
    assert "mode: embedded" in err
    (folder / "headgate.yaml").write_text("store: headgate://:hg_secret@limits\nmode: embedded\n")
    assert run("config", "check").code == 0
