"""Rules in Redis: the contract of repositories, and behaviour specific to Redis."""

from __future__ import annotations

import re
import threading
from collections.abc import Callable, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, closing
from itertools import count
from os import getpid
from typing import Any
from urllib.parse import quote

import pytest

from crestgate.databases.redis_client import open_client
from crestgate.errors import ConflictError, StaleVersionError, StoreError, ValidationError
from crestgate.rules.port import DAY_US, AuditEntry, AuditQuery, Repository
from crestgate.rules.storage.redis.layout import audit_fields
from crestgate.rules.storage.redis.repository import RedisRepository, open_redis_repository
from crestgate.runtime.url_options import Options
from servers.process import GivenServer
from servers.proxy import CuttingProxy
from servers.redis import RedisServer
from unit.rules.storage.kit import ALICE, Opener, RepositoryKit, edit, ids, put, run_in_child
from unit.rules.storage.redis_rules import changes_since, open_rules

_numbers = count()


class TestRedisRepository(RepositoryKit):
    notifies = True

    @pytest.fixture
    def opener(self, redis_server: RedisServer | GivenServer) -> Iterator[Opener]:
        with ExitStack() as stack:

            def open_one(prefix: str) -> Repository:
                url = f"{redis_server.url}?prefix={quote(prefix)}"
                return stack.enter_context(closing(open_redis_repository(Options(url))))

            yield open_one


@pytest.fixture
def url(redis_server: RedisServer | GivenServer) -> str:
    """A URL with a prefix that no other test uses."""
    return f"{redis_server.url}?prefix=rules-{getpid()}-{next(_numbers)}"


@pytest.fixture
def rules(url: str) -> Iterator[RedisRepository]:
    with closing(open_rules(url)) as rules:
        yield rules


@pytest.fixture
def client(redis_server: RedisServer | GivenServer) -> Iterator[Any]:
    with closing(open_client(Options(redis_server.url), 5.0)[0]) as client:
        yield client


class ConcurrentBody(Mapping[str, Any]):
    """A body that runs an action when it is first serialized: after the read, and before EXEC."""

    def __init__(self, body: Mapping[str, Any], act: Callable[[], object]) -> None:
        self.body, self.acts = body, [act]

    def __getitem__(self, name: str) -> Any:
        return self.body[name]

    def __iter__(self) -> Iterator[str]:
        if self.acts:
            self.acts.pop()()
        return iter(self.body)

    def __len__(self) -> int:
        return len(self.body)


# -- concurrent writes -------------------------------------------------------------------------------------------------


def test_overtaken_write_is_retried(url: str, rules: RedisRepository) -> None:
    with closing(open_rules(url)) as other:
        body = ConcurrentBody({"n": 1}, lambda: put(other, "s", {"n": 2}))
        assert put(rules, "r", body).version == 1
    assert [(e.subject, e.after) for e in rules.audit(AuditQuery())] == [("rule:r", {"n": 1}), ("rule:s", {"n": 2})]
    assert changes_since(rules, 0).revision == 2


@pytest.mark.parametrize(("unique_key", "error"), [(None, StaleVersionError), ("slot", ConflictError)])
def test_retried_write_sees_the_concurrent_one(
    url: str, rules: RedisRepository, unique_key: str | None, error: type[Exception]
) -> None:
    put(rules, "r", {"n": 0})
    with closing(open_rules(url)) as other:
        name = "r" if unique_key is None else "s"
        body = ConcurrentBody({"n": 1}, lambda: put(other, name, {"n": 2}, unique_key=unique_key))
        with pytest.raises(error):
            put(rules, "r", body, expected=1, unique_key=unique_key)
    assert [e.after for e in rules.audit(AuditQuery())] == [{"n": 2}, {"n": 0}]


def test_concurrent_writers_lose_nothing(url: str) -> None:
    with ExitStack() as stack, ThreadPoolExecutor(6) as pool:
        writers = [stack.enter_context(closing(open_rules(url))) for _ in range(6)]
        work = [pool.submit(put, writers[n % 6], f"r{n % 9}", {"n": n}) for n in range(120)]
        versions = [(done.result().id, done.result().version) for done in work]
        assert len(set(versions)) == 120
        entries = writers[0].audit(AuditQuery(limit=1000))
        assert sorted(e.after["n"] for e in entries if e.after) == list(range(120))
        assert changes_since(writers[0], 0).revision == 120
        assert [e.id for e in entries] == sorted({e.id for e in entries}, reverse=True)


def test_more_threads_than_connections(url: str) -> None:
    with closing(open_redis_repository(Options(f"{url}&pool_size=1"))) as rules, ThreadPoolExecutor(8) as pool:
        made = list(pool.map(lambda n: put(rules, f"r{n}", {}).version, range(40)))
        assert made == [1] * 40
        assert len(rules.list("rule")) == 40


def test_write_with_a_lost_response_is_not_retried() -> None:
    with RedisServer() as server, CuttingProxy(server.port) as proxy, closing(open_rules(server.url)) as direct:
        url = f"redis://127.0.0.1:{proxy.port}/0?timeout_ms=300"
        with closing(open_redis_repository(Options(url))) as rules:
            body = ConcurrentBody({"n": 1}, lambda: proxy.hang(replies_only=True))
            with pytest.raises(StoreError, match="the outcome of the write is unknown"):
                put(rules, "r", body)
            proxy.cut()
            proxy.pass_all()
            assert [e.after for e in direct.audit(AuditQuery())] == [{"n": 1}]
            with pytest.raises(StoreError) as error:
                put(rules, "r", ConcurrentBody({"n": 2}, proxy.refuse))
            assert f"Redis at 127.0.0.1:{proxy.port}: " in str(error.value)
            with pytest.raises(StoreError) as error:
                put(rules, "r", {"n": 3})
            assert "whether" not in str(error.value), "nothing was sent"
            with pytest.raises(StoreError, match="the outcome of the write is unknown"):
                rules.note(ALICE, "reset", "x")
            proxy.pass_all()
            assert put(rules, "r", {"n": 4}).version == 2
            assert [e.after for e in direct.audit(AuditQuery())] == [{"n": 4}, {"n": 1}]


def test_key_of_another_type_is_refused_before_any_write(rules: RedisRepository, client: Any) -> None:
    for number, key in enumerate(rules.keys):
        client.delete(*rules.keys)
        (client.set if number % 2 else client.sadd)(key, "not ours")
        with pytest.raises(StoreError, match="WRONGTYPE"):
            put(rules, "r", {}, unique_key="slot", expires_us=1)
        assert [client.exists(other) for other in rules.keys if other != key] == [0] * 8
    with pytest.raises(StoreError, match="WRONGTYPE"):
        rules.note(ALICE, "reset", "x")


def test_unknown_layout_is_refused(rules: RedisRepository, client: Any) -> None:
    put(rules, "r", {})
    client.hset(rules.keys.state, "layout", 2)
    for use in (lambda: rules.changes(0), lambda: rules.list("rule"), lambda: put(rules, "r", {})):
        with pytest.raises(StoreError, match="have layout 2, and this version of Crestgate supports layout 1"):
            use()
    assert client.xlen(rules.keys.audit) == 1


# -- changes -----------------------------------------------------------------------------------------------------------


def test_polling_costs_two_commands(url: str) -> None:
    with RedisServer() as server, closing(open_rules(server.url)) as rules:
        rules.write([edit(f"r{n}", {}) for n in range(100)], ALICE)
        revision = changes_since(rules, 0).revision
        server.cli("CONFIG", "RESETSTAT")
        assert [rules.changes(revision) for _ in range(10)] == [None] * 10
        calls = dict(re.findall(r"cmdstat_(\S+):calls=(\d+)", server.cli("INFO", "commandstats")))
        assert {name: calls.pop(name) for name in ("eval", "hmget")} == {"eval": "10", "hmget": "10"}
        assert set(calls) <= {"config|resetstat", "config", "info", "command|docs", "command"}, "redis-cli's own"
        put(rules, "r7", {"n": 1})
        server.cli("CONFIG", "RESETSTAT")
        assert ids(changes_since(rules, revision).records) == ["r7"]
        assert "cmdstat_hget:calls=1," in server.cli("INFO", "commandstats"), "only changed records are fetched"


def test_changes_beyond_the_retained_log_are_complete(url: str, client: Any) -> None:
    with closing(open_rules(url, max_changes=4)) as rules:
        put(rules, "gone", {})
        rules.write([edit("gone", None)], ALICE)
        for n in range(6):
            put(rules, f"r{n % 3}", {"n": n})
        assert client.hget(rules.keys.state, "compacted") == b"4"
        assert client.zcard(rules.keys.writes) == client.zcount(rules.keys.writes, 4, 8) == 5
        whole = changes_since(rules, 3)
        assert (whole.complete, whole.revision, sorted(ids(whole.records))) == (True, 8, ["r0", "r1", "r2"])
        part = changes_since(rules, 6)
        assert (part.complete, sorted(ids(part.records))) == (False, ["r1", "r2"])
        assert changes_since(rules, 4).complete is False
        assert client.hlen(rules.keys.deleted) == 0, "a deletion is dropped with its change"
        assert put(rules, "gone", {}).version == 1


def test_write_larger_than_the_retained_log(url: str, client: Any) -> None:
    with closing(open_rules(url, max_changes=4)) as rules:
        put(rules, "a", {})
        rules.write([edit(f"r{n}", {}) for n in range(10)], ALICE)
        assert (changes_since(rules, 1).complete, len(changes_since(rules, 1).records)) == (False, 10)
        put(rules, "b", {})
        assert changes_since(rules, 1).complete is True
        assert ids(changes_since(rules, 2).records) == ["b"]
        assert client.zcard(rules.keys.changed) == 1


def test_promoted_replica_that_lags_reuses_revisions(url: str, rules: RedisRepository, client: Any) -> None:
    put(rules, "r", {"n": 1})
    put(rules, "r", {"n": 2})
    older = {key: client.dump(key) for key in rules.keys if client.exists(key)}

    def promote() -> None:
        client.delete(*rules.keys)
        for key, state in older.items():
            client.restore(key, 0, state)

    with closing(open_rules(url)) as writer:
        put(writer, "lost", {"n": 3})
        assert (changes_since(rules, 0).revision, len(changes_since(rules, 0).records)) == (3, 2)
        promote()
        changes = changes_since(rules, 3)
        assert (changes.revision, changes.complete, ids(changes.records)) == (2, True, ["r"])
        assert changes.replaced

        put(writer, "lost", {"n": 3})
        assert changes_since(rules, 2).revision == 3
        promote()
        put(writer, "other", {"n": 3})
        changes = changes_since(rules, 3)
        assert (changes.revision, changes.complete, sorted(ids(changes.records))) == (3, True, ["other", "r"])
        assert changes.replaced
        assert rules.changes(3) is None, "it is reported once"

        promote()
        put(writer, "third", {"n": 3})
        put(writer, "fourth", {"n": 3})
        changes = changes_since(rules, 3)
        assert (changes.revision, changes.complete, sorted(ids(changes.records))) == (4, True, ["fourth", "r", "third"])
        put(writer, "fifth", {"n": 3})
        changes = changes_since(rules, 4)
        assert (changes.revision, changes.complete, ids(changes.records)) == (5, False, ["fifth"])
        assert not changes.replaced


def test_server_that_lost_everything(rules: RedisRepository, client: Any) -> None:
    put(rules, "r", {})
    assert changes_since(rules, 0).revision == 1
    client.delete(*rules.keys)
    changes = changes_since(rules, 1)
    assert (changes.revision, changes.complete, list(changes.records)) == (0, True, [])
    assert put(rules, "s", {}).version == 1
    assert changes_since(rules, 1).complete is True, "revision 1 is another one now"


# -- housekeeping ------------------------------------------------------------------------------------------------------


def test_records_expired_for_a_day_are_swept_hourly(rules: RedisRepository, client: Any) -> None:
    now_us = put(rules, "now", {}).updated_us
    put(rules, "yesterday", {"n": 1}, unique_key="slot", expires_us=now_us - DAY_US - 1)
    put(rules, "today", {"n": 2}, expires_us=now_us - DAY_US // 2)
    put(rules, "later", {"n": 3}, expires_us=now_us + DAY_US)
    assert ids(rules.list("rule")) == ["later", "now", "today", "yesterday"], "swept with the first write"
    assert int(client.hget(rules.keys.state, "swept_us")) == now_us
    client.hset(rules.keys.state, "swept_us", now_us - 3600 * 1_000_000)
    revision = changes_since(rules, 0).revision
    made = put(rules, "new", {})
    changes = changes_since(rules, revision)
    assert (ids(changes.records), list(changes.deleted)) == (["new"], [("rule", "yesterday")])
    assert (changes.revision, int(client.hget(rules.keys.state, "swept_us"))) == (revision + 1, made.updated_us)
    swept, created = sorted(rules.audit(AuditQuery(limit=2)), key=lambda e: e.action, reverse=True)
    assert (swept.actor, swept.action, swept.subject) == ("crestgate", "expire", "rule:yesterday")
    assert (swept.before, swept.after, created.subject) == ({"n": 1}, None, "rule:new")
    assert client.hget(rules.keys.claims, "slot") is None
    assert client.zrange(rules.keys.ends, 0, -1) == [b"rule:today", b"rule:later"]
    assert put(rules, "yesterday", {}).version == 2


def test_sweep_skips_records_of_the_same_write(rules: RedisRepository, client: Any) -> None:
    for name in ("renewed", "rival", "deleted"):
        put(rules, name, {}, unique_key=name, expires_us=1)
    client.hset(rules.keys.state, "swept_us", 0)
    rules.write(
        [edit("renewed", {"n": 2}, unique_key="renewed"), edit("heir", {}, unique_key="rival"), edit("deleted", None)],
        ALICE,
    )
    assert [(r.id, r.version, r.unique_key) for r in rules.list("rule")] == [
        ("heir", 1, "rival"),
        ("renewed", 2, "renewed"),
    ]
    actions = [(e.action, e.subject) for e in rules.audit(AuditQuery(limit=4))]
    assert sorted(actions) == [
        ("create", "rule:heir"),
        ("delete", "rule:deleted"),
        ("expire", "rule:rival"),
        ("update", "rule:renewed"),
    ]
    assert client.hgetall(rules.keys.claims) == {b"renewed": b"rule:renewed", b"rival": b"rule:heir"}


def test_incomplete_sweep_continues_with_the_next_write(rules: RedisRepository, client: Any) -> None:
    rules.write([edit(f"r{n}", {}, expires_us=1) for n in range(1001)], ALICE)
    client.hset(rules.keys.state, "swept_us", 0)
    put(rules, "x", {})
    assert (len(rules.list("rule", limit=2000)), client.hget(rules.keys.state, "swept_us")) == (2, b"0")
    put(rules, "x", {})
    assert ids(rules.list("rule")) == ["x"]
    assert client.hget(rules.keys.state, "swept_us") != b"0"


@pytest.mark.parametrize("add", ["write", "note", "purge"])
def test_audit_entries_are_retained_for_90_days(rules: RedisRepository, client: Any, add: str) -> None:
    seconds, _ = client.time()
    for days in (91, 89):
        at_us = seconds * 1_000_000 - days * DAY_US
        fields: Any = audit_fields(AuditEntry(at_us, "carol", "", "reset", f"{days} days ago"))
        client.xadd(rules.keys.audit, fields, id=f"{at_us // 1000}-0")
    if add == "purge":
        rules.purge()
        assert [e.subject for e in rules.audit(AuditQuery())] == ["89 days ago"]
        return
    if add == "write":
        put(rules, "r", {})
    else:
        rules.note(ALICE, "create", "rule:r")
    assert [e.subject for e in rules.audit(AuditQuery())] == ["rule:r", "89 days ago"]
    assert [e.subject for e in rules.audit(AuditQuery(until_us=(seconds - 3600) * 1_000_000))] == ["89 days ago"]
    assert [e.subject for e in rules.audit(AuditQuery(since_us=(seconds - 3600) * 1_000_000))] == ["rule:r"]


def test_long_audit_log_is_paged(rules: RedisRepository) -> None:
    rules.note(ALICE, "reset", "the first")
    rules.write([edit(f"r{n:04}", {}) for n in range(2500)], ALICE)
    assert [e.subject for e in rules.audit(AuditQuery(subject="the first"))] == ["the first"]
    entries = rules.audit(AuditQuery(limit=5000))
    assert [e.subject for e in entries] == [*(f"rule:r{n:04}" for n in reversed(range(2500))), "the first"]
    assert rules.audit(AuditQuery(before="0" * 15 + "-" + "0" * 10)) == []
    with pytest.raises(ValueError, match="the id of an audit entry"):
        rules.audit(AuditQuery(before="yesterday"))


# -- unreadable records ------------------------------------------------------------------------------------------------

GOOD = '{"version":1,"created_us":1,"updated_us":1,"claim":null,"expires_us":null,"body":{}}'


@pytest.mark.parametrize(
    ("name", "text"),
    [
        ("rule:broken", "{"),
        ("rule:broken", "[" * 100_000),
        ("rule:broken", b"\xff"),
        ("rule:broken", "[]"),
        ("rule:broken", "{}"),
        ("rule:broken", GOOD.replace('"version":1', '"version":true')),
        ("rule:broken", GOOD.replace('"expires_us":null', '"expires_us":"soon"')),
        ("rule:broken", GOOD.replace('"claim":null', '"claim":7')),
        ("rule:broken", GOOD.replace("{}", "[]")),
        ("cake:broken", GOOD),
        (b"rule:\xff", GOOD),
    ],
)
def test_unreadable_record_is_named(rules: RedisRepository, client: Any, name: str | bytes, text: str | bytes) -> None:
    put(rules, "fine", {})
    client.hset(rules.keys.records, name, text)
    field = name if isinstance(name, str) else "rule:\\xff"
    changes = changes_since(rules, 0)
    assert ids(changes.records) == ["fine"], "the others are read"
    (unreadable,) = changes.unreadable
    (problem,) = unreadable.problems
    assert f"{unreadable.kind}:{unreadable.id}" == field
    assert (problem.field, problem.file) == (field, f"{rules.title}, {rules.keys.records}")
    assert put(rules, "fine", {}).version == 2, "readable records can still be written"
    assert len(changes_since(rules, 0).unreadable) == 1
    if name == "rule:broken":
        with pytest.raises(ValidationError, match="broken"):
            rules.get("rule", "broken")
        with pytest.raises(ValidationError, match="broken"):
            put(rules, "broken", {})
        rules.write([edit("broken", None)], ALICE)
        changes = changes_since(rules, changes.revision)
        assert (changes.deleted, changes.unreadable) == ([("rule", "broken")], []), "it can be deleted"


def test_claim_of_a_deleted_unreadable_record_is_free(rules: RedisRepository, client: Any) -> None:
    put(rules, "broken", {}, unique_key="slot")
    client.hset(rules.keys.records, "rule:broken", "{")
    rules.write([edit("broken", None)], ALICE)
    put(rules, "broken", {}, unique_key="another slot")
    put(rules, "heir", {}, unique_key="slot")
    with pytest.raises(ConflictError):
        put(rules, "third", {}, unique_key="slot")


def test_all_unreadable_records_are_named(rules: RedisRepository, client: Any) -> None:
    rules.write([edit(name, {}) for name in ("a", "b", "c")], ALICE)
    client.hset(rules.keys.records, mapping={"rule:a": "?", "rule:c": "?"})
    with pytest.raises(ValidationError) as raised:
        rules.list("rule")
    assert sorted(problem.field for problem in raised.value.problems) == ["rule:a", "rule:c"]
    changes = changes_since(rules, 0)
    assert (ids(changes.records), sorted(one.id for one in changes.unreadable)) == (["b"], ["a", "c"])
    client.xadd(rules.keys.audit, {"at_us": "x"})
    with pytest.raises(ValidationError, match=":rules:audit: "):
        rules.audit(AuditQuery())


def test_sweep_skips_unreadable_records(rules: RedisRepository, client: Any) -> None:
    put(rules, "broken", {}, expires_us=1)
    client.hset(rules.keys.records, "rule:broken", "?")
    client.hset(rules.keys.state, "swept_us", 0)
    assert put(rules, "r", {}).version == 1
    assert client.hget(rules.keys.records, "rule:broken") == b"?"


# -- forks -------------------------------------------------------------------------------------------------------------


def test_fork_during_concurrent_writes(url: str, rules: RedisRepository) -> None:
    done = threading.Event()

    def work() -> int:
        rounds = 0
        while not done.is_set():
            put(rules, "r", {"n": rounds})
            rounds += 1
        return rounds

    with ThreadPoolExecutor(3) as pool:
        working = [pool.submit(work) for _ in range(3)]
        statuses = [run_in_child(lambda n=n: assert_created(rules, f"child{n}")) for n in range(10)]  # type: ignore[misc]  # n is bound
        done.set()
        rounds = sum(future.result() for future in working)
    assert statuses == [0] * 10
    assert changes_since(rules, 0).revision == rounds + 10


def assert_created(rules: RedisRepository, name: str) -> None:
    assert put(rules, name, {}, expected=0).version == 1
