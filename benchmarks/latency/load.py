"""One turn: this file, run as a program, sends requests to one server and prints their latencies.

At a rate, the time of each request is fixed before the first is sent, and a latency counts from that time: a server
that stalls cannot make its clients ask less often, and a request that waits for a free connection is late because of it
(coordinated omission). How late requests were sent is told as well: what this process is too slow for is not the
server's. Without a rate, a number of requests is always under way.
"""

from __future__ import annotations

import ctypes
import gc
import json
import random
import select
import socket
import sys
import time
from base64 import b64decode
from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import cycle
from typing import Any

from benchmarks.latency.histogram import bucket_counts
from benchmarks.latency.wire import Connection, FailedCallError, GrpcConnection, HttpConnection

__all__ = ["Order", "send"]

WARM_UP = 0.2
"""The part of a turn before the counting begins."""
PATIENCE_SECONDS = 5.0
"""For the last answers, after the last request."""
NEAR_SECONDS = 0.05
_TIMER_SLACK = 29  # PR_SET_TIMERSLACK of prctl


@dataclass(frozen=True)
class Order:
    """A turn. The bodies are sent in rotation, from one of them on."""

    protocol: str
    port: int
    path: str
    bodies: Sequence[bytes]
    first: int
    seconds: float
    connections: int
    in_flight: int
    """Requests under way on all connections: always so many without a rate, and at most so many with one."""
    rate: float = 0.0
    seed: int = 0


class _Turn:
    """The connections of a turn, and the times of its requests."""

    def __init__(self, order: Order) -> None:
        self.order = order
        self.bodies = cycle(order.bodies)
        for _ in range(order.first % len(order.bodies)):
            next(self.bodies)
        self.sockets: dict[socket.socket, Connection] = {}
        streams = max(1, order.in_flight // order.connections)
        for _ in range(order.connections):
            connection: Connection = (
                HttpConnection(order.path) if order.protocol == "http" else GrpcConnection(order.path, streams)
            )
            link = socket.create_connection(("127.0.0.1", order.port), timeout=PATIENCE_SECONDS)
            link.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            link.sendall(connection.opening())
            self.sockets[link] = connection
        self.free = deque(self.sockets)
        self.by_number = {link.fileno(): link for link in self.sockets}
        self.poll = select.epoll()
        for number in self.by_number:
            self.poll.register(number, select.EPOLLIN)
        self.latencies: list[float] = []
        self.delays: list[float] = []
        """How much later than planned this process came to each request."""
        self.under_way = self.sent = 0

    def close(self) -> None:
        self.poll.close()
        for link in self.sockets:
            link.close()

    def write(self, planned: Sequence[float]) -> int:
        """Send as many of them as connections have room for; the number."""
        sent = full = 0
        pieces: dict[socket.socket, list[bytes]] = {}
        while sent < len(planned) and full < len(self.free):
            link = self.free[0]
            connection = self.sockets[link]
            self.free.rotate(-1)
            if connection.room() > 0:
                pieces.setdefault(link, []).append(connection.request(next(self.bodies), planned[sent]))
                sent, full = sent + 1, 0
            else:
                full += 1
        for link, requests in pieces.items():
            link.sendall(b"".join(requests))
        self.under_way += sent
        self.sent += sent
        return sent

    def read(self, timeout: float) -> list[float]:
        """Wait for answers, but not longer; the planned times of the requests that were answered."""
        answered: list[float] = []
        if timeout > 0:  # `select` counts in microseconds, and `poll` in milliseconds
            select.select([self.poll], [], [], timeout)
        for number, _ in self.poll.poll(0):
            link = self.by_number[number]
            data = link.recv(262_144)
            if not data:
                raise FailedCallError("the server closed a connection")
            done, reply = self.sockets[link].receive(data)
            if reply:
                link.sendall(reply)
            answered += done
        self.under_way -= len(answered)
        return answered


def send(order: Order) -> dict[str, Any]:
    """The rate of answers, and the latencies in buckets, of the part of a turn that counts."""
    turn = _Turn(order)
    try:
        began, ended, counted = _at_rate(turn) if order.rate else _without_pause(turn)
    finally:
        turn.close()
    delays = sorted(turn.delays)
    return {
        "calls": counted,
        "sent": turn.sent,
        "seconds": ended - began,
        "histogram": bucket_counts(taken * 1e6 for taken in turn.latencies),
        "late_p99": delays[int(len(delays) * 0.99)] * 1e6 if order.rate else 0.0,
    }


def _at_rate(turn: _Turn) -> tuple[float, float, int]:
    order = turn.order
    chance = random.Random(order.seed)
    times, at = [], 0.0
    while at < order.seconds:
        at += chance.expovariate(order.rate)
        times.append(at)
    warm = order.seconds * WARM_UP
    due, sent, answered = 0, 0, 0
    clock = time.perf_counter
    began = clock()
    while answered < len(times):
        now = clock() - began
        if now > order.seconds + PATIENCE_SECONDS:
            raise FailedCallError(f"{len(times) - answered} of {len(times)} requests were not answered in time")
        while due < len(times) and times[due] <= now:
            turn.delays.append(now - times[due])
            due += 1
        while sent < due:
            written = turn.write(times[sent : min(due, sent + 1000)])
            sent += written
            if not written:
                break
        wait = times[due] - (clock() - began) if due < len(times) else NEAR_SECONDS
        for planned in turn.read(max(0.0, min(wait, NEAR_SECONDS))):
            answered += 1
            if planned >= warm:
                turn.latencies.append(clock() - began - planned)
    return began + warm, clock(), len(turn.latencies)


def _without_pause(turn: _Turn) -> tuple[float, float, int]:
    order, clock = turn.order, time.perf_counter
    began = clock()
    warm, end = began + order.seconds * WARM_UP, began + order.seconds
    now = began
    while now < end:
        free = order.in_flight - turn.under_way
        while free > 0:
            written = turn.write([now] * free)
            free -= written
            if not written:
                break
        done = turn.read(PATIENCE_SECONDS)
        now = clock()
        if not done and turn.under_way == order.in_flight and now > end + PATIENCE_SECONDS:
            raise FailedCallError("requests were not answered in time")
        if now >= warm:
            turn.latencies += [now - planned for planned in done]
    return warm, now, len(turn.latencies)


def main() -> None:
    order = json.loads(sys.stdin.readline())
    order["bodies"] = [b64decode(body) for body in order["bodies"]]
    ctypes.CDLL(None).prctl(_TIMER_SLACK, 1, 0, 0, 0)  # wait for the nanosecond, and not for 50 microseconds more
    gc.disable()  # nothing here makes cycles
    try:
        answer = send(Order(**order))
    except (FailedCallError, OSError) as error:
        answer = {"error": f"{type(error).__name__}: {error}"}
    print(json.dumps(answer))


if __name__ == "__main__":
    main()
