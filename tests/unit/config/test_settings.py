"""The settings: what they are without and with a file, what the environment changes, and that all mistakes are told."""

from __future__ import annotations

import dataclasses
import os
import socket
import threading
from collections.abc import Callable
from pathlib import Path

import pytest

from headgate.config.environment import OTHER_VARIABLES
from headgate.config.settings import Address, Server, Settings, load_settings
from headgate.errors import Invalid
from headgate.rules.rule_files import SETTINGS
from headgate.rules.sections import SECTIONS

Write = Callable[..., str]


@pytest.fixture
def write(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Write:
    """Writes a file into the current folder, which is an empty one."""
    monkeypatch.chdir(tmp_path)

    def written(content: str, name: str = "headgate.yaml") -> str:
        path = Path(name)
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(content)
        return name

    return written


def told(path: str | None, environ: dict[str, str] | None = None) -> list[str]:
    with pytest.raises(Invalid) as raised:
        load_settings(path, environ or {})
    return [str(problem) for problem in raised.value.problems]


def ids(settings: Settings, kind: str = "rule") -> list[str]:
    return [record.id for record in settings.records if record.kind == kind]


def test_without_anything() -> None:
    settings = load_settings(None, {})
    assert settings == Settings(
        store="memory://",
        rules_store=None,
        on_store_error="open",
        refresh_seconds=1.0,
        mode="service",
        server=Server(Address("127.0.0.1", 8080), Address("127.0.0.1", 8081)),
    )
    assert (settings.records, settings.include) == ((), ())


def test_an_empty_file_is_as_good_as_none(write: Write) -> None:
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
    assert settings.server == Server(Address("0.0.0.0", 80), Address("::1", 0))
    assert (str(settings.server.http), str(settings.server.grpc)) == ("0.0.0.0:80", "[::1]:0")
    assert settings.include == ("more",)
    assert (ids(settings), ids(settings, "plan"), ids(settings, "tier")) == (
        ["orders", "strategy:ip", "b"],
        ["gold"],
        ["alice"],
    )
    assert "hunter2" not in repr(settings)


def test_whether_a_store_is_named(write: Write) -> None:
    assert not load_settings(None, {}).names_store
    assert not load_settings(write("store:\nplans: {gold: 5/s}\n"), {"HEADGATE_STORE": ""}).names_store
    assert load_settings(write("store: memory://\n"), {}).names_store
    assert load_settings(None, {"HEADGATE_STORE": "memory://"}).names_store


def test_settings_do_not_change(write: Write) -> None:
    with pytest.raises(dataclasses.FrozenInstanceError):
        load_settings(None, {}).mode = "embedded"  # type: ignore[misc]  # which is what is tested


def test_every_setting_is_known_to_who_reads_the_files() -> None:
    fields = {field.name for field in dataclasses.fields(Settings)}
    fields -= {"files", "descriptor_files", "names_store", "webhook"}
    assert {*fields, "pressure"} == set(SETTINGS)
    assert not set(SETTINGS) & set(SECTIONS)


def test_nothing_is_opened_or_connected(write: Write, monkeypatch: pytest.MonkeyPatch) -> None:
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
    assert os.listdir() == ["headgate.yaml"]
    assert not os.path.exists(f"/dev/shm/headgate-{os.getuid()}-test-{os.getpid()}")
    assert threading.active_count() == threads


@pytest.mark.parametrize(
    "url", ["shared:///f?max_key=5", "shared:///f?max_keys=0", "shared:///f?prefix=", "shared:///f?timeout_ms=x"]
)
def test_options_of_a_shared_store(write: Write, url: str) -> None:
    assert len(told(write(f"store: {url}\n"))) == 1


def test_the_environment_comes_before_the_file(write: Write) -> None:
    write(EVERYTHING.replace("include: more\n", ""))
    environ = {
        "HEADGATE_STORE": "redis://h1:7000,h2:7001/0".replace("redis://", "redis+sentinel://").replace("/0", "/m/0"),
        "HEADGATE_RULES_STORE": "postgresql://u:p@h/db",
        "HEADGATE_ON_STORE_ERROR": "local",
        "HEADGATE_REFRESH_SECONDS": "0.5",
        "HEADGATE_MODE": "service",
        "HEADGATE_SERVER__GRPC": "[::]:9000",
        "HEADGATE_PLANS__GOLD": "7/second",
        "HEADGATE_PLANS__NEW": "[1/second, 5/minute]",
        "HEADGATE_TIERS__BOB": "'42'",
        "HEADGATE_STRATEGIES__IP__LIMIT": "5/minute",
        "HEADGATE_DEFAULT_POLICY__REFILL_RATE": "5",
        "HEADGATE_POLICY_KEY": "off",
    }
    settings = load_settings("headgate.yaml", environ)
    assert settings.store == "redis+sentinel://h1:7000,h2:7001/m/0"
    assert settings.rules_store == "postgresql://u:p@h/db"
    assert (settings.on_store_error, settings.refresh_seconds, settings.mode) == ("local", 0.5, "service")
    assert settings.server == Server(Address("0.0.0.0", 80), Address("::", 9000))
    bodies = {(record.kind, record.id): record.body for record in settings.records}
    assert bodies["plan", "gold"] == {"limits": ["7/second"]}
    assert bodies["plan", "new"] == {"limits": ["1/second", "5/minute"]}
    assert (bodies["tier", "alice"], bodies["tier", "bob"]) == ({"tier": "premium"}, {"tier": "42"})
    assert bodies["rule", "strategy:ip"]["limit"] == 5
    assert bodies["default", "policy"]["refillRate"] == 5
    assert ("rule", "orders") in bodies


def test_a_list_of_stores_and_all_rules_in_the_environment(write: Write) -> None:
    write(EVERYTHING.replace("include: more\n", ""))
    settings = load_settings(
        "headgate.yaml",
        {
            "HEADGATE_STORE": '["redis://one", "redis://two"]',
            "HEADGATE_RULES": '[{"rule_id": "all", "dimension": "ip", "limit": 5, "window_seconds": 1}]',
        },
    )
    assert settings.store == ("redis://one", "redis://two")
    assert ids(settings) == ["all"]


def test_names_in_variables_are_spelled_as_in_the_file(write: Write) -> None:
    write("plans: {Gold: 5/second}\ntiers: {ALICE: free}\n")
    settings = load_settings("headgate.yaml", {"HEADGATE_PLANS__GOLD": "7/second", "HEADGATE_TIERS__ALICE": "gold"})
    assert [(record.id, dict(record.body)) for record in settings.records] == [
        ("Gold", {"limits": ["7/second"]}),
        ("ALICE", {"tier": "gold"}),
    ]


def test_an_empty_variable_is_as_good_as_none(write: Write) -> None:
    write("mode: embedded\n")
    assert load_settings("headgate.yaml", {"HEADGATE_MODE": "", "HEADGATE_STORE": "  "}).mode == "embedded"


def test_variables_that_are_no_settings() -> None:
    environ = dict.fromkeys((*OTHER_VARIABLES, "HEADGATE_TEST_REDIS_URL", "PATH", "headgate_store"), "x")
    assert load_settings(None, environ) == load_settings(None, {})


def test_variables_of_kubernetes() -> None:
    """Those of a Service called headgate, with a port called http; they are in every pod beside it."""
    environ = {
        "HEADGATE_PORT": "tcp://10.0.0.1:8080",
        "HEADGATE_PORT_8080_TCP": "tcp://10.0.0.1:8080",
        "HEADGATE_PORT_8080_TCP_ADDR": "10.0.0.1",
        "HEADGATE_PORT_8080_TCP_PORT": "8080",
        "HEADGATE_PORT_8080_TCP_PROTO": "tcp",
        "HEADGATE_PORT_8125_UDP": "udp://10.0.0.1:8125",
        "HEADGATE_SERVICE_HOST": "10.0.0.1",
        "HEADGATE_SERVICE_PORT": "8080",
        "HEADGATE_SERVICE_PORT_HTTP": "8080",
    }
    assert load_settings(None, environ) == load_settings(None, {})
    assert load_settings(None, {"HEADGATE_PORT": "udp://10.0.0.1:8125"}) == load_settings(None, {})
    for name in ("HEADGATE_PORT_HTTP", "HEADGATE_PORT_8080", "HEADGATE_SERVICE", "HEADGATE_SERVICE_PORTS"):
        assert told(None, {name: "tcp://10.0.0.1:8080"})[0].startswith(f"{name}: unknown variable")


def test_a_variable_may_mend_the_file_but_not_hide_what_is_beside_it(write: Write) -> None:
    write("store: reddis://x\nplans: {gold: nothing, silver: nothing}\nserver: [1]\n")
    assert [
        line.split(": ")[:2]
        for line in told(
            "headgate.yaml",
            {"HEADGATE_STORE": "memory://", "HEADGATE_PLANS__GOLD": "5/s", "HEADGATE_SERVER__HTTP": "h:1"},
        )
    ] == [
        ["headgate.yaml:2", "plans.silver"],
        ["headgate.yaml:3", "server"],
    ]


def test_all_mistakes_are_told_at_once_in_order(write: Write) -> None:
    write("plans: {a: 5/s, a: 6/s}\nstore: memory://\nrules:\n  - {dimension: usr}\n", "more/one.yaml")
    write("'never closed\n", "more/two.yaml")
    write("mode: servce\nrefresh_seconds: -1\nrules:\n  - {rule_id: x, limit: -1}\nstore: x\ninclude: [more, none]\n")
    environ = {"HEADGATE_STOR": "x", "HEADGATE_ON_STORE_ERROR": "x"}
    places = [line.rpartition(": must")[0] or line for line in told("headgate.yaml", environ)]
    assert [": ".join(place.split(": ")[:2]) for place in places] == [
        "headgate.yaml:1: mode",
        "headgate.yaml:2: refresh_seconds",
        "headgate.yaml:4: rules[0].dimension",
        "headgate.yaml:4: rules[0].limit",
        "headgate.yaml:4: rules[0].window_seconds",
        "headgate.yaml:5: store",
        "headgate.yaml:6: include[1]",
        "more/one.yaml:1: plans.a",
        "more/one.yaml:2: store",
        "more/one.yaml:4: rules[0].dimension",
        "more/one.yaml:4: rules[0].rule_id",
        "more/one.yaml:4: rules[0].limit",
        "more/one.yaml:4: rules[0].window_seconds",
        "more/two.yaml:1: the quote ' that begins here is never closed",
        "HEADGATE_ON_STORE_ERROR: on_store_error",
        "HEADGATE_STOR: unknown variable",
    ]


def test_the_file_itself(write: Write) -> None:
    write("", "folder/x.yaml")
    assert told("none.yaml") == ["none.yaml: there is no such file: write its path as seen from here, or make it"]
    assert told("folder", {"HEADGATE_MODE": "x"}) == [
        "HEADGATE_MODE: mode: must be one of service, embedded, not 'x'",
        "folder: is a folder: name the file with the settings",
    ]


def test_paths_in_a_file_are_seen_from_that_file(write: Write, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    write("plans: {gold: 5/s}", "conf/plans.yaml")
    write("include: [plans.yaml]", "conf/headgate.yaml")
    assert load_settings("conf/headgate.yaml", {}).include == ("conf/plans.yaml",)
    assert load_settings(str(tmp_path / "conf/headgate.yaml"), {}).include == (str(tmp_path / "conf/plans.yaml"),)
    assert load_settings("conf/headgate.yaml", {"HEADGATE_INCLUDE": "conf/plans.yaml"}).include == ("conf/plans.yaml",)
    assert len(load_settings(None, {"HEADGATE_INCLUDE": "[conf/plans.yaml]"}).records) == 1


def test_a_file_that_is_named_twice_is_read_once(write: Write) -> None:
    write("plans: {gold: 5/s}", "conf/plans.yaml")
    os.symlink("plans.yaml", "conf/same.yaml")
    write("mode: embedded\ninclude: [., plans.yaml, ../conf/plans.yaml, same.yaml]", "conf/headgate.yaml")
    assert ids(load_settings("conf/headgate.yaml", {}), "plan") == ["gold"]


def test_an_empty_folder_is_included_without_a_word(write: Write) -> None:
    os.mkdir("conf.d")
    assert load_settings(write("include: conf.d"), {}).records == ()


def test_a_folder_of_the_name_of_a_file(write: Write) -> None:
    os.makedirs("conf.d/x.yaml")
    assert told(write("include: conf.d")) == ["conf.d/x.yaml: is a folder: name a file in it"]


def test_a_list_at_the_top_is_a_list_of_rules(write: Write) -> None:
    write("- {rule_id: a, dimension: ip, limit: 5, window_seconds: 1}\n- {rule_id: b}\n")
    assert told("headgate.yaml")[0].split(": ")[:2] == ["headgate.yaml:2", "rules[1].dimension"]
    assert ids(load_settings(write("- {rule_id: a, dimension: ip, limit: 5, window_seconds: 1}\n"), {})) == ["a"]


def test_rules_that_end_do_not_compete_with_those_that_last(write: Write) -> None:
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
    assert ids(load_settings("headgate.yaml", {})) == list("abcdefg")


def test_the_rules_as_a_repository_that_knows_the_environment(write: Write) -> None:
    write("plans: {gold: 5/second}\n")
    repository = load_settings("headgate.yaml", {"HEADGATE_PLANS__SILVER": "7/second"}).rule_files()
    first = repository.changes(0)
    assert first is not None
    assert [record.id for record in first.records] == ["gold", "silver"]
    assert repository.changes(first.revision) is None
    write("plans: {gold: 5/second, bronze: 1/second}\n")
    later = repository.changes(first.revision)
    assert later is not None
    assert [record.id for record in later.records] == ["gold", "bronze", "silver"]
