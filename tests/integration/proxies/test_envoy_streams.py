"""200 concurrent streams behind a real Envoy against a token budget, which is overspent by nothing with reservations,
and by the streams in flight at most if Envoy reports what was used after the response.

What was really spent is in the journal of the model; statuses and counters are compared with it.
"""

from __future__ import annotations

import asyncio
import importlib.util
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import httpx

from crestgate import AsyncLimiter, Limiter
from integration.frameworks.servers import serve_asgi
from integration.proxies.crestgate_service import CrestgateService, print_logs
from integration.proxies.proxy_processes import DEPLOY, Envoy, replace_each
from integration.proxies.stream_upstream import Journal, Rendezvous, ReportingApp, TokenModel
from servers.machine import until
from servers.process import GivenServer
from servers.redis import RedisServer

STREAMS = 200
BUDGET = 5_000
RESERVED = 100
"""The most that a stream can use: 200 of them would use four times the budget."""
LEAST = 40
PROGRAM = DEPLOY.parent / "examples" / "model_behind_envoy.py"
TIMEOUT = 120.0
YEARLY = "year using fixed_window"
"""No window ends during a test."""


def settings(name: str, redis: RedisServer | GivenServer, changes: dict[str, str]) -> str:
    """A file of deploy/envoy with counters in Redis, which are waited for on a busy machine and never guessed."""
    url = f"{redis.url}{'&' if '?' in redis.url else '?'}timeout_ms=30000"
    return replace_each((DEPLOY / "envoy" / name).read_text(), changes) + f"\nstore: {url}\non_store_error: closed\n"


@contextmanager
def proxied(
    folder: Path, files: dict[str, str], envoy_file: str, build: Callable[[CrestgateService], Rendezvous]
) -> Iterator[tuple[Envoy, CrestgateService, Rendezvous]]:
    """Clients, Envoy, an application; and Crestgate."""
    strict = {"failure_mode_deny: false": "failure_mode_deny: true"}
    with CrestgateService(folder, files) as crestgate:
        rendezvous = build(crestgate)
        with serve_asgi(rendezvous) as url:
            with Envoy(crestgate.grpc, httpx.URL(url).port or 0, {**Envoy.patient, **strict}, envoy_file) as envoy:
                yield envoy, crestgate, rendezvous
                print_logs(envoy, crestgate)


async def stream(client: httpx.AsyncClient, method: str, number: int) -> tuple[int, int]:
    """The status of a stream, and the words in it."""
    prompt = f"stream {number}"
    question = {"json": {"prompt": prompt, "max_tokens": RESERVED - 2}} if method == "POST" else {"params": prompt}
    path = "/chat" if method == "POST" else "/"
    async with client.stream(method, path, headers={"x-customer": "acme"}, **question) as response:
        words = 0
        async for line in response.aiter_lines():
            words += line.startswith("data: ") and "[DONE]" not in line
        return response.status_code, words


def run_streams(envoy: Envoy, method: str, first: int, count: int) -> list[tuple[int, int]]:
    """All at once."""

    async def run() -> list[tuple[int, int]]:
        limits = httpx.Limits(max_connections=None)
        async with httpx.AsyncClient(base_url=envoy.url, limits=limits, timeout=TIMEOUT) as client:
            return await asyncio.gather(*[stream(client, method, first + number) for number in range(count)])

    return asyncio.run(run())


def test_reservations_overspend_nothing(
    tmp_path: Path, redis_server: RedisServer | GivenServer, report: Callable[[str], None]
) -> None:
    journal = Journal()
    service_url = ""

    def build(crestgate: CrestgateService) -> Rendezvous:
        nonlocal service_url
        service_url = f"crestgate://:{crestgate.service.key}@127.0.0.1:{crestgate.http}?timeout_ms=30000"
        spec = importlib.util.spec_from_file_location("model_behind_envoy", PROGRAM)
        assert spec is not None
        assert spec.loader is not None
        example: Any = importlib.util.module_from_spec(spec)
        spec.loader.exec_module(example)
        model = TokenModel(journal, LEAST, RESERVED)
        example.limiter = AsyncLimiter(service_url, on_store_error="closed")
        example.model = lambda question: model.produce(question.prompt, len(question.prompt.split()))
        model.rendezvous = Rendezvous(example.app)
        return model.rendezvous

    limits = (DEPLOY / "envoy" / "reservations-limits.yaml").read_text()
    plans = {"tokens: 10000/minute using fixed_window": f"tokens: {BUDGET}/{YEARLY}"}
    files = {
        "crestgate.yaml": settings("reservations-crestgate.yaml", redis_server, plans),
        "reservations-limits.yaml": replace_each(limits, {"requests_per_unit: 60": "requests_per_unit: 100000"}),
    }
    with (
        proxied(tmp_path, files, "reservations.yaml", build) as (envoy, _, rendezvous),
        Limiter(service_url) as limiter,
    ):

        def is_settled() -> bool:
            return limiter.peek("acme", "tokens").remaining == BUDGET - journal.spent()

        limiter.reset("acme", "tokens")  # of a run before, on the same Redis
        rendezvous.expect(STREAMS)
        results = run_streams(envoy, "POST", 0, STREAMS)
        statuses = Counter(status for status, _ in results)
        at_once, spent_at_once = journal.streams(), journal.spent()
        assert statuses == {200: BUDGET // RESERVED, 429: STREAMS - BUDGET // RESERVED}
        assert rendezvous.arrived == STREAMS
        assert journal.most_open() == at_once == BUDGET // RESERVED, "all admitted streams were open at once"
        words = sum(words for status, words in results if status == 200)
        assert words + 2 * at_once == spent_at_once <= BUDGET, "clients got what the journal says"

        # What was reserved and not used is there again, and is used up by further streams, one after the other.
        rendezvous.expect(0)
        number = STREAMS
        while True:
            until("what was used is settled, and nothing else", is_settled)
            ((status, _),) = run_streams(envoy, "POST", number, 1)
            if status == 429:
                break
            assert status == 200
            number += 1
        spent = journal.spent()
        assert is_settled(), "the counter is the journal's total"
        assert BUDGET - RESERVED < spent <= BUDGET, "nearly all was used, and nothing beyond it"
    report(
        f"{STREAMS} streams at once, {at_once} admitted, {spent_at_once} tokens of a budget of {BUDGET}; "
        f"{number - STREAMS} more until denied: {spent} spent, overspend {max(0, spent - BUDGET)}"
    )


def test_reports_after_the_response_overspend_what_was_in_flight(
    tmp_path: Path, redis_server: RedisServer | GivenServer, report: Callable[[str], None]
) -> None:
    journal = Journal()

    def build(_: CrestgateService) -> Rendezvous:
        model = TokenModel(journal, LEAST, RESERVED)
        model.rendezvous = Rendezvous(ReportingApp(model))
        return model.rendezvous

    yearly = {
        "unit: hour": "unit: year",
        "requests_per_unit: 60000": f"requests_per_unit: {BUDGET}",
        "algorithm: token_bucket\n      burst: 1000": "algorithm: fixed_window",
    }
    limits = replace_each((DEPLOY / "envoy" / "token-limits.yaml").read_text(), yearly)
    files = {
        "crestgate.yaml": settings("crestgate.yaml", redis_server, {"config: ratelimit.yaml": "config: limits.yaml"}),
        "limits.yaml": limits,
    }
    with proxied(tmp_path, files, "tokens.yaml", build) as (envoy, crestgate, rendezvous):

        def left() -> tuple[int, str]:
            look = {"entries": [{"key": "customer", "value": "acme"}], "hitsAddend": 0}
            with crestgate.service.client(crestgate.service.key) as client:
                (status,) = client.post("/json", json={"domain": "models", "descriptors": [look]}).json()["statuses"]
            return int(status.get("limitRemaining", 0)), status["code"]

        before = run_streams(envoy, "GET", STREAMS, 10)
        assert {status for status, _ in before} == {200}
        until("what was used is charged", lambda: left() == (BUDGET - journal.spent(), "OK"))

        rendezvous.expect(STREAMS)
        results = run_streams(envoy, "GET", 0, STREAMS)
        assert Counter(status for status, _ in results) == {200: STREAMS}, "something was left when each one came"
        assert journal.most_open() == STREAMS, "all were open at once"
        spent = journal.spent()
        assert sum(words for _, words in before + results) == spent, "clients got what the journal says"
        until("the budget is used up", lambda: left() == (0, "OVER_LIMIT"))

        rendezvous.expect(0)
        after = run_streams(envoy, "GET", 2 * STREAMS, 20)
        assert {status for status, _ in after} == {429}
        assert journal.spent() == spent
        in_flight, opened_later = journal.in_flight_beyond(BUDGET)
        assert opened_later == 0
        assert BUDGET < spent <= BUDGET + in_flight
    report(
        f"{STREAMS} streams at once, all admitted; {spent} tokens of a budget of {BUDGET}: overspend {spent - BUDGET}, "
        f"with {in_flight} in flight when it was used up; the next {len(after)} were denied"
    )


def test_journal_tells_who_was_in_flight() -> None:
    journal = Journal([("open", "a"), ("token", "a"), ("open", "b"), ("token", "b"), ("token", "b"), ("end", "a")])
    assert (journal.spent(), journal.streams(), journal.most_open()) == (3, 2, 2)
    assert journal.in_flight_beyond(4) == (0, 0), "not used up"
    journal.events += [("end", "b"), ("open", "c")]
    assert journal.in_flight_beyond(1) == (3, 1)
    assert journal.in_flight_beyond(3) == (2, 1)
