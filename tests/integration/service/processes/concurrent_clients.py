"""Concurrent HTTP clients, each on its own connection, and their responses."""

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

__all__ = [
    "CHECK",
    "Client",
    "Load",
    "Response",
    "check_concurrently",
    "count_admitted",
    "metric_sum",
    "responding_workers",
    "scrape",
    "wait_until",
]

CHECK = "/api/v1/check"
FOREVER = 31_536_000
"""Seconds: a window so long that nothing refills while a test runs."""


@dataclass(frozen=True, slots=True)
class Response:
    status: int
    headers: Mapping[str, str]
    text: str

    @property
    def data(self) -> Any:
        return json.loads(self.text)

    @property
    def worker(self) -> str:
        """Which worker responded: each worker has its own request id prefix."""
        return self.headers["x-request-id"].partition("-")[0]


class Client:
    """One connection, with an API key if one is given. A broken connection is reopened for the next call."""

    def __init__(self, service: Service, key: str | None = None) -> None:
        self._connection = http.client.HTTPConnection(service.host, service.port, timeout=TIMEOUT)
        self._headers = {} if key is None else {"authorization": f"Bearer {key}"}

    def request(
        self, method: str, path: str, data: object = None, headers: Mapping[str, str] | None = None
    ) -> Response:
        body = None if data is None else json.dumps(data).encode()
        try:
            self._connection.request(method, path, body, {**self._headers, **(headers or {})})
            raw = self._connection.getresponse()
            text = raw.read().decode()
        except (OSError, http.client.HTTPException):
            self._connection.close()
            raise
        return Response(raw.status, {name.lower(): value for name, value in raw.getheaders()}, text)

    def worker_name(self) -> str:
        """The worker it is connected to."""
        return self.request("GET", "/healthz").worker

    def check(self, data: object, headers: Mapping[str, str] | None = None) -> Response:
        return self.request("POST", CHECK, data, headers)

    def put_rule(self, rule_id: str, limit: int, **more: object) -> Response:
        """Create or replace a rule for every user, with a limit that does not refill."""
        rule = {"dimension": "user", "limit": limit, "window_seconds": FOREVER, "algorithm": "token_bucket", **more}
        response = self.request("PUT", f"/api/v1/rules/{rule_id}", rule)
        if response.status == 404:
            response = self.request("POST", "/api/v1/rules", {"rule_id": rule_id, **rule})
        assert response.status in (200, 201), response
        return response

    def close(self) -> None:
        self._connection.close()

    def __enter__(self) -> Client:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()


def check_concurrently(
    services: Sequence[Service],
    checks: Sequence[object],
    clients: int = 50,
    headers: Mapping[str, str] | None = None,
    workers: int = 1,
) -> list[Response]:
    """Send the checks from `clients` connections, spread over the services, all starting at once; return the responses.

    `workers` is the minimum number of workers that take part: clients reconnect until they are spread over so many.
    """
    with ExitStack() as stack, ThreadPoolExecutor(clients) as pool:
        client_list = [stack.enter_context(Client(services[n % len(services)])) for n in range(clients)]
        names = list(pool.map(Client.worker_name, client_list))
        deadline = time.monotonic() + TIMEOUT
        while len(set(names)) < workers:
            assert time.monotonic() < deadline, f"only {len(set(names))} workers accept connections"
            for client in client_list[::2]:
                client.close()
            names = list(pool.map(Client.worker_name, client_list))
        barrier = threading.Barrier(clients)

        def call(number: int) -> list[Response]:
            barrier.wait(TIMEOUT)
            return [client_list[number].check(data, headers) for data in checks[number::clients]]

        batches = list(pool.map(call, range(clients)))
    return [response for batch in batches for response in batch]


def count_admitted(responses: Iterable[Response]) -> int:
    """How many were allowed by a limit. A decision with any other reason fails the test."""
    decisions = [response.data for response in responses]
    unexpected = [decision for decision in decisions if decision["reason"] not in ("ok", "limited")]
    assert not unexpected, unexpected[:3]
    return sum(decision["allowed"] for decision in decisions)


class Load:
    """Clients that send checks until stopped, and count broken connections.

    `pause` is how many seconds each waits between two checks. They reconnect now and then, so that workers started
    later get a share of the load.
    """

    def __init__(self, service: Service, data: object, clients: int = 16, pause: float = 0.0) -> None:
        self.responses: list[Response] = []
        self.broken_connections = 0
        self.pause = pause
        self._service = service
        self._data = data
        self._stop = threading.Event()
        self._lock = threading.Lock()
        self._pool = ThreadPoolExecutor(clients)
        self._tasks: list[Future[None]] = [self._pool.submit(self._call) for _ in range(clients)]

    def _call(self) -> None:
        with Client(self._service) as client:
            for number in itertools.count(1):
                if self._stop.wait(self.pause):
                    return
                if number % 50 == 0:
                    client.close()
                try:
                    response = client.check(self._data)
                except (OSError, http.client.HTTPException):
                    with self._lock:
                        self.broken_connections += 1
                else:
                    with self._lock:
                        self.responses.append(response)

    def snapshot(self) -> list[Response]:
        with self._lock:
            return list(self.responses)

    def __enter__(self) -> Load:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._stop.set()
        self._pool.shutdown()
        for task in self._tasks:
            task.result()


def responding_workers(service: Service, clients: int = 16) -> set[str]:
    """The workers that respond to a burst of connections."""

    def name(_: int) -> str:
        with Client(service) as client:
            return client.worker_name()

    with ThreadPoolExecutor(clients) as pool:
        return set(pool.map(name, range(clients * 2)))


def scrape(service: Service, key: str | None = None) -> str:
    """The text of /metrics."""
    with Client(service, key) as client:
        response = client.request("GET", "/metrics")
    assert response.status == 200, response
    return response.text


def metric_sum(text: str, name: str, label: str = "") -> float:
    """The sum of a metric over all series, or over those that have a label such as `rule="orders"`."""
    rows = [line.rpartition(" ") for line in text.splitlines() if not line.startswith("#")]
    return sum(float(value) for series, _, value in rows if series.partition("{")[0] == name and label in series)


def wait_until(what: str, condition: Callable[[], object], timeout: float = 30.0) -> float:
    """Poll until the condition is true; return how many seconds that took."""
    started = time.monotonic()
    while not condition():
        assert time.monotonic() < started + timeout, f"not within {timeout:g} s: {what}"
        time.sleep(0.01)
    return time.monotonic() - started
