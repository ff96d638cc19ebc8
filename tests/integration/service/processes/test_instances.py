"""Two instances with one Redis for counters and one database for rules are one service."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from contextlib import closing
from functools import partial
from typing import Any

import pytest

from crestgate.config.settings import load_settings
from crestgate.history.factory import open_history
from integration.rules.repositories import repository_url
from integration.service.processes.concurrent_clients import Client, check_concurrently, count_admitted, wait_until
from integration.service.processes.parallel_start import start_services
from integration.service.service_process import Service

RULES = ["mariadb", "postgres", "redis"]
BOUND = 2.0
CHANGES = 3
LIMIT = 100
CALLERS = 40
Pair = tuple[Service, Service]
Report = Callable[[str], None]


@pytest.fixture(scope="module", params=RULES)
def pair(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Pair]:
    """Two instances whose rules are in a database of this kind."""
    kind: str = request.param
    counters = f"{request.getfixturevalue('redis_server').url}?prefix=instances-{kind}&timeout_ms=20000"
    config = f"store: '{counters}'\nrules_store: '{repository_url(kind, request)}'\n"
    key = {"CRESTGATE_ADMIN_KEY": "the-operator-of-both"}

    starts = [partial(Service, tmp_path_factory.mktemp(folder), config, key) for folder in ("one", "other")]
    with start_services(*starts) as (one, other):
        yield one, other


def user_check(user: str, endpoint: str) -> dict[str, object]:
    return {"dimension": "user", "identifier": user, "endpoint": endpoint}


def test_rule_changed_on_one_instance_applies_on_the_other(pair: Pair, report: Report) -> None:
    one, other = pair
    waits = []
    with Client(one, one.key) as writer, Client(other) as reader:

        def decision() -> Any:
            return reader.check(user_check("reader", "/bound")).data

        for limit in range(1_000_001, 1_000_001 + CHANGES):
            writer.put_rule("bound", limit, endpoint_pattern="/bound")
            waits.append(wait_until(f"the limit is {limit}", lambda limit=limit: decision()["limit"] == limit))  # type: ignore[misc]
        assert writer.request("DELETE", "/api/v1/rules/bound").status == 204
        waits.append(wait_until("it is gone", lambda: decision()["reason"] == "no_rule"))
    report(f"{len(waits)} changes bound after {max(waits):.2f} s at most")
    assert max(waits) < BOUND


def test_shared_limit_is_exact_across_instances(pair: Pair, report: Report) -> None:
    with Client(pair[0], pair[0].key) as writer, Client(pair[1]) as reader:
        writer.put_rule("shared", LIMIT, endpoint_pattern="/shared")
        other_user = user_check("nobody", "/shared")
        wait_until(
            "the other instance has the rule",
            lambda: reader.request("POST", "/api/v1/quota", other_user).data["limit"] == LIMIT,
        )
    responses = check_concurrently(pair, [user_check("shared", "/shared")] * (4 * LIMIT), CALLERS, workers=2)
    report(
        f"{len(responses)} checks of {CALLERS} callers, half on each: {count_admitted(responses)} of {LIMIT} admitted"
    )
    assert count_admitted(responses) == LIMIT


def test_audit_log_is_shared_by_instances(pair: Pair) -> None:
    one, other = pair
    with Client(one, one.key) as writer, Client(other, other.key) as reader:
        writer.put_rule("audited", 5, endpoint_pattern="/audited")
        entries = reader.request("GET", "/api/v1/audit?subject=rule:audited").data["entries"]
        assert [(entry["actor"], entry["action"]) for entry in entries] == [("key:admin", "create")]


def test_history_has_the_checks_of_both_instances(pair: Pair, report: Report) -> None:
    """Unwritten history is flushed when an instance stops, so the test does not wait for it."""
    with Client(pair[0], pair[0].key) as writer, Client(pair[1]) as reader:
        writer.put_rule("history", LIMIT, endpoint_pattern="/history")
        other_user = user_check("nobody", "/history")
        wait_until(
            "the other instance has the rule",
            lambda: reader.request("POST", "/api/v1/quota", other_user).data["limit"] == LIMIT,
        )
    responses = check_concurrently(pair, [user_check("history", "/history")] * (2 * LIMIT), CALLERS, workers=2)
    assert count_admitted(responses) == LIMIT
    assert [service.stop() for service in pair] == [0, 0]
    now_us = time.time_ns() // 1000
    with closing(open_history(rules_url(pair[0]))) as history:
        minutes = history.usage(now_us - 3_600_000_000, now_us + 60_000_000, "minute", "history")
    assert sum(minute.allowed for minute in minutes) == LIMIT
    assert sum(minute.denied for minute in minutes) == LIMIT
    report(f"{LIMIT} allowed and {LIMIT} denied on two instances: all of them in {len(minutes)} minute(s) of history")


def rules_url(service: Service) -> str:
    """The URL of its rule store, from its settings."""
    url = load_settings(str(service.folder / "crestgate.yaml"), {}).rules_store
    assert url is not None
    return url
