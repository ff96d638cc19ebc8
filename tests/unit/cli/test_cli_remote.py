"""Commands with a running service: its URL, its key, its errors."""

from __future__ import annotations

import json
import socket
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from unit.cli.conftest import Run
from unit.cli.fake_service import TOKEN, FakeService, fake_service, refusal

DECISION: dict[str, Any] = {
    "allowed": True,
    "limit": 20,
    "remaining": 15,
    "current_count": 5,
    "reset_at": 1_700_000_001,
    "reset_after": 0.5,
    "retry_after": None,
    "reason": "ok",
    "rule": "gold",
    "state": "normal",
    "delay": 0.0,
}
DENIED = {**DECISION, "allowed": False, "remaining": 0, "retry_after": 2.5, "reason": "limited", "state": "throttled"}


@pytest.fixture
def service(monkeypatch: pytest.MonkeyPatch) -> Iterator[FakeService]:
    """A service named in the environment, with its key."""
    with fake_service() as one:
        monkeypatch.setenv("CRESTGATE_URL", one.url)
        monkeypatch.setenv("CRESTGATE_ADMIN_KEY", f"{TOKEN}\n")
        yield one


# -- check, peek, reset ---------------------------------------------------------------------------------------------


def test_key_under_plans(run: Run, service: FakeService) -> None:
    service.responses = [(200, DECISION)]
    assert run("check", "user:42", "--plan", "gold", "-p", "daily", "--cost", "5") == (
        0,
        "allowed\n"
        "LIMIT  ALLOWED  REMAINING  OF  RESETS IN  RETRY AFTER  DELAY  STATE\n"
        "gold   yes      15         20  0.5 s      -            -      normal\n",
        "",
    )
    assert service.requests == [("POST", "/api/v1/check", {"key": "user:42", "plans": ["gold", "daily"], "cost": 5})]
    assert service.headers[0]["authorization"] == f"Bearer {TOKEN}"
    assert service.headers[0]["content-type"] == "application/json"


def test_denial(run: Run, service: FakeService) -> None:
    service.responses = [(200, DENIED), (200, DENIED), (200, {**DENIED, "retry_after": None, "reason": "blocked"})]
    code, out, err = run("check", "user:42", "--limit", "gold")
    assert (code, err) == (1, "")
    assert out.startswith("denied by gold: retry after 2.5 s\n")
    assert service.requests[0][2] == {"key": "user:42", "plans": ["gold"], "cost": 1}
    assert run("peek", "user:42").out.startswith("would be denied by gold")
    assert service.requests[1] == ("POST", "/api/v1/quota", {"key": "user:42", "cost": 1})
    assert run("peek", "user:42").out.startswith("would be denied by gold: it blocks all requests\n")


def test_chain_with_shadows(run: Run, service: FakeService) -> None:
    part = {**DECISION, "rule": "daily", "limit": 500, "remaining": 495}
    service.responses = [(200, {**DECISION, "reason": "shadow", "parts": [DECISION, part], "shadows": [DENIED]})]
    lines = run("check", "user:42").out.splitlines()
    assert lines[0] == "allowed, though a shadow rule would deny it"
    assert [line.split()[0] for line in lines[1:]] == ["LIMIT", "gold", "daily", "gold"]
    assert lines[4].startswith("gold (shadow)  no ")


def test_no_rule(run: Run, service: FakeService) -> None:
    service.responses = [(200, {**DECISION, "reason": "no_rule", "rule": None, "limit": 0, "remaining": 0})]
    assert run("check", "--user", "bob").out == "allowed: no rule applies\n"


def test_request_options(run: Run, service: FakeService) -> None:
    service.responses = [(200, DECISION), (200, DECISION)]
    fields = {"user": "42", "ip": "192.0.2.1", "api_key": "k", "client": "acme", "path": "/x", "method": "GET"}
    options = [text for name, value in fields.items() for text in (f"--{name.replace('_', '-')}", value)]
    assert run("check", *options, "--tier", "gold").code == 0
    assert service.requests[0][2] == {"context": {**fields, "tier": "gold"}, "cost": 1}
    assert run("check", "--key", "user:42").code == 0
    assert service.requests[1][2] == {"key": "user:42", "cost": 1}
    code, _, err = run("check", "--key", "user:42", "--user", "bob")
    assert (code, err) == (
        2,
        "crestgate: a service accepts a key alone: leave out --key, or the other request options\n",
    )


def test_json_is_the_response_of_the_service(run: Run, service: FakeService) -> None:
    service.responses = [(200, DENIED)]
    code, out, _ = run("check", "user:42", "--json")
    assert (code, json.loads(out)) == (1, DENIED)


def test_limit_option_is_refused_with_a_service(run: Run, service: FakeService) -> None:
    for option in ("--limit", "-l"):
        code, out, err = run("check", "user:42", option, "10/min")
        assert (code, out) == (2, "")
        assert err == (
            "crestgate: a service decides by its own plans and rules, not by a limit such as '10/min': write --plan "
            "NAME, or leave it out for the policy of the key\n"
        )
    assert run("check", "user:42", "--plan", "10/min").err == (
        "crestgate: --plan names a plan, and '10/min' is a limit: write --limit '10/min'\n"
    )
    assert service.requests == []


def test_reset(run: Run, service: FakeService) -> None:
    service.responses = [(200, {"reset": [{"key": "user:42", "rule": "gold"}]})] * 2 + [(200, {"reset": []})]
    assert run("reset", "user:42", "--plan", "gold").out == "reset 1 counter\nKEY      LIMIT\nuser:42  gold\n"
    assert service.requests == [("POST", "/api/v1/reset", {"key": "user:42", "plans": ["gold"]})]
    assert json.loads(run("reset", "user:42", "--json").out) == {"reset": [{"key": "user:42", "rule": "gold"}]}
    assert run("reset", "--user", "bob").out == "no rule applies: there is nothing to reset\n"


# -- URL and key of the service -------------------------------------------------------------------------------------


def test_options_override_the_environment(run: Run, service: FakeService, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CRESTGATE_URL", "http://127.0.0.1:1")
    monkeypatch.setenv("CRESTGATE_ADMIN_KEY", "another-key-altogether")
    service.responses = [(200, DECISION)]
    assert run("check", "user:42", "--url", f"{service.url}/", "--token", TOKEN).code == 0
    assert service.headers[0]["authorization"] == f"Bearer {TOKEN}"


def test_local_option_overrides_the_service_variable(run: Run, service: FakeService, folder: Path) -> None:
    assert run("check", "user:42", "--limit", "10/min", "--store", f"shared://{folder}/counters").code == 0
    assert run("rules", "list", "--rules-store", "sqlite:///none.db").err.startswith("crestgate: SQLite file ")
    assert service.requests == []
    for command, option in (("check user:42", "--store"), ("rules list", "--rules-store"), ("rules list", "--config")):
        code, _, err = run(*command.split(), "--url", service.url, option, "x")
        assert (code, err) == (
            2,
            f"crestgate: --url uses a service, which has its own stores and settings: leave {option} out\n",
        )


def test_without_a_key_no_key_is_sent(run: Run, service: FakeService, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("CRESTGATE_ADMIN_KEY")
    service.responses = [(200, DECISION)]
    assert run("check", "user:42").code == 0
    assert "authorization" not in service.headers[0]
    code, _, err = run("rules", "list")
    assert code == 2
    assert err == (
        f"crestgate: {service.url}: API key required: send it as `Authorization: Bearer …`, or in X-API-Key (set "
        "CRESTGATE_ADMIN_KEY; to create a key, run `crestgate keys create NAME --scope read` on the service's machine, "
        "in its folder, without CRESTGATE_URL)\n"
    )


def test_token_needs_a_url(run: Run) -> None:
    code, _, err = run("check", "user:42", "--limit", "1/s", "--token", TOKEN)
    assert (code, err) == (
        2,
        "crestgate: --token is the key of a service: write its --url, or set CRESTGATE_URL\n",
    )


@pytest.mark.parametrize("token", ["with blanks in it", "with-a-line\nX-Other: header", "not-ASCII-é"])
def test_invalid_key_is_refused_and_not_shown(run: Run, service: FakeService, token: str) -> None:
    code, out, err = run("check", "user:42", "--token", token)
    assert (code, out) == (2, "")
    assert err == "crestgate: --token is not a key: a key is printable ASCII without spaces\n"
    assert service.requests == []


@pytest.mark.parametrize(
    "url",
    [
        "127.0.0.1:8080",
        "localhost",
        "ftp://localhost",
        "http://",
        "http:///path",
        "http://localhost:port",
        "http://localhost:99999",
        "http://localhost?x=1",
        "http://localhost#x",
        "file:///etc/passwd",
        "http://[::1",
    ],
)
def test_invalid_service_url(run: Run, url: str) -> None:
    code, out, err = run("check", "user:42", "--url", url)
    assert (code, out) == (2, "")
    assert err == f"crestgate: the URL of a service must be such as http://127.0.0.1:8080, not {url!r}\n"


def test_url_with_a_password_is_refused(run: Run) -> None:
    for url in ("http://user:secret@localhost", "http://secret@localhost:8080/x"):
        code, _, err = run("check", "user:42", "--url", url)
        assert (code, err) == (
            2,
            "crestgate: the URL of a service must not have a user or password: set CRESTGATE_ADMIN_KEY to its key\n",
        )


# -- errors ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("status", "detail", "expected"),
    [
        (400, "plans[0]: there is no plan 'gold'", "{url}: plans[0]: there is no plan 'gold'"),
        (403, "the API key 'ci' has scope check, and this call needs read", "{url}: the API key 'ci' has scope check"),
        (404, "there is no rule 'x'", "there is no rule 'x'"),
        (409, "it exists already", "it exists already"),
        (412, "read it again", "read it again"),
        (413, "the body is too large", "{url}: the body is too large"),
        (429, "too many reads", "{url}: too many reads"),
        (503, "the store is away", "{url}: the store is away"),
        (
            401,
            "unknown API key",
            "{url}: unknown API key (see CRESTGATE_ADMIN_KEY, or --token; "
            "to create a key, run `crestgate keys create NAME --scope read` on the service's machine, "
            "in its folder, without CRESTGATE_URL)",
        ),
    ],
)
def test_error_response_is_printed(run: Run, service: FakeService, status: int, detail: str, expected: str) -> None:
    service.responses = [refusal(status, detail)]
    code, out, err = run("check", "user:42")
    assert (code, out) == (2, "")
    assert err.startswith(f"crestgate: {expected.format(url=service.url)}")
    assert err.count("\n") == 1
    assert TOKEN not in err


@pytest.mark.parametrize(
    ("status", "body", "expected"),
    [
        (200, b"<html>hello</html>", "its response is not a JSON object"),
        (200, b"[]", "its response is not a JSON object"),
        (200, b"[" * 100_000, "its response is not a JSON object"),
        (200, b"", "its response is not a JSON object"),
        (200, {"hello": "world"}, "its response is not a decision"),
        (200, {**DECISION, "remaining": "many"}, "its response is not a decision"),
        (200, {**DECISION, "retry_after": "soon"}, "its response is not a decision"),
        (200, {**DECISION, "parts": [{}]}, "its response is not a decision"),
        (200, {**DECISION, "parts": 5}, "its response is not a decision"),
        (404, b"not here", "it responded 404 Not Found"),
        (502, b"<html>bad gateway</html>", "it responded 502 Bad Gateway"),
        (500, {"detail": ["of", "another", "kind"]}, "it responded 500 Internal Server Error"),
        (302, b"", "it responded 302 Found"),
        (307, b"", "it responded 307 Temporary Redirect"),
    ],
)
def test_foreign_server_is_reported(run: Run, service: FakeService, status: int, body: Any, expected: str) -> None:
    service.responses = [(status, body)]
    code, out, err = run("check", "user:42")
    assert (code, out) == (2, "")
    assert err == f"crestgate: {service.url}: {expected}: is this the address of a Crestgate service?\n"
    assert len(service.requests) == 1


def test_unreachable_service(run: Run) -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        url = f"http://127.0.0.1:{taken.getsockname()[1]}"
        code, out, err = run("check", "user:42", "--url", url)
    assert (code, out) == (2, "")
    assert err == f"crestgate: {url} cannot be reached: Connection refused\n"


def test_control_characters_of_a_response_are_escaped(run: Run, service: FakeService) -> None:
    service.responses = [(200, {**DENIED, "rule": "\x1b[31mred"}), refusal(400, "\x1b[31mred\nand more")]
    assert "\x1b" not in run("check", "user:42").out
    assert "\x1b" not in run("check", "user:42").err
