"""The dashboard in a real browser, against a real service on a real Redis, under load."""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Any

import pytest
from axe_playwright_python.sync_playwright import Axe
from playwright.sync_api import Browser, expect

from integration.service.dashboard.browser import PATIENCE_MS, Visitor, chromium, load, log_in, visitor
from integration.service.service_process import GENEROUS, Service
from servers.machine import until
from servers.redis import RedisServer

expect.set_options(timeout=PATIENCE_MS)
PATH = "/api/v1/orders/7"
PAGES = [
    "/",
    "/rules",
    "/rules/new",
    "/rules/rule-00001",
    "/rules/rule-00001/edit",
    "/subjects/user/alice",
    f"/explain?show=1&user=alice&path={PATH}",
    "/what-if",
    "/audit",
    "/system",
]


@pytest.fixture(scope="module")
def redis() -> Iterator[RedisServer]:
    with RedisServer() as server:
        yield server


@pytest.fixture(scope="module")
def service(redis: RedisServer, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Service]:
    config = f"store: {redis.url}?timeout_ms=5000\non_store_error: open\nserver: {{trusted_proxies: [127.0.0.1]}}\n"
    with Service(tmp_path_factory.mktemp("dashboard"), config, GENEROUS, ("--workers", "2")) as started:
        yield started


@pytest.fixture(scope="module")
def browser() -> Iterator[Browser]:
    with chromium() as started:
        yield started


def test_operator_rolls_out_a_limit_and_lets_a_customer_through(service: Service, browser: Browser) -> None:
    with visitor(browser, service) as one, load(service, "alice", PATH) as decisions:
        page = one.page
        log_in(one, service.key)
        # Watch traffic.
        expect(page.locator("[data-value=allowed]")).to_have_text(re.compile(r"[1-9]"))
        page.wait_for_selector("#live-chart polyline.allowed")
        # Create a shadow rule, and see what it would deny.
        one.go("/rules/new")
        page.get_by_label("Requests", exact=True).fill("2")
        page.get_by_label("In so many seconds").fill("3600")
        expect(page.locator("#limit-words")).to_have_text("2 requests per hour")
        page.get_by_label("Name", exact=True).fill("Orders per user")
        page.get_by_role("button", name="Create").click()
        page.wait_for_url("**/rules/orders-per-user?done=created")
        expect(page.locator("[data-rule-value='2']")).to_have_text(re.compile(r"[1-9]"))
        assert all(decisions), "a shadow rule denies nothing"
        until("the last hour has what it would have denied", lambda: _shadow_hour(one) > 0)
        # Enforce it, and see the denials.
        page.get_by_role("button", name="Enforce").click()
        page.wait_for_url("**done=saved")
        expect(page.locator("[data-rule-value='1']")).to_have_text(re.compile(r"[1-9]"))
        assert decisions[-1] is False
        with service.client() as client:
            proxied = {"x-original-uri": PATH, "x-original-method": "GET", "x-forwarded-for": "192.0.2.1"}
            by_user = client.get("/api/v1/authorize", headers={**proxied, "x-user-id": "alice"})
            assert by_user.status_code == 429
        # Let one user through for a minute.
        one.go("/subjects/user/alice")
        expect(page.locator("#counters")).to_contain_text("throttled")
        page.get_by_label("Requests", exact=True).fill("100000")
        page.locator("select[name=seconds]").select_option("60")
        page.get_by_role("button", name="Override").click()
        page.wait_for_url("**done=overridden")
        expect(page.locator("#counters")).to_contain_text("/ 100,000")
        seen = len(decisions)
        until("the customer is let through", lambda: any(decisions[seen:]))
        # Undo it.
        page.get_by_role("button", name="Undo").click()
        page.wait_for_url("**done=undone")
        expect(page.locator("#counters")).to_contain_text("/ 2")
        # All of it is in the audit log.
        one.go("/audit")
        text = page.locator("main").inner_text()
        assert text.count("orders-per-user") >= 4
        assert re.search(r"mode\s+shadow\s+enforce", text)
        # The keyboard is enough.
        one.go("/rules")
        page.keyboard.press("Tab")
        expect(page.locator(":focus")).to_have_text("Skip to content")
        page.get_by_role("button", name="Log out").press("Enter")
        page.wait_for_url("**/login")


def test_banner_comes_and_goes_with_the_store(service: Service, browser: Browser, redis: RedisServer) -> None:
    with visitor(browser, service) as one, load(service, "bob", "/other"):
        log_in(one, service.key)
        banner = one.page.locator("#store-banner")
        expect(banner).to_be_hidden()
        redis.kill()
        expect(banner).to_be_visible()
        expect(banner).to_contain_text("allowed without counting")
        expect(one.page.locator("[data-value=fail_open]")).to_have_text(re.compile(r"[1-9]"))
        redis.start()
        expect(banner).to_be_hidden()
        expect(one.page.locator("#store-state")).to_have_text("ok")


@pytest.fixture(scope="module")
def many_rules(redis: RedisServer, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Service]:
    folder = tmp_path_factory.mktemp("many")
    names = "rule_id: rule-{n:05}, dimension: user, identifier: u{n}, endpoint_pattern: '/api/{n}/*'"
    rules = [f"- {{{names.format(n=number)}, limit: 9, window_seconds: 60}}" for number in range(10_000)]
    config = f"store: {redis.url}?prefix=many\nrules:\n" + "\n".join(rules)
    with Service(folder, config, GENEROUS) as started:
        with started.client(started.key) as client:
            body = {"rule_id": "for-alice", "name": '<b>Alice\'s</b> "rule"', "dimension": "user", "limit": 5}
            assert client.post("/api/v1/rules", json={**body, "window_seconds": 60}).status_code == 201
            for _ in range(6):
                client.post("/api/v1/check", json={"context": {"user": "alice", "path": PATH}})
        yield started


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_axe_finds_nothing_serious(many_rules: Service, browser: Browser, scheme: Any) -> None:
    with visitor(browser, many_rules, color_scheme=scheme) as one:
        one.go("/login")
        found = {"/login": _serious(one.page)}
        log_in(one, many_rules.key)
        for path in PAGES:
            one.go(path)
            found[path] = _serious(one.page)
    assert {path: ids for path, ids in found.items() if ids} == {}


def test_phone_with_ten_thousand_rules(many_rules: Service, browser: Browser) -> None:
    with visitor(browser, many_rules, viewport={"width": 390, "height": 844}) as one:
        log_in(one, many_rules.key)
        for path in PAGES:
            one.go(path)
            width = one.page.evaluate("document.documentElement.scrollWidth")
            assert width <= 390, f"{path} is {width} px wide"
        one.go("/rules")
        expect(one.page.locator("tbody tr")).to_have_count(50)
        expect(one.page.locator("main")).to_contain_text("of 10,001")
        one.page.get_by_label("Search").fill("rule-04242")
        one.page.get_by_role("button", name="Search").click()
        expect(one.page.locator("tbody tr")).to_have_count(1)


def test_pages_work_without_script(many_rules: Service, browser: Browser) -> None:
    with visitor(browser, many_rules, java_script_enabled=False) as one:
        log_in(one, many_rules.key)
        expect(one.page.locator("h1")).to_have_text("Overview")
        one.go("/rules/for-alice")
        one.page.get_by_role("button", name="Only watch").click()
        expect(one.page.locator("h1")).to_contain_text("shadow")
        one.page.get_by_role("button", name="Enforce").click()
        expect(one.page.locator("h1")).to_contain_text("enforce")


def test_live_data_pauses_while_the_page_is_hidden(many_rules: Service, browser: Browser) -> None:
    with visitor(browser, many_rules) as one:
        log_in(one, many_rules.key)
        expect(one.page.locator("#live-state")).to_have_text("live")
        hide = "Object.defineProperty(document, 'hidden', {value: %s, configurable: true});"
        event = "document.dispatchEvent(new Event('visibilitychange'))"
        one.page.evaluate(hide % "true" + event)
        expect(one.page.locator("#live-state")).to_have_text("paused")
        one.page.evaluate(hide % "false" + event)
        expect(one.page.locator("#live-state")).to_have_text("live")


def test_rule_that_was_silent_when_the_page_was_loaded_gets_a_row(service: Service, browser: Browser) -> None:
    with visitor(browser, service) as one, service.client(service.key) as client:
        rule = {"rule_id": "late", "dimension": "user", "identifier": "carol", "limit": 1, "window_seconds": 3600}
        assert client.post("/api/v1/rules", json=rule).status_code == 201
        log_in(one, service.key)
        expect(one.page.locator("#live-state")).to_have_text("live")
        row = one.page.locator("tr[data-rule='late']")
        expect(row).to_have_count(0)
        with load(service, "carol", "/late"):
            expect(row.locator("[data-rate='1']")).to_have_text(re.compile(r"[1-9]"))
            expect(row.locator("th")).to_have_text("late")
        expect(row).to_have_count(0)


def test_interactive_docs_try_a_check(many_rules: Service, browser: Browser) -> None:
    with visitor(browser, many_rules) as one:
        one.go("/docs")
        block = one.page.locator(".opblock", has=one.page.locator("[data-path='/api/v1/check']")).first
        block.locator(".opblock-summary").click()
        block.get_by_role("button", name="Execute").click()
        expect(block.locator(".live-responses-table .response-col_status").last).to_contain_text("200")


def _shadow_hour(one: Visitor) -> int:
    page = one.page.context.request.get(f"{one.url}/rules/orders-per-user").text()
    found = re.search(r'id="shadow-hour">([\d,]+)<', page)
    assert found is not None
    return int(found[1].replace(",", ""))


def _serious(page: Any) -> list[str]:
    results = Axe().run(page).response
    serious = [one for one in results["violations"] if one["impact"] in ("serious", "critical")]
    return [f"{one['id']}: {one['nodes'][0]['html'][:150]}" for one in serious]
