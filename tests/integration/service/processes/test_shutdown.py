"""Signals: SIGTERM completes open requests, SIGHUP reloads rules, a second SIGINT stops immediately."""

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

from integration.service.processes.concurrent_clients import Client, responding_workers, wait_until
from integration.service.service_process import TIMEOUT, Service
from servers.machine import gone
from servers.redis import RedisServer

WORKERS = 2
SLOW = {"key": "slow"}
Serve = Callable[..., Service]


@contextmanager
def partial_request(service: Service, check: Mapping[str, object] = SLOW) -> Iterator[socket.socket]:
    """A check whose last byte is held back. The 100 Continue response shows that it is in progress."""
    body = json.dumps(check).encode()
    with socket.create_connection((service.host, service.port), timeout=TIMEOUT) as connection:
        lines = ["POST /api/v1/check HTTP/1.1", "host: localhost", "expect: 100-continue"]
        head = "\r\n".join([*lines, f"content-length: {len(body)}", "", ""])
        connection.sendall(head.encode())
        assert connection.recv(1000) == b"HTTP/1.1 100 Continue\r\n\r\n"
        connection.sendall(body[:-1])
        yield connection


def read_all(connection: socket.socket) -> bytes:
    """Read until the connection is closed."""
    return b"".join(iter(lambda: connection.recv(65536), b""))


def refuses_connections(service: Service) -> bool:
    try:
        socket.create_connection((service.host, service.port), timeout=TIMEOUT).close()
    except ConnectionRefusedError:
        return True
    return False


@pytest.mark.parametrize(("workers", "number"), [(1, signal.SIGINT), (WORKERS, signal.SIGTERM)])
def test_open_requests_complete_during_shutdown(workers: int, number: signal.Signals, serve: Serve) -> None:
    service = serve(arguments=("--workers", str(workers)))
    with partial_request(service) as connection, Client(service) as idle:
        idle.worker_name()
        pids = service.worker_pids
        service.signal(number)
        wait_until("new connections are refused", lambda: refuses_connections(service))
        assert service.process.poll() is None
        connection.sendall(b"}")
        head, _, body = read_all(connection).partition(b"\r\n\r\n")
        assert head.startswith(b"HTTP/1.1 200")
        assert b"connection: close" in head.lower()
        assert json.loads(body)["allowed"]
    assert service.process.wait(TIMEOUT) == 0
    assert all(map(gone, pids))
    assert "Traceback" not in service.logged


def test_second_sigint_stops_immediately(serve: Serve, report: Callable[[str], None]) -> None:
    service = serve(arguments=("--workers", str(WORKERS)), environment={"CRESTGATE_SERVER__SHUTDOWN_SECONDS": "60"})
    pids = service.worker_pids
    with partial_request(service) as connection:
        service.signal(signal.SIGINT)
        wait_until("new connections are refused", lambda: refuses_connections(service))
        assert service.process.poll() is None
        service.signal(signal.SIGINT)
        seconds = wait_until("it has ended", lambda: service.process.poll() is not None, 30)
        assert got_shutdown_error(connection)
    assert all(map(gone, pids))
    assert "Traceback" not in service.logged
    report(f"ended {seconds:.2f} s after the second interrupt, with exit code {service.process.returncode}")


def test_slow_requests_get_503_at_shutdown(serve: Serve, report: Callable[[str], None]) -> None:
    service = serve(environment={"CRESTGATE_SERVER__SHUTDOWN_SECONDS": "1"})
    with partial_request(service) as connection:
        service.signal(signal.SIGTERM)
        assert got_shutdown_error(connection)
    seconds = wait_until("it has ended", lambda: service.process.poll() is not None, 30)
    assert service.process.returncode == 0
    assert "Traceback" not in service.logged
    report(f"ended {seconds:.2f} s after the last client got 503")


def got_shutdown_error(connection: socket.socket) -> bool:
    head, _, body = read_all(connection).partition(b"\r\n\r\n")
    problem = json.loads(body)
    return (
        head.startswith(b"HTTP/1.1 503")
        and problem["status"] == 503
        and "did not complete in time: retry" in problem["detail"]
    )


def test_requests_waiting_for_a_hanging_store_are_answered(serve: Serve, report: Callable[[str], None]) -> None:
    with RedisServer() as redis:
        service = serve(config=f"store: '{redis.url}?timeout_ms=2000'\nplans: {{many: 1000/hour}}\n")
        with partial_request(service, {"key": "patient", "plans": ["many"]}) as connection, Client(service) as other:
            redis.pause()
            connection.sendall(b"}")
            other.worker_name()  # the single worker has read everything sent before
            service.signal(signal.SIGTERM)
            head, _, body = read_all(connection).partition(b"\r\n\r\n")
        seconds = wait_until("it has ended", lambda: service.process.poll() is not None)
        redis.resume()
    assert head.startswith(b"HTTP/1.1 200")
    assert json.loads(body)["reason"] == "fail_open"
    assert service.process.returncode == 0
    assert "Traceback" not in service.logged
    report(f"a check waiting for a hanging Redis got a response, and the service ended {seconds:.1f} s later")


def test_stops_while_nothing_responds(tmp_path: Path, report: Callable[[str], None]) -> None:
    """Counters and rules are both in a Redis that hangs."""
    with RedisServer() as redis:
        config = f"store: '{redis.url}'\nrules_store: '{redis.url}?prefix=rules&timeout_ms=500'\n"
        with Service(tmp_path, config) as service, Client(service) as client:
            client.check({"key": "somebody"})
            redis.pause()
            service.signal(signal.SIGTERM)
            seconds = wait_until("it has ended", lambda: service.process.poll() is not None)
            redis.resume()
            assert service.process.returncode == 0
            assert "Traceback" not in service.logged
    report(f"ended {seconds:.1f} s after SIGTERM while Redis hung")


def test_sighup_reloads_the_rules_of_all_workers(serve: Serve, report: Callable[[str], None]) -> None:
    """Polling is hourly here, so only the signal can cause the reload."""
    config = "refresh_seconds: 3600\nplans: {{many: {limit}/hour}}\n"
    service = serve(config=config.format(limit=1000), arguments=("--workers", str(WORKERS)), ready=False)
    wait_until("workers are starting", lambda: len(service.worker_pids) == WORKERS)
    pids = service.worker_pids
    for pid in [service.pid, *pids]:  # which must not kill a process that is still starting
        os.kill(pid, signal.SIGHUP)
    service.await_ready()
    wait_until("all workers respond", lambda: len(responding_workers(service)) == WORKERS)
    (service.folder / "crestgate.yaml").write_text(config.format(limit=2000))

    def limits() -> dict[str, int]:
        def limit(_: int) -> tuple[str, int]:
            with Client(service) as client:
                response = client.request("POST", "/api/v1/quota", {"key": "nobody", "plans": ["many"]})
                return response.worker, response.data["limit"]

        with ThreadPoolExecutor(8) as pool:
            return dict(pool.map(limit, range(24)))

    service.signal(signal.SIGHUP)
    seconds = wait_until("all workers have the change", lambda: list(limits().values()) == [2000] * WORKERS)
    assert service.worker_pids == pids
    report(f"{WORKERS} workers had read their rules {seconds:.2f} s after SIGHUP")


def test_sigint_during_startup_stops_all_workers(serve: Serve) -> None:
    service = serve(arguments=("--workers", str(WORKERS)), ready=False)
    wait_until("a worker is starting", lambda: service.worker_pids)
    pids = service.worker_pids
    for pid in [service.pid, *pids]:  # as a terminal does
        os.kill(pid, signal.SIGINT)
    assert service.process.wait(TIMEOUT) == 0
    assert all(map(gone, pids))
    assert "Traceback" not in service.logged


def test_node_directory_is_removed_with_the_service(tmp_path_factory: pytest.TempPathFactory, serve: Serve) -> None:
    """A directory that was already removed is not an error."""
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
