"""The deadline of a MySQL connection holds in whatever pieces a packet arrives."""

from __future__ import annotations

import socket
import struct
import threading
import time
from collections.abc import Iterator

import pymysql
import pytest

from crestgate.stores.sql.mysql import _Connection

BODY = b"\x00" * 600
PACKET = struct.pack("<HBB", len(BODY), 0, 0) + BODY
Pair = tuple[_Connection, socket.socket]


@pytest.fixture
def pair() -> Iterator[Pair]:
    """A connection after its handshake, and the server's end of it."""
    ours, theirs = socket.socketpair()
    connection = _Connection(defer_connect=True)
    connection._sock, connection._rfile, connection._next_seq_id = ours, ours.makefile("rb"), 0
    connection._current_timeout = None
    with theirs:
        yield connection, theirs
    connection._force_close()
    assert ours.fileno() == -1


def test_packet_by_bytes(pair: Pair) -> None:
    """Each piece comes soon, and the whole would take three seconds."""
    connection, server = pair
    stopped = threading.Event()

    def dribble() -> None:
        for at in range(0, len(PACKET), 2):
            if stopped.wait(0.01):
                return
            server.sendall(PACKET[at : at + 2])

    thread = threading.Thread(target=dribble)
    started = time.monotonic()
    connection.deadline = started + 0.1
    thread.start()
    try:
        with pytest.raises(pymysql.OperationalError):
            connection._read_packet()
        assert time.monotonic() - started < 1.0
    finally:
        stopped.set()
        thread.join()


def test_what_has_arrived_is_not_late(pair: Pair) -> None:
    """A thread that was not scheduled reads after its deadline what came before it."""
    connection, server = pair
    server.sendall(PACKET)
    connection.deadline = time.monotonic() - 0.1
    assert connection._read_packet()._data == BODY


def test_part_of_a_packet_after_the_deadline(pair: Pair) -> None:
    connection, server = pair
    server.sendall(PACKET[:10])
    connection.deadline = time.monotonic() - 0.1
    with pytest.raises(pymysql.OperationalError):
        connection._read_packet()


def test_next_deadline(pair: Pair) -> None:
    """To read past a deadline does not change the time of the next statement."""
    connection, server = pair
    server.sendall(PACKET)
    connection.deadline = time.monotonic() - 0.1
    connection._read_packet()
    connection.deadline = time.monotonic() + 0.2
    connection._next_seq_id = 0
    later = threading.Timer(0.05, server.sendall, [PACKET])
    later.start()
    assert connection._read_packet()._data == BODY
    later.join()
