"""Debian's Chromium, driven by Playwright: it must talk to the service alone, and report no error."""

from __future__ import annotations

import json
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

import httpx
from playwright.sync_api import Browser, Page, sync_playwright
from tools.screenshots import CHROMIUM_FLAGS

from integration.service.service_process import Service

__all__ = ["PATIENCE_MS", "Visitor", "chromium", "load", "log_in", "visitor"]

PATIENCE_MS = 60_000.0
"""Milliseconds after which a test gives up on a condition. A working page never takes that long."""


@dataclass
class Visitor:
    """A page in the browser, and what it did."""

    page: Page
    url: str
    foreign: list[str] = field(default_factory=list)
    """Requests to other hosts."""
    errors: list[str] = field(default_factory=list)
    """Of scripts and of the Content-Security-Policy."""

    def go(self, path: str) -> None:
        self.page.goto(self.url + path)


@contextmanager
def chromium() -> Iterator[Browser]:
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path="/usr/bin/chromium", args=CHROMIUM_FLAGS)
        yield browser
        browser.close()


@contextmanager
def visitor(browser: Browser, service: Service, **options: Any) -> Iterator[Visitor]:
    """A new browser profile. No request may leave the service, and no script may fail."""
    context = browser.new_context(**options)
    context.set_default_timeout(PATIENCE_MS)
    one = Visitor(context.new_page(), service.url)

    def requested(request: Any) -> None:
        if not request.url.startswith((service.url, "data:")):
            one.foreign.append(request.url)

    one.page.on("request", requested)
    one.page.on("pageerror", lambda error: one.errors.append(str(error)))
    one.page.on("console", lambda message: one.errors.append(message.text) if _is_failure(message) else None)
    yield one
    assert one.foreign == []
    assert one.errors == []
    context.close()


def log_in(one: Visitor, key: str) -> None:
    one.go("/login")
    one.page.get_by_label("API key").fill(key)
    one.page.get_by_role("button", name="Log in").click()
    one.page.wait_for_url(f"{one.url}/")


@contextmanager
def load(service: Service, user: str, path: str) -> Iterator[list[bool]]:
    """Checks of one user, some 20 times a second, as long as the block lasts: what each of them was answered."""
    decisions: list[bool] = []
    stop = threading.Event()

    def send() -> None:
        with service.client() as client:
            while not stop.wait(0.05):
                try:
                    answer = client.post("/api/v1/check", json={"context": {"user": user, "path": path}})
                    decisions.append(answer.json()["allowed"])
                except (httpx.HTTPError, json.JSONDecodeError, KeyError):
                    continue

    sending = threading.Thread(target=send, daemon=True)
    sending.start()
    try:
        yield decisions
    finally:
        stop.set()
        sending.join(30)


def _is_failure(message: Any) -> bool:
    """Errors of scripts and policies. That a request was answered with an error is no failure of a page."""
    return message.type == "error" and "Failed to load resource" not in message.text and "ERR_" not in message.text
