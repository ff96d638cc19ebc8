"""Workers are killed under load: they are replaced, and no decision or write is lost."""

from __future__ import annotations

import os
import re
import signal
from collections.abc import Callable, Iterator

import pytest

from integration.service.processes.concurrent_clients import (
    Client,
    Load,
    Response,
    check_concurrently,
    count_admitted,
    metric_sum,
    responding_workers,
    scrape,
    wait_until,
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
        wait_until("all workers respond", lambda: len(responding_workers(started)) == WORKERS)
        yield started


def kill(pid: int) -> None:
    os.kill(pid, signal.SIGKILL)
    wait_until("it is gone", lambda: gone(pid))


def user_check(user: str, endpoint: str) -> dict[str, object]:
    return {"dimension": "user", "identifier": user, "endpoint": endpoint}


def test_killed_worker_is_replaced_and_nothing_is_lost(service: Service, report: Report) -> None:
    with Client(service, service.key) as admin:
        admin.put_rule("survivor", LIMIT, endpoint_pattern="/survivor")
        rules = admin.request("GET", "/api/v1/rules").data
        audit = admin.request("GET", "/api/v1/audit").data
    wait_until("all workers have the rule", lambda: all_have_rule(service, "/survivor"))
    kills = 2
    check = user_check("survivor", "/survivor")
    with Load(service, check, CALLERS, pause=0.01) as load:
        before = [0.0] * len(COUNTERS)
        waits = []
        for round_ in range(1, kills + 1):
            wait_until("there is load", lambda round_=round_: len(load.responses) > round_ * 200)  # type: ignore[misc]
            killed, *others = service.worker_pids
            names = {response.worker for response in load.snapshot()}
            kill(killed)
            waits.append(wait_until("a worker is started in its place", lambda: len(service.worker_pids) == WORKERS))
            wait_until("it responds", lambda: {response.worker for response in load.snapshot()} - names)  # noqa: B023
            assert set(others) < set(service.worker_pids)
            numbers = counters(service)
            assert all(now >= then for now, then in zip(numbers, before, strict=True)), (before, numbers)
            before = numbers
        load.pause = 0.0
        wait_until("the limit is used up", lambda: not load.snapshot()[-1].data["allowed"])
    responses = load.snapshot()
    allowed = count_admitted(responses)
    report(
        f"{kills} of {WORKERS} workers killed under load, each replaced within {max(waits):.2f} s: {len(responses)} "
        f"answers, {load.broken_connections} connections broke, {allowed} of {LIMIT} allowed"
    )
    assert allowed <= LIMIT
    assert allowed >= LIMIT - kills * CALLERS, "only requests in progress may be lost"
    with Client(service, service.key) as admin:
        assert admin.request("GET", "/api/v1/rules").data == rules
        assert admin.request("GET", "/api/v1/audit").data == audit
    assert service.logged.count("was killed by SIGKILL") == kills


def test_all_workers_are_killed_at_the_same_time(service: Service, report: Report) -> None:
    wait_until("all workers respond", lambda: len(responding_workers(service)) == WORKERS)
    with Client(service, service.key) as admin:
        admin.put_rule("whole", LIMIT, endpoint_pattern="/whole")
    wait_until("all workers have the rule", lambda: all_have_rule(service, "/whole"))
    used = count_admitted(check_concurrently([service], [user_check("whole", "/whole")] * 300, workers=WORKERS))
    before = counters(service)
    pids = service.worker_pids
    for pid in pids:
        kill(pid)
    seconds = wait_until("one worker responds", lambda: healthz(service))
    assert used == 300
    with Client(service) as client:
        assert client.check(user_check("whole", "/whole")).data["remaining"] == LIMIT - used - 1
    wait_until("all are back", lambda: len(service.worker_pids) == WORKERS)
    assert not set(pids) & set(service.worker_pids)
    now = counters(service)
    assert all(more >= less for more, less in zip(now, before, strict=True)), (before, now)
    report(
        f"{WORKERS} workers killed at the same time: responding again after {seconds:.2f} s, with all {used} counted"
    )


def test_worker_that_fails_to_start_is_retried_with_backoff(service: Service, report: Report) -> None:
    wait_until("all workers respond", lambda: len(responding_workers(service)) == WORKERS)
    rules = service.folder / ".crestgate" / "rules.db"
    away = rules.with_name("away.db")
    journal = [file for file in rules.parent.iterdir() if file.name.startswith("rules.db-")]
    rules.rename(away)
    rules.write_bytes(b"this is no database, as anybody can see" * 100)
    moved = [file.rename(file.with_name(file.name.replace("rules", "away"))) for file in journal]
    victim = service.worker_pids[0]
    kill(victim)
    restart_message = re.compile(r"worker \d ended with exit code 1; restarting it in ([\d.]+) s")
    wait_until("it was restarted several times", lambda: len(restart_message.findall(service.logged)) >= 2)
    waits = [float(wait) for wait in restart_message.findall(service.logged)]
    assert waits == sorted(set(waits)), "each delay is longer than the previous"
    with Client(service) as client:
        assert client.check(user_check("somebody", "/survivor")).data["reason"] == "ok"
    rules.unlink()
    for file in moved:
        file.rename(file.with_name(file.name.replace("away", "rules")))
    away.rename(rules)
    wait_until("all workers respond", lambda: len(responding_workers(service)) == WORKERS)
    assert "Traceback" not in service.logged
    report(f"a worker that could not start was tried again after {', '.join(f'{wait:g} s' for wait in waits)}")


def test_workers_stop_when_their_supervisor_is_killed(service: Service, report: Report) -> None:
    """Must be the last test of this file: it stops the service."""
    pids = service.worker_pids
    assert len(pids) == WORKERS
    service.kill()
    seconds = wait_until("all have ended", lambda: all(map(gone, pids)))
    assert not list((service.folder / "temporary").iterdir())
    assert "Traceback" not in service.logged
    report(f"{WORKERS} workers ended {seconds:.2f} s after their supervisor was killed")


def all_have_rule(service: Service, endpoint: str) -> bool:
    """Whether every worker has a rule for this endpoint."""
    reasons: dict[str, str] = {}
    while len(reasons) < WORKERS:
        with Client(service) as client:
            response = client.request("POST", "/api/v1/quota", user_check("nobody", endpoint))
            reasons[response.worker] = response.data["reason"]
    return "no_rule" not in reasons.values()


def counters(service: Service) -> list[float]:
    text = scrape(service)
    return [metric_sum(text, name) for name in COUNTERS]


def healthz(service: Service) -> Response | None:
    """The response; None if no worker accepts the connection."""
    try:
        with Client(service) as client:
            return client.request("GET", "/healthz")
    except OSError:
        return None
