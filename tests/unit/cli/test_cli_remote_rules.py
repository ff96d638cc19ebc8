"""`crestgate rules` with a running service: paging, calls, versions."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from crestgate.rules.compat.policies import Policy
from unit.cli.conftest import Run
from unit.cli.fake_service import TOKEN, FakeService, fake_service, refusal

RULES = """\
rules:
  - {rule_id: "orders/a b", dimension: user, endpoint_pattern: "/orders/*", limit: 3, window_seconds: 60}
  - {rule_id: trial, dimension: ip, mode: shadow, limit: 1, window_seconds: 0.5, expires_at: "2999-01-01T00:00:00Z"}
plans: {gold: 10/second burst 20}
policies:
  - {key: user-123, capacity: 100, refillRate: 10}
clients:
  - {clientId: acme, limits: [{limitType: DEFAULT, timeIntervalLimit: {timeUnit: MIN, maxRequests: 50}}]}
"""
ADDED = ["client:acme:DEFAULT:GLOBAL", "orders/a b", "trial"]


@pytest.fixture
def service(monkeypatch: pytest.MonkeyPatch, folder: Path) -> Iterator[FakeService]:
    with fake_service() as one:
        monkeypatch.setenv("CRESTGATE_URL", one.url)
        monkeypatch.setenv("CRESTGATE_ADMIN_KEY", TOKEN)
        (folder / "rules.yaml").write_text(RULES)
        yield one


def rule(rule_id: str, **more: Any) -> dict[str, Any]:
    return {"rule_id": rule_id, "dimension": "user", "limit": 3, "window_seconds": 60, **more}


def write_calls(service: FakeService) -> list[tuple[str, str]]:
    """Requests other than GET."""
    return [(method, path) for method, path, _ in service.requests if method != "GET"]


def test_rules_are_listed_page_by_page(run: Run, service: FakeService) -> None:
    service.page = 2
    for number in range(5):
        service.put(rule(f"r{number}", method=f"M{number}"), version=number + 1)
    listed = json.loads(run("rules", "list", "--json").out)
    assert listed == [service.rules[f"r{number}"].to_data() for number in range(5)]
    assert [path for _, path, _ in service.requests][:2] == [
        "/api/v1/rules?limit=1000&after=&expired=true",
        "/api/v1/rules?limit=1000&after=r1&expired=true",
    ]
    assert run("rules", "list", "--mode", "shadow").out == "no rules\n"
    assert run("rules", "list").out.count("\n") == 6


def test_usage_of_one_rule(run: Run, service: FakeService) -> None:
    service.put(rule("a/b c%2F"))
    assert json.loads(run("rules", "get", "a/b c%2F", "--json").out) == service.rules["a/b c%2F"].to_data()
    assert service.requests == [("GET", "/api/v1/rules/a%2Fb%20c%252F", None)]
    code, _, err = run("rules", "get", "a/b c")
    assert (code, err) == (2, "crestgate: there is no rule 'a/b c': did you mean 'a/b c%2F'?\n")


def test_files_are_applied_and_are_the_same_afterwards(run: Run, service: FakeService) -> None:
    code, out, err = run("rules", "apply", "-f", "rules.yaml")
    assert (code, err) == (0, "")
    assert out.endswith(f"{service.url}: 5 added, 0 changed, 0 unchanged\n")
    assert sorted(service.rules) == ADDED
    assert service.plans == {"gold": ["10/second burst 20"]}
    policy = {"type": "TOKEN_BUCKET", "capacity": 100, "refillRate": 10, "windowSeconds": 60}
    assert ("POST", "/admin/policies", {"key": "user-123", **policy}) in service.requests, (
        "the service assigns its number"
    )
    service.put(Policy("user-123", capacity=100, refill_rate=10, id=7).rule().body())
    service.requests.clear()
    code, out, err = run("rules", "diff", "-f", "rules.yaml")
    assert (code, out, err) == (0, "no differences, 5 compared\n", "")
    assert run("rules", "apply", "-f", "rules.yaml").out == f"{service.url}: 0 added, 0 changed, 5 unchanged\n"
    assert write_calls(service) == []


def test_update_sends_the_version_that_was_read(run: Run, service: FakeService, folder: Path) -> None:
    service.put(rule("a"), version=4)
    service.plans["gold"] = ["1/second"]
    (folder / "one.yaml").write_text(json.dumps({"rules": [rule("a", limit=9)], "plans": {"gold": "2/second"}}))
    code, out, _ = run("rules", "diff", "-f", "one.yaml")
    assert (code, "    limit: 3 -> 9\n" in out) == (1, True)
    service.headers.clear()
    assert run("rules", "apply", "-f", "one.yaml").code == 0
    assert (service.rules["a"].limit, service.rules["a"].version) == (9, 5)
    assert service.plans["gold"] == ["2/second"]
    assert [headers["if-match"] for headers in service.headers if "if-match" in headers] == ['"4"']


def test_dry_run_writes_nothing(run: Run, service: FakeService) -> None:
    service.put(rule("old"))
    code, out, _ = run("rules", "apply", "-f", "rules.yaml", "--prune", "--dry-run")
    assert (code, "would be deleted  rule old\n" in out) == (0, True)
    assert write_calls(service) == []


def test_prune_deletes_first_and_keeps_rules_of_files(run: Run, service: FakeService, folder: Path) -> None:
    service.put(rule("old"), version=3)
    service.put(rule("of-a-file", method="GET"), created_us=None)
    (folder / "one.yaml").write_text(json.dumps([rule("new")]))
    assert run("rules", "apply", "-f", "one.yaml", "--prune").err == (
        "crestgate: --prune would delete 1 rule not in the files: add --yes, or look with --dry-run\n"
    )
    assert run("rules", "apply", "-f", "one.yaml", "--prune", "--yes").code == 0
    assert sorted(service.rules) == ["new", "of-a-file"]
    assert write_calls(service) == [("DELETE", "/api/v1/rules/old"), ("POST", "/api/v1/rules")]


def test_partial_success_is_reported(
    run: Run, service: FakeService, folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (folder / "one.yaml").write_text(json.dumps([rule("a"), rule("b", method="GET"), rule("c", method="PUT")]))
    original = service.respond

    def respond(*call: Any) -> Any:
        if call[0] == "POST" and call[3]["rule_id"] == "b":
            return refusal(409, "its slot is taken")
        return original(*call)

    monkeypatch.setattr(service, "respond", respond)
    code, out, err = run("rules", "apply", "-f", "one.yaml")
    assert (code, out) == (2, "")
    assert err == ("crestgate: its slot is taken (1 of 3 were already written; correct it and run it again)\n")
    assert sorted(service.rules) == ["a"]


def test_concurrent_change_is_refused(
    run: Run, service: FakeService, folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    service.put(rule("a"), version=1)
    (folder / "one.yaml").write_text(json.dumps([rule("a", limit=9)]))
    original = service.respond

    def respond(*call: Any) -> Any:
        if call[0] == "PUT":
            service.put(rule("a", limit=5), version=2)
        return original(*call)

    monkeypatch.setattr(service, "respond", respond)
    code, _, err = run("rules", "apply", "-f", "one.yaml")
    assert (code, err) == (2, "crestgate: rule 'a' is at version 2: read it again\n")
    assert service.rules["a"].limit == 5


def test_delete_rules(run: Run, service: FakeService) -> None:
    service.put(rule("a"))
    service.put(rule("b", method="GET"), version=3)
    code, _, err = run("rules", "delete", "a", "bb")
    assert (code, err) == (2, "crestgate: there is no rule 'bb': did you mean 'b'?\n")
    assert write_calls(service) == [], "none, if one is missing"
    assert run("rules", "delete", "a", "b", "a").out == "deleted  rule a\ndeleted  rule b\n"
    assert service.rules == {}
    assert write_calls(service) == [("DELETE", "/api/v1/rules/a"), ("DELETE", "/api/v1/rules/b")]


def test_records_that_the_api_does_not_take(run: Run, service: FakeService, folder: Path) -> None:
    for text, kind in (("tiers: {alice: premium}", "tier 'alice'"), ("policy_key: ip", "default 'policy_key'")):
        (folder / "one.yaml").write_text(f"{text}\n")
        for command in ("apply", "diff"):
            code, out, err = run("rules", command, "-f", "one.yaml")
            assert (code, out) == (2, "")
            assert err == (
                f"crestgate: {kind} cannot be written through a service, which accepts rules, plans, policies and "
                "clients: write it to its database with --rules-store URL\n"
            )
    assert run("rules", "list", "--yaml", "--all").err == (
        "crestgate: a service lists rules and plans, but no defaults: use its database, with --rules-store URL\n"
    )
    assert write_calls(service) == []


def test_response_without_rules(run: Run, service: FakeService) -> None:
    for response, expected in (
        ({"rules": 5}, "its response has no rules"),
        ({"rules": [5]}, "it returned an invalid rule"),
    ):
        service.responses = [(200, response)]
        code, _, err = run("rules", "list")
        assert (code, err) == (
            2,
            f"crestgate: {service.url}: {expected}: is this the address of a Crestgate service?\n",
        )
