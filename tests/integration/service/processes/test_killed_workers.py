"""Workers are killed under load: others take their places, and nothing that was told or written is lost."""

from __future__ import annotations

import os
import re
import signal
from collections.abc import Callable, Iterator

import pytest

from integration.service.processes.concurrent_clients import (
    Caller,
    Load,
    Told,
    admitted,
    answering_workers,
    crowd,
    metric,
    scrape,
    until,
)
from integration.service.service_process import Service
from servers.machine import gone

WORKERS = 3
LIMIT = 6000
CALLERS = 16
COUNTERS = ("crestgate_allowed_total", "crestgate_blocked_total", "crestgate_requests_total")
Report = Callable[[str], None]


@pytest.fixture(scope="module")
def service(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Service]:
    folder = tmp_path_factory.mktemp("killed")
    temporary = folder / "temporary"
    temporary.mkdir()
    with Service(folder, environment={"TMPDIR": str(temporary)}, arguments=("--workers", str(WORKERS))) as started:
        until("all workers answer", lambda: len(answering_workers(started)) == WORKERS)
        yield started


def kill(pid: int) -> None:
    os.kill(pid, signal.SIGKILL)
    until("it is gone", lambda: gone(pid))


def asked(user: str, endpoint: str) -> dict[str, object]:
    return {"dimension": "user", "identifier": user, "endpoint": endpoint}


def test_killed_worker_is_replaced_and_nothing_is_lost(service: Service, report: Report) -> None:
    with Caller(service, service.key) as admin:
        admin.limit("survivor", LIMIT, endpoint_pattern="/survivor")
        rules = admin.ask("GET", "/api/v1/rules").data
        audit = admin.ask("GET", "/api/v1/audit").data
    until("all workers know it", lambda: know(service, "/survivor"))
    kills = 2
    check = asked("survivor", "/survivor")
    with Load(service, check, CALLERS, pause=0.01) as load:
        before = [0.0] * len(COUNTERS)
        waits = []
        for round_ in range(1, kills + 1):
            until("there is load", lambda round_=round_: len(load.answers) > round_ * 200)  # type: ignore[misc]
            killed, *others = service.worker_pids
            names = {told.worker for told in load.so_far()}
            kill(killed)
            waits.append(until("another is there", lambda: len(service.worker_pids) == WORKERS))
            until("it answers", lambda: {told.worker for told in load.so_far()} - names)  # noqa: B023
            assert set(others) < set(service.worker_pids)
            numbers = counters(service)
            assert all(now >= then for now, then in zip(numbers, before, strict=True)), (before, numbers)
            before = numbers
        load.pause = 0.0
        until("the limit is used up", lambda: not load.so_far()[-1].data["allowed"])
    answers = load.so_far()
    let_through = admitted(answers)
    report(
        f"{kills} of {WORKERS} workers killed under load, each replaced within {max(waits):.2f} s: {len(answers)} "
        f"answers, {load.broken} connections broke, {let_through} of {LIMIT} told that they may"
    )
    assert let_through <= LIMIT
    assert let_through >= LIMIT - kills * CALLERS, "what was under way is all that may be lost"
    with Caller(service, service.key) as admin:
        assert admin.ask("GET", "/api/v1/rules").data == rules
        assert admin.ask("GET", "/api/v1/audit").data == audit
    assert service.logged.count("was killed by SIGKILL") == kills


def test_all_workers_are_killed_at_once(service: Service, report: Report) -> None:
    until("all workers answer", lambda: len(answering_workers(service)) == WORKERS)
    with Caller(service, service.key) as admin:
        admin.limit("whole", LIMIT, endpoint_pattern="/whole")
    until("all workers know it", lambda: know(service, "/whole"))
    taken = admitted(crowd([service], [asked("whole", "/whole")] * 300, workers=WORKERS))
    before = counters(service)
    pids = service.worker_pids
    for pid in pids:
        kill(pid)
    seconds = until("one answers", lambda: answers(service))
    assert taken == 300
    with Caller(service) as caller:
        assert caller.check(asked("whole", "/whole")).data["remaining"] == LIMIT - taken - 1
    until("all are back", lambda: len(service.worker_pids) == WORKERS)
    assert not set(pids) & set(service.worker_pids)
    now = counters(service)
    assert all(more >= less for more, less in zip(now, before, strict=True)), (before, now)
    report(f"{WORKERS} workers killed at once: answered again after {seconds:.2f} s, with all {taken} counted")


def test_worker_that_fails_to_start_is_retried_with_backoff(service: Service, report: Report) -> None:
    until("all workers answer", lambda: len(answering_workers(service)) == WORKERS)
    rules = service.folder / ".crestgate" / "rules.db"
    away = rules.with_name("away.db")
    journal = [file for file in rules.parent.iterdir() if file.name.startswith("rules.db-")]
    rules.rename(away)
    rules.write_bytes(b"this is no database, as anybody can see" * 100)
    moved = [file.rename(file.with_name(file.name.replace("rules", "away"))) for file in journal]
    victim = service.worker_pids[0]
    kill(victim)
    said = re.compile(r"worker \d ended with exit code 1; restarting it in ([\d.]+) s")
    until("it was tried again, and again", lambda: len(said.findall(service.logged)) >= 2)
    waits = [float(wait) for wait in said.findall(service.logged)]
    assert waits == sorted(set(waits)), "each is longer than the one before"
    with Caller(service) as caller:
        assert caller.check(asked("somebody", "/survivor")).data["reason"] == "ok"
    rules.unlink()
    for file in moved:
        file.rename(file.with_name(file.name.replace("away", "rules")))
    away.rename(rules)
    until("all workers answer", lambda: len(answering_workers(service)) == WORKERS)
    assert "Traceback" not in service.logged
    report(f"a worker that could not start was tried again after {', '.join(f'{wait:g} s' for wait in waits)}")


def test_workers_stop_when_their_supervisor_is_killed(service: Service, report: Report) -> None:
    """The last of this file: nothing is left of the service."""
    pids = service.worker_pids
    assert len(pids) == WORKERS
    service.kill()
    seconds = until("all have ended", lambda: all(map(gone, pids)))
    assert not list((service.folder / "temporary").iterdir())
    assert "Traceback" not in service.logged
    report(f"{WORKERS} workers ended {seconds:.2f} s after their supervisor was killed")


def know(service: Service, endpoint: str) -> bool:
    """Whether every worker knows a rule of this endpoint."""
    reasons: dict[str, str] = {}
    while len(reasons) < WORKERS:
        with Caller(service) as caller:
            told = caller.ask("POST", "/api/v1/quota", asked("nobody", endpoint))
            reasons[told.worker] = told.data["reason"]
    return "no_rule" not in reasons.values()


def counters(service: Service) -> list[float]:
    text = scrape(service)
    return [metric(text, name) for name in COUNTERS]


def answers(service: Service) -> Told | None:
    """What it answers; nothing, if the connection is taken by nobody."""
    try:
        with Caller(service) as caller:
            return caller.ask("GET", "/healthz")
    except OSError:
        return None
