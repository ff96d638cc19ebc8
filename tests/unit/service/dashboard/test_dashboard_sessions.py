"""Log-in, cookies, scopes and forged requests."""

from __future__ import annotations

from typing import Any

import pytest

from crestgate import Limiter
from crestgate.errors import NotFoundError
from crestgate.rules.port import Actor
from crestgate.service.auth.keys import list_keys, revoke_key
from crestgate.service.auth.sessions import SESSION_SECONDS, Sessions
from unit.service.dashboard.dashboard_client import ADMIN_KEY, COOKIE, Dashboard

PAGES = ["/", "/rules", "/rules/new", "/subjects/user/42", "/explain", "/what-if", "/audit", "/system"]
FORMS = ["/rules/new", "/rules/a/edit", "/rules/a/mode", "/rules/a/delete", "/subjects/user/42/reset"]


@pytest.mark.parametrize("path", PAGES)
def test_pages_need_a_session(anyone: Dashboard, path: str) -> None:
    response = anyone.get(path)
    assert response.status_code == 303
    assert response.headers["location"].startswith("/login")
    assert anyone.get(path, headers={"authorization": f"Bearer {ADMIN_KEY}"}).status_code == 303


def test_log_in_leads_back_to_the_page(anyone: Dashboard) -> None:
    login = anyone.get(anyone.get("/rules?q=orders").headers["location"])
    assert 'value="/rules?q=orders"' in login.text
    response = anyone.post("/login", {"key": ADMIN_KEY, "next": "/rules?q=orders"}, token=False)
    assert (response.status_code, response.headers["location"]) == (303, "/rules?q=orders")
    assert anyone.get("/rules").status_code == 200
    assert anyone.get("/login").status_code == 303


@pytest.mark.parametrize(
    "target", ["//evil.example/", "https://evil.example/", "/\\evil.example", "javascript:alert(1)"]
)
def test_log_in_leads_nowhere_else(anyone: Dashboard, target: str) -> None:
    assert anyone.post("/login", {"key": ADMIN_KEY, "next": target}, token=False).headers["location"] == "/"


def test_cookie_is_kept_from_scripts_and_other_sites(anyone: Dashboard) -> None:
    cookie = anyone.log_in().headers["set-cookie"]
    assert "HttpOnly" in cookie
    assert "SameSite=strict" in cookie
    assert ADMIN_KEY not in cookie
    assert "Secure" not in cookie, "there is no TLS"
    secure = anyone.post("/login", {"key": ADMIN_KEY}, token=False, origin="https://localhost")
    assert "Secure" in secure.headers["set-cookie"], "a proxy ends TLS"


def test_wrong_key_is_refused_and_attempts_are_limited(anyone: Dashboard) -> None:
    statuses = [anyone.log_in(f"wrong-{number}").status_code for number in range(200)]
    assert statuses[0] == 401
    assert statuses[-1] == 429
    assert "set-cookie" not in anyone.log_in("wrong").headers
    assert anyone.log_in().status_code == 303, "the operator is not locked out"


def test_key_that_may_only_check_cannot_log_in(anyone: Dashboard) -> None:
    response = anyone.log_in(anyone.key("check"))
    assert response.status_code == 403
    assert "set-cookie" not in response.headers


def test_changed_cookie_is_worthless(dashboard: Dashboard) -> None:
    cookie = dashboard.http.cookies.get(COOKIE)
    assert cookie is not None
    key_id, end, session_id, signature = cookie.split(".")
    forged = [
        f"{key_id}.{int(end) + 1}.{session_id}.{signature}",
        f"{key_id}.{end}.{'0' * 32}.{signature}",
        f"other.{end}.{session_id}.{signature}",
        f"{key_id}.{end}.{session_id}.{'A' * 43}",
        f"{key_id}.{end}.{session_id}",
        f"{cookie}.x",
        "ü" * 10,
        "." * 190,
        "x" * 10_000,
        "",
    ]
    assert dashboard.sessions.find(cookie) is not None
    assert [one for one in forged if dashboard.sessions.find(one) is not None] == []


def test_session_ends(dashboard: Dashboard) -> None:
    assert dashboard.get("/system").status_code == 200
    dashboard.control.clock.advance(SESSION_SECONDS)
    cookie = dashboard.http.cookies.get(COOKIE)
    assert dashboard.sessions.find(cookie or "") is None
    assert dashboard.get("/system").status_code == 303


def test_session_ends_with_its_key(anyone: Dashboard) -> None:
    token = anyone.key("read")
    assert anyone.log_in(token).status_code == 303
    assert anyone.get("/rules").status_code == 200
    anyone.revoke(token)
    assert anyone.get("/rules").status_code == 303


def test_log_out_ends_the_session_also_for_a_copy_of_the_cookie(dashboard: Dashboard) -> None:
    cookie = dashboard.http.cookies.get(COOKIE)
    assert dashboard.post("/logout").status_code == 303
    dashboard.http.cookies.clear()
    assert dashboard.get("/rules", headers={"cookie": f"{COOKIE}={cookie}"}).status_code == 303


def test_log_out_lasts_on_another_machine_and_after_a_restart(dashboard: Dashboard) -> None:
    cookie = dashboard.http.cookies.get(COOKIE) or ""
    assert dashboard.post("/logout").status_code == 303
    parts, clock = dashboard.control.parts, dashboard.control.clock
    other = Sessions(
        parts.token_key, dashboard.keys, Limiter("memory://", clock=clock), dashboard.log_outs, clock.ticks
    )
    assert other.find(cookie) is None
    assert dashboard.control.actions() == ["create key:log-outs"]
    assert list_keys(parts.repository) == []
    with pytest.raises(NotFoundError):
        revoke_key(parts.repository, Actor("key:a"), "log-outs")


def test_log_outs_are_bounded_and_end_with_their_sessions(
    dashboard: Dashboard, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("crestgate.service.auth.log_outs.MAX_LOG_OUTS", 3)
    log_outs = dashboard.log_outs
    for number in range(5):
        log_outs.add(f"s{number}", 100 + number, 0, Actor("key:a"))
    assert [log_outs.has(f"s{number}") for number in range(5)] == [False, False, True, True, True]
    log_outs.add("s9", 200, 103, Actor("key:a"))
    assert [name for name in ("s2", "s3", "s4", "s9") if log_outs.has(name)] == ["s4", "s9"]


def test_another_worker_knows_the_session(dashboard: Dashboard) -> None:
    cookie = dashboard.http.cookies.get(COOKIE) or ""
    parts, clock = dashboard.control.parts, dashboard.control.clock
    other = Sessions(parts.token_key, dashboard.keys, dashboard.node, dashboard.log_outs, clock.ticks)
    stranger = Sessions(b"x" * 32, dashboard.keys, dashboard.node, dashboard.log_outs, clock.ticks)
    assert other.find(cookie) == dashboard.sessions.find(cookie) is not None
    assert stranger.find(cookie) is None


def test_cookie_opens_nothing_but_the_pages(dashboard: Dashboard) -> None:
    assert dashboard.get("/api/v1/rules").status_code == 401
    assert dashboard.request("POST", "/api/v1/rules", json={}).status_code == 401


@pytest.mark.parametrize("path", FORMS)
def test_forms_need_the_token_of_the_session(dashboard: Dashboard, path: str) -> None:
    assert dashboard.post(path, {"name": "a"}, token=False).status_code == 403
    assert dashboard.post(path, {"name": "a", "form_token": "ü"}, token=False).status_code == 403
    other = dashboard.form_token()[::-1]
    assert dashboard.post(path, {"name": "a", "form_token": other}, token=False).status_code == 403
    assert dashboard.control.actions() == []


@pytest.mark.parametrize(
    "headers",
    [
        {"origin": "http://evil.example"},
        {"origin": "null"},
        {"sec_fetch_site": "cross-site"},
        {"sec_fetch_site": "same-site"},
    ],
)
def test_forms_of_other_origins_are_refused(dashboard: Dashboard, headers: dict[str, Any]) -> None:
    for path in ("/rules/new", "/login", "/theme", "/logout"):
        assert dashboard.post(path, {"name": "a", "key": ADMIN_KEY}, **headers).status_code == 403
    assert dashboard.get("/rules").status_code == 200, "the session goes on"


def test_host_is_checked(anyone: Dashboard) -> None:
    assert anyone.get("/login", headers={"host": "evil.example"}).status_code == 421


def test_links_from_elsewhere_lead_to_the_pages(anyone: Dashboard) -> None:
    visit = {"sec-fetch-site": "cross-site", "sec-fetch-mode": "navigate", "sec-fetch-dest": "document"}
    assert anyone.get("/rules/orders", headers=visit).status_code == 303
    assert anyone.get("/rules/orders", headers={**visit, "sec-fetch-dest": "iframe"}).status_code == 403


def test_readers_see_no_forms_and_cannot_use_them(anyone: Dashboard) -> None:
    anyone.rule(name="orders", rule_id="a")
    anyone.log_in(anyone.key("read"))
    for path in ("/rules", "/rules/a", "/subjects/user/42"):
        page = anyone.get(path)
        assert page.status_code == 200
        forms = page.text.count('method="post"')
        assert forms == 2, "theme and log-out"
    for path in FORMS:
        response = anyone.post(path, {"mode": "disabled", "version": "1"})
        assert response.status_code == 403
        assert "scope read" in response.text
        program = anyone.post(path, {"mode": "disabled"}, accept="application/json")
        assert program.headers["content-type"] == "application/problem+json"
    simulated = anyone.post("/what-if", {"limit": "1", "window_seconds": "60"})
    assert simulated.status_code == 200, "it changes nothing"
    assert "Whom it would hit" in simulated.text


def test_writes_are_limited_as_those_of_the_api(dashboard: Dashboard) -> None:
    limit = dashboard.control.parts.settings.server.limits.writes.count
    statuses = {dashboard.post("/rules/nothing/delete").status_code for _ in range(limit + 1)}
    assert statuses == {404, 429}


def test_every_page_has_a_strict_policy(dashboard: Dashboard) -> None:
    for path in [*PAGES, "/login?x", "/rules/nothing"]:
        headers = dashboard.get(path).headers
        if "content-security-policy" in headers:
            policy = headers["content-security-policy"]
            assert policy.startswith("default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self' data:;")
            assert "unsafe" not in policy
            assert headers["x-frame-options"] == "DENY"
            assert headers["cache-control"] == "no-store"
        else:
            assert path == "/login?x", "a redirect"
