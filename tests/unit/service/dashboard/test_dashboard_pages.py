"""What the pages show and change."""

from __future__ import annotations

import re
from contextlib import closing
from html.parser import HTMLParser
from pathlib import Path
from typing import Any
from urllib.parse import quote

import pytest

from crestgate.history.port import History
from crestgate.service.checks.slices import MEMBER_SLICE
from crestgate.service.dashboard.rendering import _assets, subject_url
from crestgate.stores.memory import MemoryStore
from crestgate.stores.migrating.share import Share
from crestgate.stores.migrating.store import MigratingStore
from crestgate.stores.named import NamedStoreGroup
from crestgate.stores.port import Op
from unit.service.dashboard.dashboard_client import Dashboard, text_of

HOSTILE = "\"><script>alert(1)</script>'&{{7*7}}"
RULE = {"name": "Orders", "dimension": "user", "limit": "100", "window_seconds": "60", "mode": "shadow"}


def version(dashboard: Dashboard, rule_id: str) -> str:
    return str(dashboard.control.get(f"/api/v1/rules/{quote(rule_id, safe='')}").json()["version"])


def test_rule_goes_from_shadow_to_enforce(dashboard: Dashboard) -> None:
    created = dashboard.post("/rules/new", RULE)
    assert created.headers["location"] == "/rules/orders?done=created"
    page = dashboard.get("/rules/orders")
    assert "100 requests per minute" in page.text
    assert "What it would have denied" in page.text
    enforced = dashboard.post("/rules/orders/mode", {"mode": "enforce", "version": "1"})
    assert enforced.status_code == 303
    assert dashboard.control.get("/api/v1/rules/orders").json()["mode"] == "enforce"
    assert dashboard.control.actions() == ["create rule:orders", "update rule:orders"]
    assert dashboard.control.notified >= 2, "the other workers know"


def test_stale_version_is_refused(dashboard: Dashboard) -> None:
    dashboard.post("/rules/new", RULE)
    dashboard.post("/rules/orders/mode", {"mode": "enforce", "version": "1"})
    assert dashboard.post("/rules/orders/mode", {"mode": "disabled", "version": "1"}).status_code == 412
    stale = dashboard.post("/rules/orders/edit", {**RULE, "limit": "7", "version": "1"})
    assert stale.status_code == 409
    assert "is at version 2" in stale.text
    assert 'value="7"' in stale.text, "what was typed is not lost"
    assert dashboard.post("/rules/orders/delete", {"version": "1"}).status_code == 412
    assert dashboard.post("/rules/orders/delete", {"version": "2"}).status_code == 303


def test_edit_keeps_what_was_not_changed(dashboard: Dashboard) -> None:
    dashboard.rule(rule_id="a", name="A", limit=10, window_seconds=1, algorithm="token_bucket", burst=20, tier="gold")
    page = dashboard.get("/rules/a/edit")
    assert "10 requests per second, bursts up to 20" in page.text
    fields = dict(re.findall(r'<input[^>]* name="(\w+)"[^>]* value="([^"]*)"', page.text))
    fields |= {"algorithm": "token_bucket", "dimension": "user", "mode": "enforce", "limit": "15"}
    fields.pop("form_token")
    assert dashboard.post("/rules/a/edit", fields).status_code == 303
    rule = dashboard.control.get("/api/v1/rules/a").json()
    assert (rule["limit"], rule["burst"], rule["tier"], rule["window_seconds"]) == (15, 20, "gold", 1)


def test_rule_with_a_lease(dashboard: Dashboard) -> None:
    fields = {**RULE, "algorithm": "fixed_window", "lease": "true"}
    assert dashboard.post("/rules/new", fields).status_code == 303
    assert dashboard.control.get("/api/v1/rules/orders").json()["lease"] is True
    assert "decided from slices charged in advance" in dashboard.get("/rules/orders").text
    assert '<option value="true" selected>' in dashboard.get("/rules/orders/edit").text
    assert dashboard.post("/rules/orders/edit", {**fields, "lease": "", "version": "1"}).status_code == 303
    assert "lease" not in dashboard.control.get("/api/v1/rules/orders").json()
    assert "slices" not in dashboard.get("/rules/orders").text
    wrong = dashboard.post("/rules/new", {**fields, "name": "other", "algorithm": "leaky_bucket"})
    assert wrong.status_code == 400
    assert "is not possible with leaky_bucket" in text_of(wrong)


def test_rule_of_several_dimensions(dashboard: Dashboard) -> None:
    fields = {**RULE, "dimension": "org, model", "identifier": "acme, *", "headers": "false"}
    assert dashboard.post("/rules/new", fields).headers["location"] == "/rules/orders?done=created"
    stored = dashboard.control.get("/api/v1/rules/orders").json()
    assert (stored["dimension"], stored["identifier"]) == (["org", "model"], ["acme", "*"])
    assert stored["headers"] is False
    page = dashboard.get("/rules/orders").text
    assert "for org acme and each model" in page
    assert "not shown to clients" in page
    assert "org acme and each model" in dashboard.get("/rules").text
    edit = dashboard.get("/rules/orders/edit").text
    assert 'value="org,model"' in edit
    assert 'value="acme,*"' in edit
    assert '<option value="false" selected>' in edit
    assert dashboard.post("/rules/orders/edit", {**fields, "limit": "7", "version": "1"}).status_code == 303
    wrong = dashboard.post("/rules/new", {**fields, "name": "other", "identifier": "acme"})
    assert wrong.status_code == 400
    assert "for each of org, model" in text_of(wrong)


def test_subject_of_several_dimensions(dashboard: Dashboard) -> None:
    dashboard.rule(rule_id="both", dimension=["org", "model"])
    page = dashboard.get("/subjects/org,model/acme,large")
    assert page.status_code == 200
    assert "both" in page.text
    assert dashboard.get("/subjects/org/acme").status_code == 200
    assert dashboard.get("/subjects/org,model/acme").status_code == 400
    assert dashboard.get("/subjects/Org/acme").status_code == 404
    assert dashboard.post("/subjects/org,model/acme,large/reset", {}).status_code == 303
    assert subject_url("model:large|org:a%7Cb") == "/subjects/model%2Corg/large%2Ca%7Cb"
    assert subject_url("key:user:1|route:/x") == "/subjects/key/user%3A1%7Croute%3A%2Fx"
    explained = dashboard.get("/explain?show=1&attributes=org%3Dacme%2C+model%3Dlarge")
    assert "is for every model and every org" in explained.text


def test_invalid_rule_is_explained_at_its_field(dashboard: Dashboard) -> None:
    response = dashboard.post("/rules/new", {**RULE, "limit": "many", "endpoint_pattern": "/a/**/b"})
    assert response.status_code == 400
    for field in ("limit", "endpoint_pattern"):
        assert f'aria-describedby="error-{field}"' in response.text
        assert f'id="error-{field}"' in response.text
    assert dashboard.control.actions() == []


@pytest.mark.parametrize(("text", "limit"), [("1,500", 1500), ("1,5", None), ("1,50,0", None)])
def test_comma_that_separates_no_thousands_is_refused(dashboard: Dashboard, text: str, limit: int | None) -> None:
    response = dashboard.post("/rules/new", {**RULE, "limit": text})
    assert response.status_code == (303 if limit else 400)
    rules = dashboard.control.get("/api/v1/rules").json()["rules"]
    assert [rule["limit"] for rule in rules] == ([limit] if limit else [])


def test_rule_of_a_file_cannot_be_changed(tmp_path: Any) -> None:
    dashboard = Dashboard(tmp_path, ("rules: [{rule_id: f, dimension: user, limit: 5, window_seconds: 60}]",))
    dashboard.log_in()
    assert "defined in a file" in dashboard.get("/rules/f").text
    assert dashboard.post("/rules/f/mode", {"mode": "shadow", "version": "1"}).status_code == 409
    dashboard.close()


def test_search_and_pages_with_many_rules(dashboard: Dashboard) -> None:
    catalog = dashboard.control.parts.catalog
    from crestgate.rules.rule import Rule

    rules = [
        Rule(f"rule-{n:05}", f"Rule {n}", "user", 10, 60.0, identifier=f"u{n}", endpoint_pattern=f"/api/{n}/*")
        for n in range(10_000)
    ]
    catalog.current = catalog.current.edited(rules)
    page = dashboard.get("/rules")
    assert "1–50 of 10,000" in page.text
    assert page.text.count('scope="row"') == 50
    assert "9,951–10,000 of" in dashboard.get("/rules?page=200").text
    assert "9,951–10,000 of" in dashboard.get("/rules?page=999999").text
    found = dashboard.get("/rules?q=RULE-00042")
    assert "1–1 of 1" in found.text
    assert "/rules/rule-00042" in found.text
    assert "No rule matches" in dashboard.get("/rules?q=nothing").text
    assert "No rule matches" in dashboard.get("/rules?mode=shadow").text


def test_subject_shows_counters_resets_and_overrides(dashboard: Dashboard) -> None:
    dashboard.rule(rule_id="per-user", name="Per user")
    for _ in range(3):
        assert dashboard.control.check(user="42").allowed
    page = dashboard.get("/subjects/user/42")
    assert "3 / 3" in page.text
    assert "throttled" in page.text
    assert dashboard.post("/subjects/user/42/reset", {"rule_id": "per-user"}).status_code == 303
    assert "0 / 3" in dashboard.get("/subjects/user/42").text
    fields = {"rule_id": "per-user", "limit": "500", "seconds": "60"}
    assert dashboard.post("/subjects/user/42/override", fields).status_code == 303
    overridden = dashboard.get("/subjects/user/42")
    assert "500 requests per minute" in overridden.text
    rule_id = re.search(r'name="rule_id" value="([^"]+)">Undo', overridden.text)
    assert rule_id is not None
    assert dashboard.control.check(user="42").limit == 500
    assert dashboard.post("/subjects/user/42/undo", {"rule_id": rule_id[1]}).status_code == 303
    assert dashboard.control.check(user="42").limit == 3
    assert dashboard.post("/subjects/user/42/undo", {"rule_id": rule_id[1]}).status_code == 404
    audit = text_of(dashboard.get("/audit"))
    assert "reset user:42" in audit
    assert "reset requested" not in audit
    assert "key:admin" in audit
    assert audit.count("per-user") >= 3


def test_reset_of_many_counters_is_done_in_slices(dashboard: Dashboard, monkeypatch: pytest.MonkeyPatch) -> None:
    paths = [f"/p{number:03}" for number in range(205)]
    for path in paths:
        dashboard.rule(rule_id=path[1:], endpoint_pattern=path)
        dashboard.control.check(user="42", path=path)
    assert "Reset all 205 counters" in dashboard.get("/subjects/user/42").text
    sizes: list[int] = []
    apply = dashboard.control.store.inner.apply

    def count(batch: Any) -> Any:
        sizes.extend(len(request.members) for request in batch if request.op is Op.RESET)
        return apply(batch)

    monkeypatch.setattr(dashboard.control.store.inner, "apply", count)
    assert dashboard.post("/subjects/user/42/reset").status_code == 303
    assert (sum(sizes), max(sizes)) == (205, MEMBER_SLICE)
    assert all(dashboard.control.check(user="42", path=path).remaining == 2 for path in paths)


def test_override_says_what_is_wrong(dashboard: Dashboard) -> None:
    dashboard.rule(rule_id="per-user")
    fields = {"rule_id": "per-user", "limit": "many", "seconds": "60"}
    response = dashboard.post("/subjects/user/42/override", fields)
    assert response.status_code == 400
    assert "limit" in text_of(response)
    assert dashboard.post("/subjects/ip/192.0.2.1/override", fields).status_code == 404
    assert dashboard.get("/subjects/planet!/mars").status_code == 404


@pytest.mark.parametrize("dimension", ["user", "ip", "client", "key", "apikey"])
def test_subject_of_each_dimension(dashboard: Dashboard, dimension: str) -> None:
    dashboard.rule(rule_id="one", dimension=dimension)
    page = dashboard.get(f"/subjects/{dimension}/192.0.2.1")
    assert page.status_code == 200
    assert "0 / 3" in page.text


def test_history_of_a_subject_and_of_a_rule(dashboard: Dashboard) -> None:
    history: History = dashboard.control.parts.history
    now_us = dashboard.control.clock.ticks()
    dashboard.rule(rule_id="per-user", mode="shadow")
    history.add(now_us - 60_000_000, {"per-user": (40, 2, 7)}, {"user:42": (1234, 5)})
    assert "1,234 allowed, 5 denied" in text_of(dashboard.get("/subjects/user/42"))
    assert '<p class="big shadow-text" id="shadow-hour">7</p>' in dashboard.get("/rules/per-user").text
    overview = dashboard.get("/")
    assert "1,234" in overview.text
    assert "/subjects/user/42" in overview.text
    assert "<polyline" in overview.text


def test_store_that_fails_shows_a_banner_and_no_invented_numbers(dashboard: Dashboard) -> None:
    dashboard.rule(rule_id="per-user")
    dashboard.control.store.broken = True
    for path in ("/", "/subjects/user/42", "/system", "/rules"):
        page = dashboard.get(path)
        assert page.status_code == 200
        assert 'id="store-banner">' in page.text, path
        assert "allowed without counting" in page.text
    assert "– – – –" in text_of(dashboard.get("/subjects/user/42"))


def test_overview_with_many_busy_rules(dashboard: Dashboard) -> None:
    history: History = dashboard.control.parts.history
    minute_us = dashboard.control.clock.ticks() // 60_000_000 * 60_000_000
    counts = {f"rule-{number:04}": (number, 1 + number % 7, 0) for number in range(2000)}
    for minute in range(51):
        history.add(minute_us - minute * 60_000_000, counts, {})
    page = dashboard.get("/")
    assert page.status_code == 200
    assert "and 1,980 more rules with traffic" in page.text
    assert f"{sum(counts[name][1] for name in counts) * 51:,} in the last hour" in page.text
    assert page.text.count("<tr data-rule=") == 20


@pytest.mark.parametrize("dead", ["migrate.from", "migrate.to", "stores.hot"])
def test_banner_names_the_store_that_fails(tmp_path: Path, dead: str) -> None:
    stores = {name: MemoryStore() for name in ("migrate.from", "migrate.to", "stores.hot")}
    migrating = MigratingStore(stores["migrate.from"], stores["migrate.to"], Share(50))
    stores[dead].close()
    with closing(Dashboard(tmp_path, group=NamedStoreGroup(migrating, {"hot": stores["stores.hot"]}))) as dashboard:
        dashboard.log_in()
        page = dashboard.get("/")
        assert 'id="store-banner">' in page.text
        assert f'id="store-message">{dead}: ' in page.text


def test_no_banner_while_the_store_answers(dashboard: Dashboard) -> None:
    assert 'id="store-banner" hidden>' in dashboard.get("/").text


def test_long_identifiers_are_refused(dashboard: Dashboard) -> None:
    assert dashboard.get(f"/subjects/user/{'x' * 2000}").status_code == 400


def test_explain_tells_why(dashboard: Dashboard) -> None:
    dashboard.rule(rule_id="per-user", name="Per user")
    dashboard.rule(rule_id="bob", identifier="bob", limit=9)
    page = dashboard.get("/explain?show=1&user=bob&path=/orders/7")
    assert page.status_code == 200
    text = text_of(page)
    assert "9 of 9 left" in text
    assert "lost" in text
    assert dashboard.control.check(user="bob").remaining == 8, "explain consumed nothing"
    assert dashboard.get("/explain?show=1&user=bob&cost=-1").status_code == 400


def test_audit_filters(dashboard: Dashboard) -> None:
    dashboard.rule(rule_id="a")
    dashboard.post("/rules/a/mode", {"mode": "shadow", "version": "1"})
    assert "rule:a" in dashboard.get("/audit?actor=key:admin").text
    assert "No entry matches" in dashboard.get("/audit?actor=nobody").text
    assert "No entry matches" in dashboard.get("/audit?until=2001-01-01T00:00:00Z").text
    assert dashboard.get("/audit?since=yesterday").status_code == 400
    mode = text_of(dashboard.get("/audit?subject=rule:a"))
    assert "mode enforce shadow" in mode


class Tags(HTMLParser):
    """All tags and attributes of a page."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.scripts: list[Any] = []
        self.handlers: list[str] = []
        self.feed(text)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        if tag == "script":
            self.scripts.append(dict(attrs).get("src"))
        self.handlers += [name for name, _ in attrs if name.startswith("on") or name == "style"]


def test_hostile_names_are_text(dashboard: Dashboard) -> None:
    name = HOSTILE
    dashboard.rule(rule_id="hostile", name=name, identifier=name, tier="*", endpoint_pattern="/x/*")
    dashboard.rule(rule_id=f"id {name}", name=name, dimension="client", limit=1)
    now_us = dashboard.control.clock.ticks()
    subject = f"user:{name}"
    dashboard.control.parts.history.add(now_us, {f"id {name}": (3, 1, 1), name: (1, 1, 1)}, {subject: (5, 5)})
    quoted = quote(name, safe="")
    dashboard.post(f"/subjects/user/{quoted}/reset")
    paths = [
        "/",
        "/rules",
        f"/rules?q={quoted}",
        "/rules/hostile",
        "/rules/hostile/edit",
        f"/rules/{quote(f'id {name}', safe='')}",
        f"/rules/new?name={quoted}",
        f"/subjects/user/{quoted}",
        f"/subjects/client/{quoted}",
        f"/explain?show=1&user={quoted}&path=/x/1",
        f"/audit?actor={quoted}",
        "/audit",
        f"/audit?since={quoted}",
        "/system",
        "/what-if?rule_id=hostile",
        f"/rules/{quoted}",
        f"/login?next=/{quoted}",
    ]
    for path in paths:
        page = dashboard.get(path)
        assert page.status_code in (200, 303, 400, 404), path
        tags = Tags(page.text)
        assert all(one is not None and one.startswith("/dashboard/static/") for one in tags.scripts), path
        assert tags.handlers == [], path
        assert "49" not in re.findall(r"'&(?:amp;)?(\d+)", page.text), "no template in a name is rendered"


def test_static_files(anyone: Dashboard) -> None:
    page = anyone.get("/login")
    for url in re.findall(r'(?:src|href)="(/dashboard/static/[^"]+)"', page.text):
        response = anyone.get(url)
        assert response.status_code == 200
        assert "immutable" in response.headers["cache-control"]
    assert not re.search(r'(?:src|href)="(?!/|#)', page.text), "nothing from other hosts"
    for name in ("..%2fapp.py", ".hidden.css", "nothing.css", "app.py", "a" * 300 + ".css"):
        assert anyone.get(f"/dashboard/static/{name}").status_code == 404
    assert len(_assets()) < 10, "only files, whatever names were requested"


@pytest.mark.parametrize(
    ("subject", "url"),
    [("user:a/b", "/subjects/user/a%2Fb"), ("global", None), ("apikey:sha256:0a1b", None), ("ip:", None)],
)
def test_subjects_with_a_page(subject: str, url: str | None) -> None:
    assert subject_url(subject) == url


def test_theme_is_chosen_without_script(anyone: Dashboard) -> None:
    assert 'data-theme="auto"' in anyone.get("/login").text
    response = anyone.post("/theme", {"theme": "dark", "next": "/login"}, token=False)
    assert response.headers["location"] == "/login"
    assert 'data-theme="dark"' in anyone.get("/login").text
    anyone.post("/theme", {"theme": '"><script>'}, token=False)
    assert 'data-theme="auto"' in anyone.get("/login").text


def test_limit_in_words_while_it_is_typed(dashboard: Dashboard) -> None:
    words = dashboard.get("/dashboard/words?limit=100&window_seconds=60&burst=20&algorithm=gcra")
    assert words.text == "100 requests per minute, bursts up to 20"
    assert dashboard.get("/dashboard/words?limit=x&window_seconds=").text == ""
    assert dashboard.get("/dashboard/words?limit=1&window_seconds=inf&algorithm=gcra").status_code == 200


def test_calendar_rule_is_created_shown_and_edited(dashboard: Dashboard) -> None:
    form = {**RULE, "rule_id": "c", "window_seconds": "60", "calendar": "month", "timezone": "europe/berlin"}
    assert dashboard.post("/rules/new", form).status_code == 303
    assert "per calendar month in Europe/Berlin" in dashboard.get("/rules/c").text
    page = dashboard.get("/rules/c/edit")
    assert '<option value="month" selected>each month</option>' in page.text
    fields = dict(re.findall(r'<input[^>]* name="(\w+)"[^>]* value="([^"]*)"', page.text))
    fields |= {"algorithm": "fixed_window", "dimension": "user", "mode": "enforce", "limit": "15", "calendar": "month"}
    fields.pop("form_token")
    assert dashboard.post("/rules/c/edit", fields).status_code == 303
    rule = dashboard.control.get("/api/v1/rules/c").json()
    assert (rule["limit"], rule["calendar"], rule["timezone"]) == (15, "month", "Europe/Berlin")
    words = dashboard.get("/dashboard/words?limit=5&window_seconds=&burst=&algorithm=gcra&calendar=day&timezone=")
    assert words.text == "5 requests per calendar day in UTC"


def test_what_if_of_a_calendar_rule_has_its_window(dashboard: Dashboard) -> None:
    dashboard.rule(rule_id="c", limit=10, window_seconds=None, calendar="day", timezone="Asia/Tokyo")
    page = dashboard.get("/what-if?rule_id=c").text
    assert '<option value="day" selected>each day</option>' in page
    assert "10 requests per calendar day in Asia/Tokyo" in page
