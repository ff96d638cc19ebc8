"""`crestgate config check`."""

from __future__ import annotations

import os
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
crestgate.yaml: valid
  mode            service
  store           redis://user:***@127.0.0.1:1/0, redis://user:***@127.0.0.1:2/0
  on_store_error  closed
  rules from      crestgate.yaml, more.yaml, sqlite:///rules.db?timeout_ms=30000
  in files        1 rule, 2 plans, 1 tier, 1 default
"""


def test_valid_configuration_is_summarised_without_connecting(run: Run, folder: Path) -> None:
    (folder / "crestgate.yaml").write_text(GOOD)
    (folder / "more.yaml").write_text(MORE)
    assert run("config", "check") == (0, SUMMARY, "")
    assert run("config", "check", "crestgate.yaml") == (0, SUMMARY, "")
    assert sorted(path.name for path in folder.iterdir()) == ["crestgate.yaml", "more.yaml"]


def test_limits_on_descriptors_are_counted_by_domain(run: Run, folder: Path) -> None:
    (folder / "crestgate.yaml").write_text("envoy: {config: envoy.d}\n")
    (folder / "envoy.d").mkdir()
    limit = "rate_limit: {unit: day, requests_per_unit: 5}"
    (folder / "envoy.d" / "mail.yaml").write_text(
        f"domain: mail\ndescriptors:\n  - key: to\n    {limit}\n    descriptors: [{{key: kind, {limit}}}]\n"
    )
    (folder / "envoy.d" / "shop.yaml").write_text(f"domain: shop\ndescriptors: [{{key: user, {limit}}}]\n")
    code, out, _ = run("config", "check")
    assert (code, out.splitlines()[-1]) == (0, "  envoy           envoy.d: 2 limits in mail, 1 limit in shop")


def test_every_mistake_has_file_and_line(run: Run, folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (folder / "crestgate.yaml").write_text("stroe: x\ninclude: more.yaml\nserver: {http: here}\n")
    (folder / "more.yaml").write_text("rules:\n  - {rule_id: a, dimension: ip, limit: many, window_seconds: 60}\n")
    monkeypatch.setenv("CRESTGATE_MODE", "other")
    code, out, err = run("config", "check")
    assert (code, out) == (2, "")
    assert [line.split(": ")[:2] for line in err.splitlines()] == [
        ["crestgate.yaml:1", "stroe"],
        ["crestgate.yaml:3", "server.http"],
        ["more.yaml:2", "rules[0].limit"],
        ["CRESTGATE_MODE", "mode"],
    ]


def test_missing_file(run: Run, shell: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    expected = ": there is no such file: correct the path, or create the file\n"
    none = f"no file is named, CRESTGATE_CONFIG is not set, and there is no crestgate.yaml in {os.getcwd()}"
    remedy = "name the file, as `crestgate config check FILE`, or write one"
    assert run("config", "check") == (2, "", f"crestgate: there is no configuration: {none}: {remedy}\n")
    assert shell("config", "check", "x.yaml") == (2, "", f"x.yaml{expected}")
    monkeypatch.setenv("CRESTGATE_CONFIG", "y.yaml")
    assert run("config", "check") == (2, "", f"y.yaml{expected}")


def test_empty_configuration_is_valid(run: Run, folder: Path) -> None:
    (folder / "crestgate.yaml").write_text("")
    code, out, _ = run("config", "check", "--connect")
    assert code == 0
    assert f"  store           shared://{folder}/.crestgate/counters\n" in out, "the service's default"
    assert f"  rules from      crestgate.yaml, sqlite:///{folder}/.crestgate/rules.db\n" in out
    assert "  in files        nothing\n" in out
    assert out.endswith("  store: created at the first start\n  rules_store: created at the first start\n")
    assert [path.name for path in folder.iterdir()] == ["crestgate.yaml"]


def test_embedded_configuration_counts_in_memory(run: Run, folder: Path) -> None:
    (folder / "crestgate.yaml").write_text("mode: embedded\n")
    code, out, _ = run("config", "check", "--connect")
    assert code == 0
    assert "  store           memory://\n" in out
    assert out.endswith("  store: reached\n")


REFUSED = {
    "store: memory://\nserver: {workers: 2}\n": "store: memory:// is one process's own, and 2 workers",
    "store: [redis://127.0.0.1:1/0, memory://]\nserver: {workers: 3}\n": "store: memory:// is one process's own",
    "store: crestgate://127.0.0.1:8080\n": "is a service itself",
}


@pytest.mark.parametrize("text", REFUSED)
def test_check_refuses_what_serve_refuses(text: str, run: Run, folder: Path) -> None:
    (folder / "crestgate.yaml").write_text(text)
    checked = run("config", "check")
    assert (checked.code, checked.out) == (2, "")
    assert REFUSED[text] in checked.err
    assert run("serve", "--http", "127.0.0.1:0", "--grpc", "127.0.0.1:0") == checked


def test_check_refuses_an_invalid_admin_key(run: Run, folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (folder / "crestgate.yaml").write_text("")
    monkeypatch.setenv("CRESTGATE_ADMIN_KEY", "short")
    checked = run("config", "check")
    assert (checked.code, checked.out) == (2, "")
    assert "CRESTGATE_ADMIN_KEY has 5 characters" in checked.err
    assert run("serve", "--http", "127.0.0.1:0", "--grpc", "127.0.0.1:0") == checked


def test_check_refuses_a_service_without_its_packages(run: Run, folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delitem(sys.modules, "crestgate.service.worker", raising=False)
    monkeypatch.setitem(sys.modules, "uvicorn", None)
    (folder / "crestgate.yaml").write_text("")
    checked = run("config", "check")
    assert (checked.code, checked.out) == (2, "")
    assert "the package 'uvicorn' is missing, which the service needs: pip install '.[server]'" in checked.err
    assert run("serve") == checked
    (folder / "crestgate.yaml").write_text("mode: embedded\n")
    assert run("config", "check").code == 0


def test_check_refuses_tracing_without_its_package(run: Run, folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "opentelemetry.trace", None)
    (folder / "crestgate.yaml").write_text("tracing: {enabled: true}\n")
    checked = run("config", "check")
    assert (checked.code, checked.out) == (2, "")
    assert "the package 'opentelemetry-api' is missing" in checked.err


def test_address_beyond_loopback_needs_a_key(run: Run, folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A key can be detected only by opening the rule database."""
    (folder / "crestgate.yaml").write_text("server: {http: '0.0.0.0:8080'}\n")
    assert run("config", "check").code == 0
    refused = run("config", "check", "--connect")
    assert refused.code == 2
    assert "server.http: 0.0.0.0:8080 is reached from other machines, and there is no admin key yet" in refused.err
    monkeypatch.setenv("CRESTGATE_ADMIN_KEY", "k" * 43)
    assert run("config", "check", "--connect").code == 0
    monkeypatch.delenv("CRESTGATE_ADMIN_KEY")
    assert run("keys", "create", "first", "--scope", "write").code == 0
    assert run("config", "check", "--connect").code == 0


def test_connect_option_connects_to_all_stores(run: Run, folder: Path, redis_server: RedisServer | GivenServer) -> None:
    joint = "&" if "?" in redis_server.url else "?"
    store = f"{redis_server.url}{joint}timeout_ms=30000"
    (folder / "rules.yaml").write_text("plans: {gold: 1/s}\npolicies: [{key: k}]\n")
    rules = "sqlite:///rules.db?timeout_ms=30000"
    run("rules", "apply", "-f", "rules.yaml", "--rules-store", rules)
    (folder / "crestgate.yaml").write_text(f"store: '{store}'\nrules_store: '{rules}'\n")
    code, out, err = run("config", "check", "--connect")
    assert (code, err) == (0, "")
    assert out.splitlines()[-2:] == [
        "  store: reached",
        f"  rules_store: reached, SQLite file {folder}/rules.db: 1 rule, 1 plan",
    ]


def test_connection_failures_are_reported(run: Run, folder: Path) -> None:
    (folder / "crestgate.yaml").write_text(
        "store: redis://u:secret@127.0.0.1:1/0\nrules_store: mysql://u:secret@127.0.0.1:1/db\n"
    )
    code, out, err = run("config", "check", "--connect")
    assert code == 2
    assert out.startswith("crestgate.yaml: valid\n")
    assert [line.split(": ")[:2] for line in err.splitlines()] == [["crestgate", "store"], ["crestgate", "rules_store"]]


def test_invalid_stored_rules_are_reported(run: Run, folder: Path) -> None:
    import sqlite3

    (folder / "crestgate.yaml").write_text(
        "rules_store: sqlite:///rules.db?timeout_ms=30000\n"
        "rules: [{rule_id: a, dimension: ip, limit: 1, window_seconds: 1}]\n"
    )
    run("rules", "apply", "-f", "crestgate.yaml")
    with sqlite3.connect(folder / "rules.db") as connection:
        connection.execute("UPDATE crestgate_records SET body = replace(body, '\"limit\":1', '\"limit\":-1')")
        connection.execute("UPDATE crestgate_records SET body = replace(body, '\"limit\": 1', '\"limit\": -1')")
    code, _, err = run("config", "check", "--connect")
    assert code == 2
    assert "rules_store: rule 'a': limit: " in err


def test_connect_option_creates_no_rules_store(run: Run, folder: Path) -> None:
    (folder / "crestgate.yaml").write_text("rules_store: sqlite:///ruels.db\n")
    code, _, err = run("config", "check", "--connect")
    assert code == 2
    assert err.startswith(f"crestgate: rules_store: SQLite file {folder}/ruels.db: there is no such file: ")
    assert [path.name for path in folder.iterdir()] == ["crestgate.yaml"]


def test_service_cannot_use_a_service_as_store(run: Run, folder: Path) -> None:
    (folder / "crestgate.yaml").write_text("store: crestgate://:cg_secret@limits\n")
    code, out, err = run("config", "check")
    assert (code, out) == (2, "")
    assert "store: 'crestgate://:***@limits' is a service itself" in err
    assert "mode: embedded" in err
    (folder / "crestgate.yaml").write_text("store: crestgate://:cg_secret@limits\nmode: embedded\n")
    assert run("config", "check").code == 0
