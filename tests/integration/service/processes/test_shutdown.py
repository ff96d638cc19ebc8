"""What signals do: SIGTERM answers what is under way, SIGHUP has rules read again, a second Ctrl-C does not wait."""

from __future__ import annotations

import json
import os
import shutil
import signal
import socket
from collections.abc import Callable, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path

import pytest

from integration.service.processes.concurrent_clients import Caller, answering_workers, until
from integration.service.service_process import TIMEOUT, Service
from servers.machine import gone
from servers.redis import RedisServer

WORKERS = 2
SLOW = {"key": "slow"}
Serve = Callable[..., Service]


@contextmanager
def half_sent(service: Service, check: Mapping[str, object] = SLOW) -> Iterator[socket.socket]:
    """A check of which the last byte is still to come. That the service has asked for its body shows that it is under
    way."""
    body = json.dumps(check).encode()
    with socket.create_connection((service.host, service.port), timeout=TIMEOUT) as connection:
        lines = ["POST /api/v1/check HTTP/1.1", "host: localhost", "expect: 100-continue"]
        head = "\r\n".join([*lines, f"content-length: {len(body)}", "", ""])
        connection.sendall(head.encode())
        assert connection.recv(1000) == b"HTTP/1.1 100 Continue\r\n\r\n"
        connection.sendall(body[:-1])
        yield connection


def rest(connection: socket.socket) -> bytes:
    """All that comes until the connection is closed."""
    return b"".join(iter(lambda: connection.recv(65536), b""))


def closed_to_others(service: Service) -> bool:
    try:
        socket.create_connection((service.host, service.port), timeout=TIMEOUT).close()
    except ConnectionRefusedError:
        return True
    return False


@pytest.mark.parametrize(("workers", "number"), [(1, signal.SIGINT), (WORKERS, signal.SIGTERM)])
def test_open_requests_complete_during_shutdown(workers: int, number: signal.Signals, serve: Serve) -> None:
    service = serve(arguments=("--workers", str(workers)))
    with half_sent(service) as connection, Caller(service) as idle:
        idle.meet()
        pids = service.worker_pids
        service.signal(number)
        until("nobody else gets in", lambda: closed_to_others(service))
        assert service.process.poll() is None
        connection.sendall(b"}")
        head, _, body = rest(connection).partition(b"\r\n\r\n")
        assert head.startswith(b"HTTP/1.1 200")
        assert b"connection: close" in head.lower()
        assert json.loads(body)["allowed"]
    assert service.process.wait(TIMEOUT) == 0
    assert all(map(gone, pids))
    assert "Traceback" not in service.logged


def test_second_sigint_stops_at_once(serve: Serve, report: Callable[[str], None]) -> None:
    service = serve(arguments=("--workers", str(WORKERS)), environment={"CRESTGATE_SERVER__SHUTDOWN_SECONDS": "60"})
    pids = service.worker_pids
    with half_sent(service) as connection:
        service.signal(signal.SIGINT)
        until("nobody else gets in", lambda: closed_to_others(service))
        assert service.process.poll() is None
        service.signal(signal.SIGINT)
        seconds = until("it has ended", lambda: service.process.poll() is not None, 30)
        assert told_too_late(connection)
    assert all(map(gone, pids))
    assert "Traceback" not in service.logged
    report(f"ended {seconds:.2f} s after the second interrupt, with exit code {service.process.returncode}")


def test_slow_requests_get_503_at_shutdown(serve: Serve, report: Callable[[str], None]) -> None:
    service = serve(environment={"CRESTGATE_SERVER__SHUTDOWN_SECONDS": "1"})
    with half_sent(service) as connection:
        service.signal(signal.SIGTERM)
        assert told_too_late(connection)
    seconds = until("it has ended", lambda: service.process.poll() is not None, 30)
    assert service.process.returncode == 0
    assert "Traceback" not in service.logged
    report(f"ended {seconds:.2f} s after the last caller was told that it took too long")


def told_too_late(connection: socket.socket) -> bool:
    head, _, body = rest(connection).partition(b"\r\n\r\n")
    told = json.loads(body)
    return (
        head.startswith(b"HTTP/1.1 503")
        and told["status"] == 503
        and "did not complete in time: retry" in told["detail"]
    )


def test_requests_waiting_for_a_hanging_store_are_answered(serve: Serve, report: Callable[[str], None]) -> None:
    with RedisServer() as redis:
        service = serve(config=f"store: '{redis.url}?timeout_ms=2000'\nplans: {{many: 1000/hour}}\n")
        with half_sent(service, {"key": "patient", "plans": ["many"]}) as connection, Caller(service) as other:
            redis.pause()
            connection.sendall(b"}")
            other.meet()  # the one worker has read what came before that
            service.signal(signal.SIGTERM)
            head, _, body = rest(connection).partition(b"\r\n\r\n")
        seconds = until("it has ended", lambda: service.process.poll() is not None)
        redis.resume()
    assert head.startswith(b"HTTP/1.1 200")
    assert json.loads(body)["reason"] == "fail_open"
    assert service.process.returncode == 0
    assert "Traceback" not in service.logged
    report(f"a check that waited for a Redis that hung was answered, and the service ended {seconds:.1f} s later")


def test_stops_while_nothing_responds(tmp_path: Path, report: Callable[[str], None]) -> None:
    """Both the counters and the rules are in a Redis that hangs."""
    with RedisServer() as redis:
        config = f"store: '{redis.url}'\nrules_store: '{redis.url}?prefix=rules&timeout_ms=500'\n"
        with Service(tmp_path, config) as service, Caller(service) as caller:
            caller.check({"key": "somebody"})
            redis.pause()
            service.signal(signal.SIGTERM)
            seconds = until("it has ended", lambda: service.process.poll() is not None)
            redis.resume()
            assert service.process.returncode == 0
            assert "Traceback" not in service.logged
    report(f"ended {seconds:.1f} s after SIGTERM while Redis hung")


def test_sighup_reloads_the_rules_of_all_workers(serve: Serve, report: Callable[[str], None]) -> None:
    """They look for changes every hour only, so it is the signal that does it."""
    config = "refresh_seconds: 3600\nplans: {{many: {limit}/hour}}\n"
    service = serve(config=config.format(limit=1000), arguments=("--workers", str(WORKERS)), ready=False)
    until("workers are starting", lambda: len(service.worker_pids) == WORKERS)
    pids = service.worker_pids
    for pid in [service.pid, *pids]:  # which ends nobody, although they cannot do it yet
        os.kill(pid, signal.SIGHUP)
    service.await_ready()
    until("all workers answer", lambda: len(answering_workers(service)) == WORKERS)
    (service.folder / "crestgate.yaml").write_text(config.format(limit=2000))

    def limits() -> dict[str, int]:
        def limit(_: int) -> tuple[str, int]:
            with Caller(service) as caller:
                told = caller.ask("POST", "/api/v1/quota", {"key": "nobody", "plans": ["many"]})
                return told.worker, told.data["limit"]

        with ThreadPoolExecutor(8) as pool:
            return dict(pool.map(limit, range(24)))

    service.signal(signal.SIGHUP)
    seconds = until("all workers know it", lambda: list(limits().values()) == [2000] * WORKERS)
    assert service.worker_pids == pids
    report(f"{WORKERS} workers had read their rules {seconds:.2f} s after SIGHUP")


def test_sigint_during_startup_stops_all_workers(serve: Serve) -> None:
    service = serve(arguments=("--workers", str(WORKERS)), ready=False)
    until("a worker is starting", lambda: service.worker_pids)
    pids = service.worker_pids
    for pid in [service.pid, *pids]:  # as a terminal does
        os.kill(pid, signal.SIGINT)
    assert service.process.wait(TIMEOUT) == 0
    assert all(map(gone, pids))
    assert "Traceback" not in service.logged


def test_node_directory_is_removed_with_the_service(tmp_path_factory: pytest.TempPathFactory, serve: Serve) -> None:
    """And if somebody has taken it away before, that is no reason to fail."""
    temporary = tmp_path_factory.mktemp("temporary")
    service = serve(environment={"TMPDIR": str(temporary)})
    (folder,) = temporary.iterdir()
    assert folder.stat().st_mode & 0o777 == 0o700
    assert service.stop() == 0
    assert not list(temporary.iterdir())
    service = serve(environment={"TMPDIR": str(temporary)}, key=service.key)
    (folder,) = temporary.iterdir()
    shutil.rmtree(folder)
    assert service.stop() == 0
    assert "Traceback" not in service.logged
