"""Loading settings: defaults, files, environment, and reports of all problems."""

from __future__ import annotations

import dataclasses
import os
import socket
import threading
from collections.abc import Callable
from pathlib import Path

import pytest

from crestgate.config.environment import OTHER_VARIABLES
from crestgate.config.settings import Address, ServerSettings, Settings, load_settings
from crestgate.errors import ValidationError
from crestgate.rules.storage.file_sections import SECTIONS
from crestgate.rules.storage.rule_files import SETTINGS

Write = Callable[..., str]


@pytest.fixture
def write(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Write:
    """Writes a file into the current folder, which is empty at first."""
    monkeypatch.chdir(tmp_path)

    def written(content: str, name: str = "crestgate.yaml") -> str:
        path = Path(name)
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(content)
        return name

    return written


def messages(path: str | None, environ: dict[str, str] | None = None) -> list[str]:
    with pytest.raises(ValidationError) as raised:
        load_settings(path, environ or {})
    return [str(problem) for problem in raised.value.problems]


def ids(settings: Settings, kind: str = "rule") -> list[str]:
    return [record.id for record in settings.records if record.kind == kind]


def test_defaults() -> None:
    settings = load_settings(None, {})
    assert settings == Settings(
        store="memory://",
        rules_store=None,
        on_store_error="open",
        refresh_seconds=1.0,
        mode="service",
        server=ServerSettings(Address("127.0.0.1", 8080), Address("127.0.0.1", 8081)),
    )
    assert (settings.records, settings.include) == ((), ())


def test_empty_file_has_defaults(write: Write) -> None:
    assert load_settings(write(""), {}) == load_settings(None, {})
    assert load_settings(write("store:\nserver:\nrules:\ninclude:\n"), {}) == load_settings(None, {})


EVERYTHING = """\
store: [redis://one:6379/0, "redis://user:hunter2@two:6379/0"]
rules_store: sqlite:///rules.db
on_store_error: Closed
refresh_seconds: 2
mode: embedded
server:
  http: 0.0.0.0:80
  grpc: "[::1]:0"
include: more
rules:
  - {rule_id: orders, dimension: user, limit: 100, window_seconds: 60}
plans:
  gold: 10/second burst 20
tiers:
  alice: premium
"""


def test_everything(write: Write) -> None:
    write("strategies: {ip: {limit: 100/minute}}", "more/a.yml")
    write('[{"rule_id": "b", "dimension": "api", "limit": 5, "window_seconds": 1}]', "more/b.json")
    write("not: read", "more/c.txt")
    write("not: read", "more/.hidden.yaml")
    settings = load_settings(write(EVERYTHING), {})
    assert settings.store == ("redis://one:6379/0", "redis://user:hunter2@two:6379/0")
    assert (settings.rules_store, settings.on_store_error, settings.mode) == (
        "sqlite:///rules.db",
        "closed",
        "embedded",
    )
    assert settings.refresh_seconds == 2.0
    assert settings.server == ServerSettings(Address("0.0.0.0", 80), Address("::1", 0))
    assert (str(settings.server.http), str(settings.server.grpc)) == ("0.0.0.0:80", "[::1]:0")
    assert settings.include == ("more",)
    assert (ids(settings), ids(settings, "plan"), ids(settings, "tier")) == (
        ["orders", "strategy:ip", "b"],
        ["gold"],
        ["alice"],
    )
    assert "hunter2" not in repr(settings)


def test_store_is_set(write: Write) -> None:
    assert not load_settings(None, {}).store_is_set
    assert not load_settings(write("store:\nplans: {gold: 5/s}\n"), {"CRESTGATE_STORE": ""}).store_is_set
    assert load_settings(write("store: memory://\n"), {}).store_is_set
    assert load_settings(None, {"CRESTGATE_STORE": "memory://"}).store_is_set


def test_settings_are_frozen(write: Write) -> None:
    with pytest.raises(dataclasses.FrozenInstanceError):
        load_settings(None, {}).mode = "embedded"  # type: ignore[misc]  # the assignment under test


def test_rule_files_know_every_setting() -> None:
    fields = {field.name for field in dataclasses.fields(Settings)}
    fields -= {"files", "descriptor_files", "store_is_set", "webhook"}
    assert {*fields, "pressure", "migrate", "stores"} == set(SETTINGS)  # `store` has what those two say
    assert not set(SETTINGS) & set(SECTIONS)


def test_loading_opens_nothing(write: Write, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*_: object) -> None:
        raise AssertionError("connected")

    monkeypatch.setattr(socket.socket, "connect", refuse)
    threads = threading.active_count()
    for url in (
        *(
            "memory://",
            "shared:///tmp/none/file",
            f"shared://test-{os.getpid()}",
            "redis://localhost:1",
            "rediss://localhost:1",
        ),
        *("redis+sentinel://localhost:1/m", "redis+cluster://localhost:1", "redis+unix:///none", "sqlite:///none.db"),
        *("mysql://u:p@localhost:1/db", "mariadb://u:p@localhost:1/db", "postgresql://u:p@localhost:1/db"),
    ):
        assert load_settings(write(f"store: {url}\n"), {}).store == url
    assert os.listdir() == ["crestgate.yaml"]
    assert not os.path.exists(f"/dev/shm/crestgate-{os.getuid()}-test-{os.getpid()}")
    assert threading.active_count() == threads


@pytest.mark.parametrize(
    "url", ["shared:///f?max_key=5", "shared:///f?max_keys=0", "shared:///f?prefix=", "shared:///f?timeout_ms=x"]
)
def test_options_of_a_shared_store(write: Write, url: str) -> None:
    assert len(messages(write(f"store: {url}\n"))) == 1


def test_environment_overrides_the_file(write: Write) -> None:
    write(EVERYTHING.replace("include: more\n", ""))
    environ = {
        "CRESTGATE_STORE": "redis://h1:7000,h2:7001/0".replace("redis://", "redis+sentinel://").replace("/0", "/m/0"),
        "CRESTGATE_RULES_STORE": "postgresql://u:p@h/db",
        "CRESTGATE_ON_STORE_ERROR": "local",
        "CRESTGATE_REFRESH_SECONDS": "0.5",
        "CRESTGATE_MODE": "service",
        "CRESTGATE_SERVER__GRPC": "[::]:9000",
        "CRESTGATE_PLANS__GOLD": "7/second",
        "CRESTGATE_PLANS__NEW": "[1/second, 5/minute]",
        "CRESTGATE_TIERS__BOB": "'42'",
        "CRESTGATE_STRATEGIES__IP__LIMIT": "5/minute",
        "CRESTGATE_DEFAULT_POLICY__REFILL_RATE": "5",
        "CRESTGATE_POLICY_KEY": "off",
    }
    settings = load_settings("crestgate.yaml", environ)
    assert settings.store == "redis+sentinel://h1:7000,h2:7001/m/0"
    assert settings.rules_store == "postgresql://u:p@h/db"
    assert (settings.on_store_error, settings.refresh_seconds, settings.mode) == ("local", 0.5, "service")
    assert settings.server == ServerSettings(Address("0.0.0.0", 80), Address("::", 9000))
    bodies = {(record.kind, record.id): record.body for record in settings.records}
    assert bodies["plan", "gold"] == {"limits": ["7/second"]}
    assert bodies["plan", "new"] == {"limits": ["1/second", "5/minute"]}
    assert (bodies["tier", "alice"], bodies["tier", "bob"]) == ({"tier": "premium"}, {"tier": "42"})
    assert bodies["rule", "strategy:ip"]["limit"] == 5
    assert bodies["default", "policy"]["refillRate"] == 5
    assert ("rule", "orders") in bodies


def test_list_of_stores_and_all_rules_in_the_environment(write: Write) -> None:
    write(EVERYTHING.replace("include: more\n", ""))
    settings = load_settings(
        "crestgate.yaml",
        {
            "CRESTGATE_STORE": '["redis://one", "redis://two"]',
            "CRESTGATE_RULES": '[{"rule_id": "all", "dimension": "ip", "limit": 5, "window_seconds": 1}]',
        },
    )
    assert settings.store == ("redis://one", "redis://two")
    assert ids(settings) == ["all"]


def test_names_in_variables_are_spelled_as_in_the_file(write: Write) -> None:
    write("plans: {Gold: 5/second}\ntiers: {ALICE: free}\n")
    settings = load_settings("crestgate.yaml", {"CRESTGATE_PLANS__GOLD": "7/second", "CRESTGATE_TIERS__ALICE": "gold"})
    assert [(record.id, dict(record.body)) for record in settings.records] == [
        ("Gold", {"limits": ["7/second"]}),
        ("ALICE", {"tier": "gold"}),
    ]


def test_empty_variable_is_ignored(write: Write) -> None:
    write("mode: embedded\n")
    assert load_settings("crestgate.yaml", {"CRESTGATE_MODE": "", "CRESTGATE_STORE": "  "}).mode == "embedded"


def test_other_variables_are_ignored() -> None:
    environ = dict.fromkeys((*OTHER_VARIABLES, "CRESTGATE_TEST_REDIS_URL", "PATH", "crestgate_store"), "x")
    assert load_settings(None, environ) == load_settings(None, {})


def test_kubernetes_variables_are_ignored() -> None:
    """Kubernetes sets these in every pod of the namespace for a Service named crestgate with a port named http."""
    environ = {
        "CRESTGATE_PORT": "tcp://10.0.0.1:8080",
        "CRESTGATE_PORT_8080_TCP": "tcp://10.0.0.1:8080",
        "CRESTGATE_PORT_8080_TCP_ADDR": "10.0.0.1",
        "CRESTGATE_PORT_8080_TCP_PORT": "8080",
        "CRESTGATE_PORT_8080_TCP_PROTO": "tcp",
        "CRESTGATE_PORT_8125_UDP": "udp://10.0.0.1:8125",
        "CRESTGATE_SERVICE_HOST": "10.0.0.1",
        "CRESTGATE_SERVICE_PORT": "8080",
        "CRESTGATE_SERVICE_PORT_HTTP": "8080",
    }
    assert load_settings(None, environ) == load_settings(None, {})
    assert load_settings(None, {"CRESTGATE_PORT": "udp://10.0.0.1:8125"}) == load_settings(None, {})
    for name in ("CRESTGATE_PORT_HTTP", "CRESTGATE_PORT_8080", "CRESTGATE_SERVICE", "CRESTGATE_SERVICE_PORTS"):
        assert messages(None, {name: "tcp://10.0.0.1:8080"})[0].startswith(f"{name}: unknown variable")


def test_variable_fixes_its_own_field_only(write: Write) -> None:
    write("store: reddis://x\nplans: {gold: nothing, silver: nothing}\nserver: [1]\n")
    assert [
        line.split(": ")[:2]
        for line in messages(
            "crestgate.yaml",
            {"CRESTGATE_STORE": "memory://", "CRESTGATE_PLANS__GOLD": "5/s", "CRESTGATE_SERVER__HTTP": "h:1"},
        )
    ] == [
        ["crestgate.yaml:2", "plans.silver"],
        ["crestgate.yaml:3", "server"],
    ]


def test_all_errors_are_reported_in_order(write: Write) -> None:
    write("plans: {a: 5/s, a: 6/s}\nstore: memory://\nrules:\n  - {dimension: usr}\n", "more/one.yaml")
    write("'never closed\n", "more/two.yaml")
    write("mode: servce\nrefresh_seconds: -1\nrules:\n  - {rule_id: x, limit: -1}\nstore: x\ninclude: [more, none]\n")
    environ = {"CRESTGATE_STOR": "x", "CRESTGATE_ON_STORE_ERROR": "x"}
    locations = [line.rpartition(": must")[0] or line for line in messages("crestgate.yaml", environ)]
    assert [": ".join(location.split(": ")[:2]) for location in locations] == [
        "crestgate.yaml:1: mode",
        "crestgate.yaml:2: refresh_seconds",
        "crestgate.yaml:4: rules[0].dimension",
        "crestgate.yaml:4: rules[0].limit",
        "crestgate.yaml:4: rules[0].window_seconds",
        "crestgate.yaml:5: store",
        "crestgate.yaml:6: include[1]",
        "more/one.yaml:1: plans.a",
        "more/one.yaml:2: store",
        "more/one.yaml:4: rules[0].rule_id",
        "more/one.yaml:4: rules[0].dimension",
        "more/one.yaml:4: rules[0].limit",
        "more/one.yaml:4: rules[0].window_seconds",
        "more/two.yaml:1: the quote ' is never closed",
        "CRESTGATE_ON_STORE_ERROR: on_store_error",
        "CRESTGATE_STOR: unknown variable",
    ]


def test_unreadable_files_are_reported(write: Write) -> None:
    write("", "folder/x.yaml")
    assert messages("none.yaml") == ["none.yaml: there is no such file: correct the path, or create the file"]
    assert messages("folder", {"CRESTGATE_MODE": "x"}) == [
        "CRESTGATE_MODE: mode: must be one of service, embedded, not 'x'",
        "folder: is a folder: name the file with the settings",
    ]


def test_paths_in_a_file_are_relative_to_it(write: Write, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    write("plans: {gold: 5/s}", "conf/plans.yaml")
    write("include: [plans.yaml]", "conf/crestgate.yaml")
    assert load_settings("conf/crestgate.yaml", {}).include == ("conf/plans.yaml",)
    assert load_settings(str(tmp_path / "conf/crestgate.yaml"), {}).include == (str(tmp_path / "conf/plans.yaml"),)
    assert load_settings("conf/crestgate.yaml", {"CRESTGATE_INCLUDE": "conf/plans.yaml"}).include == (
        "conf/plans.yaml",
    )
    assert len(load_settings(None, {"CRESTGATE_INCLUDE": "[conf/plans.yaml]"}).records) == 1


def test_file_that_is_named_twice_is_read_once(write: Write) -> None:
    write("plans: {gold: 5/s}", "conf/plans.yaml")
    os.symlink("plans.yaml", "conf/same.yaml")
    write("mode: embedded\ninclude: [., plans.yaml, ../conf/plans.yaml, same.yaml]", "conf/crestgate.yaml")
    assert ids(load_settings("conf/crestgate.yaml", {}), "plan") == ["gold"]


def test_empty_folder_may_be_included(write: Write) -> None:
    os.mkdir("conf.d")
    assert load_settings(write("include: conf.d"), {}).records == ()


def test_folder_in_place_of_a_file(write: Write) -> None:
    os.makedirs("conf.d/x.yaml")
    assert messages(write("include: conf.d")) == ["conf.d/x.yaml: is a folder: name a file in it"]


def test_list_at_the_top_is_a_list_of_rules(write: Write) -> None:
    write("- {rule_id: a, dimension: ip, limit: 5, window_seconds: 1}\n- {rule_id: b}\n")
    assert messages("crestgate.yaml")[0].split(": ")[:2] == ["crestgate.yaml:2", "rules[1].dimension"]
    assert ids(load_settings(write("- {rule_id: a, dimension: ip, limit: 5, window_seconds: 1}\n"), {})) == ["a"]


def test_expiring_rules_do_not_conflict_with_permanent_ones(write: Write) -> None:
    slot = "dimension: ip, limit: 5, window_seconds: 1"
    write(f"""\
- {{rule_id: a, {slot}}}
- {{rule_id: b, {slot}, expires_at: '2030-01-01T00:00:00Z'}}
- {{rule_id: c, {slot}, identifier: 192.0.2.1}}
- {{rule_id: d, {slot}, tier: gold}}
- {{rule_id: e, {slot}, mode: disabled}}
- {{rule_id: f, {slot}, mode: disabled}}
- {{rule_id: g, {slot}, mode: shadow}}
""")
    assert ids(load_settings("crestgate.yaml", {})) == list("abcdefg")


def test_rule_files_include_the_environment(write: Write) -> None:
    write("plans: {gold: 5/second}\n")
    repository = load_settings("crestgate.yaml", {"CRESTGATE_PLANS__SILVER": "7/second"}).rule_files()
    first = repository.changes(0)
    assert first is not None
    assert [record.id for record in first.records] == ["gold", "silver"]
    assert repository.changes(first.revision) is None
    write("plans: {gold: 5/second, bronze: 1/second}\n")
    later = repository.changes(first.revision)
    assert later is not None
    assert [record.id for record in later.records] == ["gold", "bronze", "silver"]
