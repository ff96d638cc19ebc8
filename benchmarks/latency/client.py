"""Starts one turn of load.py in a process of its own, on the cores that this process runs on."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from base64 import b64encode
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import asdict
from pathlib import Path

from benchmarks.children import child
from benchmarks.latency.load import PATIENCE_SECONDS, Order
from benchmarks.latency.results import Turn
from benchmarks.latency.wire import Connection, FailedCallError, GrpcConnection, HttpConnection
from benchmarks.service.serving import Server

__all__ = ["call_once", "on_cores", "run_turn"]

ROOT = Path(__file__).resolve().parents[2]
START_SECONDS = 15.0


def run_turn(server: Server, order: Order) -> Turn:
    """RuntimeError unless every request was answered, and with success."""
    data = asdict(order) | {"bodies": [b64encode(body).decode() for body in order.bodies]}
    used = server.processor_seconds()
    command = [sys.executable, "-m", "benchmarks.latency.load"]
    with child(command, folder=ROOT, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as process:
        patience = order.seconds + PATIENCE_SECONDS + START_SECONDS
        written, _ = process.communicate(json.dumps(data).encode() + b"\n", timeout=patience)
    used = server.processor_seconds() - used
    answer = json.loads(written or "{}")
    if not answer.get("calls"):
        raise RuntimeError(f"no turn at port {order.port}{order.path}: {answer.get('error', 'the load ended early')}")
    histogram = {int(bucket): count for bucket, count in answer["histogram"].items()}
    sent = answer["sent"]
    return Turn(answer["calls"] / answer["seconds"], used * 1e6 / sent, histogram, answer["late_p99"])


def call_once(order: Order) -> bytes:
    """The response to the first of its bodies: of HTTP the body, of gRPC the message."""
    import socket

    connection: Connection
    http, grpc = HttpConnection(order.path), GrpcConnection(order.path, 1)
    connection = http if order.protocol == "http" else grpc
    with socket.create_connection(("127.0.0.1", order.port), timeout=PATIENCE_SECONDS) as link:
        link.sendall(connection.opening() + connection.request(order.bodies[0], 0.0))
        answered: list[float] = []
        while not answered:
            data = link.recv(65_536)
            if not data:
                raise FailedCallError("the server closed the connection")
            answered, reply = connection.receive(data)
            link.sendall(reply)
    return http.body if order.protocol == "http" else grpc.messages[-1]


@contextmanager
def on_cores(cores: set[int]) -> Iterator[None]:
    """Processes started in this block run on these cores."""
    before = os.sched_getaffinity(0)
    os.sched_setaffinity(0, cores)
    try:
        yield
    finally:
        os.sched_setaffinity(0, before)
