"""Real Redis clients against a real service: redis-cli, redis-py with both protocols, pipelines, TLS, workers."""

from __future__ import annotations

import socket
import subprocess
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import redis

from integration.service.service_process import GENEROUS, TIMEOUT, Service
from servers.signing import Signer

Serve = Callable[..., Service]
RESP = {"CRESTGATE_SERVER__RESP": "127.0.0.1:0"}


@pytest.fixture(scope="module")
def service(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Service]:
    plans = {"CRESTGATE_PLANS__GOLD": "3/hour using fixed_window"}
    with Service(tmp_path_factory.mktemp("resp"), environment={**GENEROUS, **RESP, **plans}) as started:
        yield started
        assert "Traceback" not in started.logged


def port_of(service: Service) -> int:
    return int(service.resp.rpartition(":")[2])


def connect(service: Service, **options: Any) -> redis.Redis:
    return redis.Redis("127.0.0.1", port_of(service), socket_timeout=TIMEOUT, decode_responses=True, **options)


def cli(service: Service, *arguments: object) -> str:
    command = ["redis-cli", "-p", str(port_of(service)), *map(str, arguments)]
    return subprocess.run(command, capture_output=True, text=True, timeout=TIMEOUT, check=True).stdout


def test_documented_answer_of_redis_cell(service: Service) -> None:
    printed = cli(service, "--no-raw", "CL.THROTTLE", "user123", 15, 30, 60)
    assert printed.splitlines() == [
        "1) (integer) 0", "2) (integer) 16", "3) (integer) 15", "4) (integer) -1", "5) (integer) 2",
    ]  # fmt: skip


def test_limit_of_one_in_an_hour(service: Service) -> None:
    """Allowed, then limited until the hour is over; a look in between changes nothing."""
    assert cli(service, "CL.THROTTLE", "hourly", 0, 1, 3600).split() == ["0", "1", "0", "-1", "3600"]
    assert cli(service, "CL.THROTTLE", "hourly", 0, 1, 3600, 0).split()[:4] == ["0", "1", "0", "-1"]
    limited, limit, remaining, retry, reset = map(int, cli(service, "CL.THROTTLE", "hourly", 0, 1, 3600).split())
    assert (limited, limit, remaining) == (1, 1, 0)
    assert 3000 < retry == reset <= 3600
    assert cli(service, "CL.THROTTLE", "hourly", 0, 1, 3600, 2).split()[:4] == ["1", "1", "0", "-1"]


@pytest.mark.parametrize("protocol", [2, 3])
def test_redis_py(service: Service, protocol: int) -> None:
    with connect(service, protocol=protocol, client_name="tests") as client:
        assert client.ping()
        assert client.execute_command("CL.THROTTLE", f"py:{protocol}", 1, 1, 3600) == [0, 2, 1, -1, 3600]
        reply = client.execute_command("RL.CHECK", f"py:{protocol}", "gold", "COST", 2)
        if protocol == 3:
            assert (reply["allowed"], reply["remaining"], reply["rule"]) == (True, 1, "gold")
        else:
            assert [*reply[:3], reply[7]] == [1, 3, 1, "gold"]
        with pytest.raises(redis.ResponseError, match="unknown command 'GET'"):
            client.get("key")


def test_pipeline_of_redis_py(service: Service) -> None:
    with connect(service, protocol=2) as client:
        pipeline = client.pipeline(transaction=False)
        for number in range(3000):
            pipeline.execute_command("CL.THROTTLE", f"pipeline:{number % 7}", 9, 10, 3600)
        replies = pipeline.execute()
    for key in range(7):
        assert [reply[0] for reply in replies[key::7]] == [0] * 10 + [1] * (len(replies[key::7]) - 10)


def test_counters_are_those_of_http(service: Service) -> None:
    with connect(service, protocol=2) as client, service.client() as http:
        client.execute_command("RL.CHECK", "shared", "gold")
        answer = http.post("/api/v1/check", json={"key": "shared", "plans": ["gold"]}).json()
        assert answer["remaining"] == 1
        assert client.execute_command("RL.PEEK", "shared", "gold")[2] == 1


def test_reset_by_a_key(service: Service) -> None:
    with connect(service, protocol=2, username="default", password=service.key) as client:
        client.execute_command("RL.CHECK", "reset", "gold", "COST", 3)
        assert client.execute_command("RL.RESET", "reset", "gold") == 1
        assert client.execute_command("RL.PEEK", "reset", "gold")[2] == 3
    with connect(service, protocol=2) as client, pytest.raises(redis.AuthenticationError):
        client.execute_command("RL.RESET", "reset", "gold")
    with service.client(service.key) as http:
        entries = http.get("/api/v1/audit").json()["entries"]
    assert ["reset"] == [entry["action"] for entry in entries if entry["subject"] == "reset"]


def test_metrics(service: Service) -> None:
    cli(service, "CL.THROTTLE", "metrics", 15, 30, 60)
    with service.client() as http:
        text = http.get("/metrics").text
    assert 'crestgate_requests_total{plane="resp",status="200"}' in text


def test_keys_where_checks_need_one(tmp_path: Path) -> None:
    with Service(tmp_path, environment={**GENEROUS, **RESP, "CRESTGATE_SERVER__CHECKS": "key"}) as service:
        with connect(service, protocol=2) as client, pytest.raises(redis.AuthenticationError):
            client.execute_command("CL.THROTTLE", "k", 1, 1, 1)
        for protocol in (2, 3):
            with connect(service, protocol=protocol, password=service.key) as client:
                assert client.execute_command("CL.THROTTLE", f"k{protocol}", 1, 1, 1)[0] == 0
            wrong = connect(service, protocol=protocol, password="cg_wrong")
            with wrong as client, pytest.raises(redis.AuthenticationError):
                client.ping()


def test_tls_and_several_workers(tmp_path: Path) -> None:
    authority = Signer(tmp_path, "authority")
    certificate, key = authority.sign("server", "subjectAltName=IP:127.0.0.1")
    config = f"server:\n  workers: 2\n  tls: {{certificate: {certificate}, key: {key}}}\n"
    with Service(tmp_path, config, environment=RESP) as service:
        assert "with TLS" in service.output.split("RESP")[1].splitlines()[0]
        replies: list[int] = []

        def check() -> None:
            with connect(service, protocol=2, ssl=True, ssl_ca_certs=str(authority.certificate)) as client:
                for _ in range(10):
                    replies.append(client.execute_command("CL.THROTTLE", "k", 49, 1, 3600)[0])

        threads = [threading.Thread(target=check) for _ in range(8)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join(TIMEOUT)
        assert (replies.count(0), replies.count(1)) == (50, 30)
        with socket.create_connection(("127.0.0.1", port_of(service)), TIMEOUT) as plain:
            plain.sendall(b"PING\r\n")
            assert b"PONG" not in plain.recv(100)


def test_shutdown_closes_connections(tmp_path: Path) -> None:
    with Service(tmp_path, environment=RESP) as service:
        with connect(service, protocol=2) as client:
            client.ping()
            assert service.stop() == 0
            with pytest.raises(redis.ConnectionError):
                client.ping()
        assert "Traceback" not in service.logged


def test_off_by_default(tmp_path: Path) -> None:
    with Service(tmp_path) as service:
        assert service.resp == ""
        assert "RESP" not in service.output
