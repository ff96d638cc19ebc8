"""Many callers at once, each on a connection of its own, and what they were told."""

from __future__ import annotations

import http.client
import itertools
import json
import threading
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import ExitStack
from dataclasses import dataclass
from types import TracebackType
from typing import Any

from integration.service.service_process import TIMEOUT, Service

__all__ = ["CHECK", "Caller", "Load", "Told", "admitted", "answering_workers", "crowd", "metric", "scrape", "until"]

CHECK = "/api/v1/check"
FOREVER = 31_536_000
"""Seconds: in such a window nothing comes back while a test runs."""


@dataclass(frozen=True, slots=True)
class Told:
    """An answer."""

    status: int
    headers: Mapping[str, str]
    text: str

    @property
    def data(self) -> Any:
        return json.loads(self.text)

    @property
    def worker(self) -> str:
        """Which worker answered: they begin their request ids each in its own way."""
        return self.headers["x-request-id"].partition("-")[0]


class Caller:
    """One connection, with a key if one is given. A broken one is made anew for the next call."""

    def __init__(self, service: Service, key: str | None = None) -> None:
        self._connection = http.client.HTTPConnection(service.host, service.port, timeout=TIMEOUT)
        self._headers = {} if key is None else {"authorization": f"Bearer {key}"}

    def ask(self, method: str, path: str, data: object = None, headers: Mapping[str, str] | None = None) -> Told:
        body = None if data is None else json.dumps(data).encode()
        try:
            self._connection.request(method, path, body, {**self._headers, **(headers or {})})
            answer = self._connection.getresponse()
            text = answer.read().decode()
        except (OSError, http.client.HTTPException):
            self._connection.close()
            raise
        return Told(answer.status, {name.lower(): value for name, value in answer.getheaders()}, text)

    def meet(self) -> str:
        """Which worker it is connected with."""
        return self.ask("GET", "/healthz").worker

    def check(self, data: object, headers: Mapping[str, str] | None = None) -> Told:
        return self.ask("POST", CHECK, data, headers)

    def limit(self, rule_id: str, limit: int, **more: object) -> Told:
        """Make or change a rule for every user: so many, once and for all."""
        rule = {"dimension": "user", "limit": limit, "window_seconds": FOREVER, "algorithm": "token_bucket", **more}
        told = self.ask("PUT", f"/api/v1/rules/{rule_id}", rule)
        if told.status == 404:
            told = self.ask("POST", "/api/v1/rules", {"rule_id": rule_id, **rule})
        assert told.status in (200, 201), told
        return told

    def close(self) -> None:
        self._connection.close()

    def __enter__(self) -> Caller:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()


def crowd(
    services: Sequence[Service],
    checks: Sequence[object],
    callers: int = 50,
    headers: Mapping[str, str] | None = None,
    workers: int = 1,
) -> list[Told]:
    """What each check was told. So many callers, who take turns among the services, all begin at the same moment.

    `workers` is how many take part at least: callers connect anew until they are spread over so many.
    """
    with ExitStack() as stack, ThreadPoolExecutor(callers) as pool:
        asking = [stack.enter_context(Caller(services[n % len(services)])) for n in range(callers)]
        met = list(pool.map(Caller.meet, asking))
        deadline = time.monotonic() + TIMEOUT
        while len(set(met)) < workers:
            assert time.monotonic() < deadline, f"only {len(set(met))} workers take connections"
            for caller in asking[::2]:
                caller.close()
            met = list(pool.map(Caller.meet, asking))
        begin = threading.Barrier(callers)

        def call(number: int) -> list[Told]:
            begin.wait(TIMEOUT)
            return [asking[number].check(data, headers) for data in checks[number::callers]]

        told = list(pool.map(call, range(callers)))
    return [one for several in told for one in several]


def admitted(answers: Iterable[Told]) -> int:
    """How many were let through by a limit. Whoever was let through by anything else makes a test worthless."""
    decisions = [told.data for told in answers]
    odd = [decision for decision in decisions if decision["reason"] not in ("ok", "limited")]
    assert not odd, odd[:3]
    return sum(decision["allowed"] for decision in decisions)


class Load:
    """Callers who go on checking until they are told to stop, and take a broken connection for what it is.

    `pause` is how many seconds each waits between two checks. They connect anew now and then, as callers do, so that a
    worker who came later gets its share.
    """

    def __init__(self, service: Service, data: object, callers: int = 16, pause: float = 0.0) -> None:
        self.answers: list[Told] = []
        self.broken = 0
        self.pause = pause
        self._service = service
        self._data = data
        self._stop = threading.Event()
        self._lock = threading.Lock()
        self._pool = ThreadPoolExecutor(callers)
        self._callers: list[Future[None]] = [self._pool.submit(self._call) for _ in range(callers)]

    def _call(self) -> None:
        with Caller(self._service) as caller:
            for number in itertools.count(1):
                if self._stop.wait(self.pause):
                    return
                if number % 50 == 0:
                    caller.close()
                try:
                    told = caller.check(self._data)
                except (OSError, http.client.HTTPException):
                    with self._lock:
                        self.broken += 1
                else:
                    with self._lock:
                        self.answers.append(told)

    def so_far(self) -> list[Told]:
        with self._lock:
            return list(self.answers)

    def __enter__(self) -> Load:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._stop.set()
        self._pool.shutdown()
        for caller in self._callers:
            caller.result()


def answering_workers(service: Service, callers: int = 16) -> set[str]:
    """Those of its workers that take part of a burst of connections."""

    def name(_: int) -> str:
        with Caller(service) as caller:
            return caller.meet()

    with ThreadPoolExecutor(callers) as pool:
        return set(pool.map(name, range(callers * 2)))


def scrape(service: Service, key: str | None = None) -> str:
    """What /metrics says."""
    with Caller(service, key) as caller:
        told = caller.ask("GET", "/metrics")
    assert told.status == 200, told
    return told.text


def metric(text: str, name: str, label: str = "") -> float:
    """The sum of a metric over its labels, or over those rows that have this one, such as `rule="orders"`."""
    rows = [line.rpartition(" ") for line in text.splitlines() if not line.startswith("#")]
    return sum(float(value) for series, _, value in rows if series.partition("{")[0] == name and label in series)


def until(what: str, true: Callable[[], object], patience: float = 30.0) -> float:
    """Look again and again until it is true: how long that took, in seconds."""
    started = time.monotonic()
    while not true():
        assert time.monotonic() < started + patience, f"not within {patience:g} s: {what}"
        time.sleep(0.01)
    return time.monotonic() - started
