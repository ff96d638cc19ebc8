"""Pictures of the dashboard for docs/images, from a service with made-up traffic of the last hour.

    python -m tools.screenshots [FOLDER]

Every page in light and dark, and some as a phone shows them. It needs Debian's chromium and playwright (the test
environment has it); nothing is loaded from another host.
"""

from __future__ import annotations

import json
import math
import os
import random
import re
import subprocess
import sys
import tempfile
import threading
import time
import urllib.request
from contextlib import suppress
from pathlib import Path
from typing import Any

__all__ = ["CHROMIUM_FLAGS", "PAGES"]

CHROMIUM = "/usr/bin/chromium"
CHROMIUM_FLAGS = [
    "--headless",
    "--no-sandbox",
    "--disable-gpu",
    "--disable-quic",
    "--no-first-run",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-sync",
]
KEY = "demo-key-of-the-screenshots"
DESKTOP = {"width": 1280, "height": 960}
PHONE = {"width": 390, "height": 844}
PAGES = {
    "login": "/login",
    "overview": "/",
    "rules": "/rules",
    "rule": "/rules/search-per-user",
    "rule-form": "/rules/orders-per-user/edit",
    "subject": "/subjects/user/mallory",
    "explain": "/explain?show=1&user=mallory&path=/api/v1/orders/7&method=POST",
    "what-if": "/what-if?rule_id=orders-per-user",
    "audit": "/audit",
    "system": "/system",
    "docs": "/docs",
}
PHONES = ("overview", "rules", "subject", "audit")
RULES: list[dict[str, Any]] = [
    {"rule_id": "orders-per-user", "name": "Orders per user", "dimension": "user",
     "endpoint_pattern": "/api/v1/orders/*", "limit": 60, "window_seconds": 60},
    {"rule_id": "orders-premium", "name": "Orders, premium", "dimension": "user",
     "endpoint_pattern": "/api/v1/orders/*", "tier": "premium", "limit": 600, "window_seconds": 60},
    {"rule_id": "search-per-user", "name": "Search per user", "dimension": "user", "endpoint_pattern": "/api/v1/search",
     "limit": 30, "window_seconds": 60, "mode": "shadow"},
    {"rule_id": "log-in-per-address", "name": "Log-ins per address", "dimension": "ip", "endpoint_pattern": "/login",
     "method": "POST", "limit": 5, "window_seconds": 60, "algorithm": "sliding_window_log", "on_store_error": "closed"},
    {"rule_id": "api-bursts", "name": "API bursts", "dimension": "user", "endpoint_pattern": "/api/**", "limit": 20,
     "window_seconds": 1, "burst": 40, "algorithm": "token_bucket"},
    {"rule_id": "partners", "name": "Partners", "dimension": "client", "limit": 10000, "window_seconds": 3600},
    {"rule_id": "everything", "name": "Everything together", "dimension": "global", "limit": 5000, "window_seconds": 1,
     "algorithm": "gcra"},
]  # fmt: skip
USERS = ("mallory", "alice", "bob", "carol", "dave", "erin", "frank", "grace", "heidi", "ivan")


def main() -> None:
    folder = Path(sys.argv[1] if len(sys.argv) > 1 else "docs/images")
    folder.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory() as place:
        _seed(place)
        process, url = _serve(place)
        stop = threading.Event()
        try:
            _create_rules(url)
            traffic = threading.Thread(target=_send, args=(url, stop), daemon=True)
            traffic.start()
            _take(url, folder)
        finally:
            stop.set()
            process.terminate()
            process.wait(30)


def _seed(place: str) -> None:
    """An hour of usage, as if the service had run."""
    from crestgate.history.factory import open_history

    os.makedirs(f"{place}/.crestgate", mode=0o700)
    history = open_history(f"sqlite:///{place}/.crestgate/rules.db")
    chance = random.Random(18)
    now_us = time.time_ns() // 1000
    for minute in range(60, -1, -1):
        wave = 1 + 0.35 * math.sin(minute / 7) + chance.random() * 0.15
        peak = 3.0 if 18 <= minute <= 26 else 1.0
        rules = {
            "orders-per-user": (int(900 * wave), int(75 * wave * peak**2), 0),
            "api-bursts": (int(1900 * wave), int(22 * peak), 0),
            "everything": (int(420 * wave), 0, 0),
            "log-in-per-address": (int(60 * wave), int(9 * peak), 0),
            "search-per-user": (0, 0, int(420 * wave * peak)),
            "partners": (int(310 * wave), 0, 0),
        }
        subjects = {f"user:{name}": (int(300 * wave / (rank + 1)), 0) for rank, name in enumerate(USERS)}
        subjects["user:mallory"] = (int(70 * wave), int(31 * wave * peak**2))
        subjects["ip:203.0.113.9"] = (int(5 * wave), int(9 * peak))
        history.add(now_us - minute * 60_000_000, rules, subjects)
    history.close()


def _serve(place: str) -> tuple[subprocess.Popen[str], str]:
    environ = {**os.environ, "CRESTGATE_ADMIN_KEY": KEY}
    environ["CRESTGATE_SERVER__HTTP"] = environ["CRESTGATE_SERVER__GRPC"] = "127.0.0.1:0"
    environ["PYTHONPATH"] = os.pathsep.join(os.path.abspath(one) for one in sys.path if one)
    command = [sys.executable, "-m", "crestgate", "serve", "--workers", "2"]
    process = subprocess.Popen(
        command, cwd=place, env=environ, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True
    )
    assert process.stdout is not None
    url = ""
    for line in process.stdout:
        if found := re.search(r"listens on (\S+)", line):
            url = found[1]
        if "/docs" in line:
            return process, url
    raise SystemExit("the service did not start")


def _call(url: str, body: Any, method: str = "POST") -> Any:
    headers = {"authorization": f"Bearer {KEY}", "content-type": "application/json"}
    request = urllib.request.Request(url, json.dumps(body).encode(), headers, method=method)
    with urllib.request.urlopen(request, timeout=120) as response:
        return json.loads(response.read() or b"null")


def _create_rules(url: str) -> None:
    for rule in RULES:
        _call(f"{url}/api/v1/rules", rule)
    _call(f"{url}/api/v1/users/alice/tier", {"tier": "premium"}, "PUT")
    _call(f"{url}/api/v1/rules/orders-per-user", {**RULES[0], "limit": 80}, "PUT")
    body = {"rule_id": "orders-per-user", "limit": 400, "duration_seconds": 7200}
    _call(f"{url}/api/v1/users/bob/override", body)
    body = {"rule_id": "orders-per-user", "limit": 120, "duration_seconds": 7200}
    _call(f"{url}/api/v1/users/mallory/override", body)
    _call(f"{url}/api/v1/reset", {"context": {"user": "carol", "path": "/api/v1/orders/1"}})


def _send(url: str, stop: threading.Event) -> None:
    """Checks, about 70 a second, until the pictures are taken."""
    chance = random.Random(7)
    while not stop.wait(0.2):
        users = chance.choices(USERS, weights=[12, 8, 6, 5, 4, 3, 3, 2, 2, 1], k=13)
        checks = [
            {"context": {"user": user, "path": chance.choice(("/api/v1/orders/7", "/api/v1/search", "/api/v1/items"))}}
            for user in users
        ]
        checks += [{"context": {"ip": "203.0.113.9", "path": "/login", "method": "POST"}}]
        with suppress(OSError):
            _call(f"{url}/api/v1/check/batch", {"checks": checks})


def _take(url: str, folder: Path) -> None:
    from playwright.sync_api import sync_playwright

    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=CHROMIUM, args=CHROMIUM_FLAGS)
        for scheme in ("light", "dark"):
            for viewport, names in ((DESKTOP, tuple(PAGES)), (PHONE, PHONES)):
                context = browser.new_context(viewport=viewport, color_scheme=scheme)  # type: ignore[arg-type]
                page = context.new_page()
                page.set_default_timeout(120_000)
                for name in names:
                    if name == "overview":
                        page.goto(f"{url}/login")
                        page.fill("#key", KEY)
                        page.click("text=Log in >> nth=-1")
                        page.wait_for_url(f"{url}/")
                        if viewport is DESKTOP:
                            _until(page, "document.querySelector('#live-chart polyline.allowed')?.points.length > 40")
                    else:
                        page.goto(url + PAGES[name])
                    _wait(page, name)
                    size = "" if viewport is DESKTOP else "phone-"
                    path = folder / f"dashboard-{name}-{size}{scheme}.png"
                    page.screenshot(path=path, animations="disabled")
                context.close()
        browser.close()


def _until(page: Any, condition: str) -> None:
    """Wait for a condition; Playwright's own way is refused by the Content-Security-Policy."""
    while not page.evaluate(condition):
        page.wait_for_timeout(200)


def _wait(page: Any, name: str) -> None:
    """Until the page shows what the picture is about."""
    if name == "overview":
        page.wait_for_selector("#live-chart polyline.allowed")
    elif name == "rule":
        _until(page, "document.querySelector('[data-rule-value]').textContent !== '0'")
    elif name == "what-if":
        page.fill("#limit", "25")
        page.click("text=Simulate")
        page.wait_for_selector("text=Whom it would hit")
    elif name == "docs":
        page.wait_for_selector(".opblock")


if __name__ == "__main__":
    main()
