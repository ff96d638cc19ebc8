"""The conversation with Redis, without the I/O: what is said to which server, and what its answers mean.

A talk is a generator: it yields calls (bytes for servers, all to be sent at once) and is sent their answers, and in
the end returns what it was about. `blocking.py` and `nonblocking.py` do the sending and receiving, with threads and
on an event loop; neither knows what is being said.
"""

from __future__ import annotations

import re
import time
from collections.abc import Generator, Sequence
from typing import NamedTuple, TypeVar

import hiredis

from headgate.errors import StoreError
from headgate.stores.redis.program import PROGRAM, PROGRAM_SHA
from headgate.stores.redis.reply import NOT_REDIS

__all__ = [
    "Address",
    "Answer",
    "Call",
    "Evaluation",
    "Lost",
    "Talk",
    "address_in",
    "error_of",
    "evalsha",
    "evaluate",
    "load_program",
    "pack",
    "refuse_nodes_of_a_cluster",
]

T = TypeVar("T")
_HOST = re.compile(r"[0-9A-Za-z_.:%-]{1,253}")
"""A name or a numeric address, of IPv6 with its zone."""
NO_TIME = "there was no time left to ask it"
PART = 1 / 3
"""The share of the time that is left for each server that is asked where the others are."""
MOST_TRIES = 5
SHORT_REPLY_BYTES = 8192
"""What the reply to a command may have that is answered by a word, an address or an error."""
MAX_INFO_BYTES = 64 * 1024
SEARCH_PAUSE = 0.1
"""Seconds after a search for servers that found none before the next one: a flood of checks must not flood them."""


class Address(NamedTuple):
    """A server: a host and a port, or the path of a unix socket. Sentinels have a password of their own."""

    host: str
    port: int
    path: str | None = None
    sentinel: bool = False

    def __str__(self) -> str:
        if self.path is not None:
            return self.path
        return f"[{self.host}]:{self.port}" if ":" in self.host else f"{self.host}:{self.port}"


class Call(NamedTuple):
    """Commands for one server, packed, and how many answers they will have."""

    address: Address
    commands: bytes
    answers: int
    share: float = 1.0
    """How much of the time that is left it may take: who asks one server after the other keeps some for the next."""
    max_bytes: int = SHORT_REPLY_BYTES
    """Of all its replies together. A server that sends more is cut off."""
    max_elements: int = 0
    """Of all arrays in them together."""


class Lost(NamedTuple):
    """There is no answer. `sent` tells whether the server may have carried out what it was told."""

    problem: str
    sent: bool


Answer = list[object] | Lost
Talk = Generator[list[Call], list[Answer], T]


def pack(command: tuple[str | bytes | int, ...]) -> bytes:
    """A command as it goes to a server."""
    packed: bytes = hiredis.pack_command(command)  # type: ignore[arg-type]  # its stub says a tuple of one
    return packed


def evalsha(keys: Sequence[bytes], batch: bytes) -> bytes:
    """The command that runs the program, which the server is thought to know."""
    return pack(("EVALSHA", PROGRAM_SHA, len(keys), *keys, batch))


class Evaluation:
    """One run of the program on one server: the keys, the batch, and, once it is over, what came of it."""

    __slots__ = ("answer", "asking", "batch", "keys", "malformed", "max_reply_bytes", "parted", "slot", "whole")

    def __init__(
        self, keys: Sequence[bytes], batch: bytes, slot: int, max_reply_bytes: int = SHORT_REPLY_BYTES
    ) -> None:
        self.keys = keys
        self.batch = batch
        self.slot = slot
        self.max_reply_bytes = max_reply_bytes
        self.malformed = False  # the reply is neither an answer nor an error
        self.asking: Address | None = None  # a cluster is moving the slot, and this node must be asked this once
        self.whole = False  # the server does not know the program: send all of it
        self.parted = False  # a cluster is moving the slot, and the keys are on two nodes by now
        self.answer: bytes | StoreError | None = None

    def packed(self) -> bytes:
        if self.whole:
            command = pack(("EVAL", PROGRAM, len(self.keys), *self.keys, self.batch))
        else:
            command = evalsha(self.keys, self.batch)
        return pack(("ASKING",)) + command if self.asking is not None else command


class Topology:
    """Which server has which slot. This one is a single server; sentinel.py and cluster.py have others."""

    def __init__(self, address: Address) -> None:
        self.address = address
        self.doubtful = False
        """Something went wrong since the servers were last found: look again before the next batch."""
        self.searched_in_vain = float("-inf")
        self.found_the_same = float("-inf")

    def address_of(self, slot: int) -> Address:
        return self.address

    def find(self) -> Talk[None]:
        """Find out where the servers are; StoreError when nobody knows."""
        yield from ()
        self.doubtful = False

    def moved(self, slot: int, address: Address) -> None:
        """A server said that this slot is elsewhere now."""

    def can_move(self) -> bool:
        """Whether looking again may help when a server is away or no longer in charge."""
        return False


def refuse_nodes_of_a_cluster(address: Address) -> Talk[None]:
    """A node of a cluster would decide some keys and refuse the others. (Who may not ask that is not told.)"""
    (answer,) = yield [Call(address, pack(("INFO", "server")), 1, max_bytes=MAX_INFO_BYTES)]
    if not isinstance(answer, Lost) and isinstance(answer[0], bytes) and b"redis_mode:cluster" in answer[0]:
        raise StoreError(f"Redis at {address}: this is a node of a cluster: write redis+cluster://{address}")


def load_program(addresses: Sequence[Address]) -> Talk[None]:
    """Make the program known to the servers, so that no check is the first to bring it."""
    # To one who has not logged in a server says so only after a short command.
    load = pack(("PING",)) + pack(("SCRIPT", "LOAD", PROGRAM))
    answers = yield [Call(address, load, 2) for address in addresses]
    for address, answer in zip(addresses, answers, strict=True):
        problem = answer.problem if isinstance(answer, Lost) else _not_loaded(answer[0], answer[1])
        if problem is not None:
            raise StoreError(f"Redis at {address}: {problem}")


def _not_loaded(ping: object, load: object) -> str | None:
    if load == PROGRAM_SHA.encode():
        return None
    hint = error_in(ping) or ""
    return (hint if hint.startswith("NOAUTH") else error_in(load)) or NOT_REDIS


def evaluate(topology: Topology, evaluations: Sequence[Evaluation]) -> Talk[None]:
    """Run the program, and again where that is known not to have happened; never where it may have."""
    if topology.doubtful and topology.can_move() and not found_the_same(topology):
        try:
            yield from search(topology)
        except StoreError as error:
            for evaluation in evaluations:
                evaluation.answer = error
            return
    waiting: Sequence[Evaluation] = evaluations
    for _ in range(MOST_TRIES):
        groups: dict[Address, list[Evaluation]] = {}
        for evaluation in waiting:
            groups.setdefault(evaluation.asking or topology.address_of(evaluation.slot), []).append(evaluation)
        answers = yield [
            Call(
                address,
                b"".join([e.packed() for e in group]),
                sum([2 if e.asking else 1 for e in group]),
                max_bytes=sum([e.max_reply_bytes + SHORT_REPLY_BYTES for e in group]),
            )
            for address, group in groups.items()
        ]
        again: list[Evaluation] = []
        lost: list[tuple[Address, Evaluation]] = []
        for (address, group), answer in zip(groups.items(), answers, strict=True):
            told, astray = hear(topology, address, group, answer)
            again += told
            lost += [(address, evaluation) for evaluation in astray]
        if lost:
            again += yield from found_elsewhere(topology, lost)
        if not again:
            return
        waiting = again


def found_elsewhere(topology: Topology, lost: Sequence[tuple[Address, Evaluation]]) -> Talk[list[Evaluation]]:
    """Look for the servers anew; returns what has another one now. The rest would only fail in the same way."""
    if found_the_same(topology):
        return []
    try:
        yield from search(topology)
    except StoreError as error:
        for _, evaluation in lost:
            evaluation.answer = error
        return []
    moved = [evaluation for address, evaluation in lost if topology.address_of(evaluation.slot) != address]
    if not moved:
        topology.found_the_same = time.monotonic()
    return moved


def found_the_same(topology: Topology) -> bool:
    """Whether a moment ago all servers were where they are thought to be: those that do not answer are just away."""
    return time.monotonic() - topology.found_the_same < SEARCH_PAUSE


def hear(
    topology: Topology, address: Address, group: Sequence[Evaluation], answer: Answer
) -> tuple[list[Evaluation], list[Evaluation]]:
    """Take note of a server's answers; returns what can be tried again, since nothing of it was carried out.

    First what the server said how to try (it knows better than any table of servers), then what is lost without
    looking for the servers anew.
    """
    told: list[Evaluation] = []
    astray: list[Evaluation] = []
    if isinstance(answer, Lost):
        topology.doubtful = True
        for evaluation in group:
            evaluation.asking = None
            evaluation.answer = StoreError(f"Redis at {address}: {answer.problem}")
        return told, astray if answer.sent or not topology.can_move() else list(group)
    position = 0
    for evaluation in group:
        position += 1 if evaluation.asking else 0
        reply = answer[position]
        position += 1
        if isinstance(reply, bytes):
            evaluation.answer = reply
            continue
        problem = error_in(reply)
        if problem is None:
            evaluation.malformed = True
            problem = NOT_REDIS
        evaluation.answer = error_of(address, problem)
        if directed(topology, evaluation, problem):
            told.append(evaluation)
        elif topology.can_move() and not in_charge(problem):
            topology.doubtful = True
            astray.append(evaluation)
    return told, astray


def search(topology: Topology) -> Talk[None]:
    """Look for the servers anew, unless that was in vain a moment ago."""
    if time.monotonic() - topology.searched_in_vain < SEARCH_PAUSE:
        raise StoreError("the Redis servers are being looked for, and were not found a moment ago")
    try:
        yield from topology.find()
    except StoreError:
        topology.searched_in_vain = time.monotonic()
        raise


def directed(topology: Topology, evaluation: Evaluation, problem: str) -> bool:
    """Whether an error says where, or how, to try again."""
    word, _, rest = problem.partition(" ")
    evaluation.asking = None
    if word == "NOSCRIPT":
        evaluation.whole = True
        return True
    if word in ("MOVED", "ASK") and topology.can_move():
        slot, _, place = rest.partition(" ")
        host, _, port = place.rpartition(":")
        there = address_in(host or topology.address_of(evaluation.slot).host, port)
        if there is None or slot != str(evaluation.slot):
            return False
        if word == "ASK":
            evaluation.asking = there
        else:
            topology.moved(evaluation.slot, there)
        return True
    evaluation.parted = word == "TRYAGAIN"
    return False


def address_in(host: object, port: object) -> Address | None:
    """The address that a server names, as bytes or text; None when it cannot be one."""
    if isinstance(host, bytes):
        host = host.decode("ascii", "replace")
    if isinstance(port, bytes | str):
        port = int(port) if len(port) <= 5 and port.isdigit() and port.isascii() else 0
    if not isinstance(host, str) or not _HOST.fullmatch(host) or not isinstance(port, int) or not 0 < port < 65536:
        return None
    return Address(host, port)


def in_charge(problem: str) -> bool:
    """Whether an error comes from a server that may decide. A replica's script stops before anything is changed."""
    return "READONLY" not in problem and not problem.startswith(("MASTERDOWN", "CLUSTERDOWN"))


def error_of(address: Address, problem: str) -> StoreError:
    """An error answer, with what to do about it where that is known."""
    if not in_charge(problem):
        problem += " (write the address of the master, or redis+sentinel:// to have it found)"
    elif problem.startswith("MOVED"):
        problem += " (this is a node of a cluster: write redis+cluster://)"
    return StoreError(f"Redis at {address}: {problem}")


def error_in(reply: object) -> str | None:
    """The text of an error answer."""
    return str(reply) if isinstance(reply, Exception) else None
