"""What clients send when they connect: keys, protocol versions, names."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import pytest

import crestgate
from crestgate.config.server import Address
from crestgate.core.limit import Limit
from crestgate.rules.port import Edit
from unit.service.resp.clients import Client
from unit.service.worker import ADMIN, ALICE, Worker

Start = Callable[..., Client]
CLOSED = {"checks": "key"}
UNKNOWN = "ERR unknown command 'GET': there are CL.THROTTLE, RL.CHECK, RL.PEEK, RL.RESET, and no keys to read or write"
NOAUTH = "NOAUTH Authentication required: send AUTH with an API key"


@pytest.fixture
def start() -> Iterator[Start]:
    workers: list[Worker] = []

    def make(**options: Any) -> Client:
        workers.append(Worker(**options))
        return Client(workers[-1])

    yield make
    for worker in workers:
        worker.close()


@pytest.mark.parametrize(
    ("command", "reply"),
    [
        ("PING", "PONG"),
        ("PING hello", "hello"),
        ("ECHO hello", "hello"),
        ("SELECT 0", "OK"),
        ("CLIENT SETINFO LIB-NAME redis-py", "OK"),
        ("CLIENT SETNAME worker-1", "OK"),
        ("CLIENT GETNAME", None),
        ("COMMAND", []),
        ("COMMAND DOCS", []),
        ("COMMAND COUNT", 0),
        ("RESET", "RESET"),
        ("QUIT", "OK"),
    ],
)
def test_commands(start: Start, command: str, reply: object) -> None:
    assert start().call(*command.split()) == reply
    assert start().call(*command.lower().split()) == reply


@pytest.mark.parametrize(
    ("command", "error"),
    [
        ("GET key", UNKNOWN),
        ("SELECT 1", "ERR DB index is out of range: there is one database, 0"),
        ("CLIENT LIST", "ERR unknown CLIENT subcommand: there are ID, GETNAME, SETNAME and SETINFO"),
        ("PING a b", "ERR wrong number of arguments for 'ping' command"),
        ("HELLO 4", "NOPROTO unsupported protocol version: there are 2 and 3"),
        ("HELLO 3 NAME x", "ERR Syntax error in HELLO option 'NAME'"),
        ("HELLO 3 AUTH x", "ERR Syntax error in HELLO option 'AUTH'"),
        ("AUTH", "ERR wrong number of arguments for 'auth' command"),
    ],
)  # fmt: skip
def test_errors(start: Start, command: str, error: str) -> None:
    assert start().error(*command.split()) == error


def test_error_shows_little_of_an_unknown_command(start: Start) -> None:
    error = start().error("x\r\ny" * 500)
    assert len(error) < 200
    assert "\n" not in error


def test_info_says_that_it_is_ready(start: Start) -> None:
    lines = start().call("INFO").split("\r\n")
    assert {"loading:0", "role:master", f"crestgate_version:{crestgate.__version__}"} <= set(lines)


def test_hello(start: Start) -> None:
    client = start()
    reply = client.call("HELLO")
    assert reply[:6] == ["server", "crestgate", "version", crestgate.__version__, "proto", 2]
    reply = client.call("HELLO", 3, "SETNAME", "me")
    assert (reply["proto"], reply["mode"], reply["role"]) == (3, "standalone", "master")
    assert client.call("CLIENT", "GETNAME") == "me"
    assert client.call("CLIENT", "ID") == reply["id"]
    assert client.call("COMMAND", "DOCS") == {}
    client.call("RESET")
    assert client.call("CLIENT", "GETNAME") is None


def test_nothing_follows_quit(start: Start) -> None:
    client = start()
    assert client.pipeline([("PING",), ("QUIT",), ("PING",)]) == ["PONG", "OK"]
    assert client.session.closing


@pytest.mark.parametrize("command", ["PING", "CL.THROTTLE k 1 1 1", "RL.CHECK k", "INFO", "COMMAND", "CLIENT ID"])
def test_key_is_required_where_checks_need_one(start: Start, command: str) -> None:
    client = start(server=CLOSED)
    assert client.error(*command.split()) == NOAUTH
    assert client.call("AUTH", client.worker.key("check")) == "OK"
    client.call(*command.split())
    client.call("RESET")
    assert client.error(*command.split()) == NOAUTH


def test_key_is_required_beyond_loopback(start: Start) -> None:
    assert start(server={"resp": Address("0.0.0.0", 6380)}).error("CL.THROTTLE", "k", 1, 1, 1) == NOAUTH


@pytest.mark.parametrize(
    "command", ["AUTH {}", "AUTH default {}", "HELLO 3 AUTH default {}", "HELLO 2 AUTH x {} SETNAME y"]
)
def test_key_is_sent_in_every_usual_form(start: Start, command: str) -> None:
    client = start(server=CLOSED)
    assert client.error("HELLO", 3).startswith("NOAUTH HELLO must be called with the client already authenticated")
    client.call(*command.format(ADMIN).split())
    assert client.call("PING") == "PONG"


def test_pipelined_key_counts_for_what_follows(start: Start) -> None:
    client = start(server=CLOSED)
    check = ("CL.THROTTLE", "k", 1, 1, 1)
    first, auth, second = client.pipeline([check, ("AUTH", client.worker.key("check")), check])
    assert (str(first), auth, second[0]) == (NOAUTH, "OK", 0)


def test_unknown_key_is_refused_and_limited(start: Start) -> None:
    client = start(server=CLOSED, limits={"failed_logins": Limit(2, 60)})
    unknown = "WRONGPASS unknown API key: it does not exist, was revoked or has expired"
    assert [client.error("AUTH", "nonsense-nonsense") for _ in range(2)] == [unknown, unknown]
    assert client.error("AUTH", "nonsense-nonsense").startswith("BUSY too many calls with an unknown API key")
    assert client.error("AUTH", "").startswith("WRONGPASS")
    assert client.error("PING") == NOAUTH
    assert client.call("AUTH", ADMIN) == "OK"  # a valid key still works


def test_revoked_key_ends_with_the_next_commands(start: Start) -> None:
    """Also on a listener that needs none: who sends a key expects to be authenticated."""
    client = start()
    token = client.worker.key("check")
    client.call("AUTH", token)
    client.call("CL.THROTTLE", "k", 1, 1, 1)
    client.worker.repository.write([Edit("key", token.split("_")[1], None)], ALICE)
    assert client.error("CL.THROTTLE", "k", 1, 1, 1).startswith("NOAUTH unknown API key")
