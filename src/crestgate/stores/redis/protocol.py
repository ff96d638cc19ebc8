# mypyc: compile
"""Sans-I/O protocol with Redis servers: which command goes to which server, and what the replies mean.

An `Exchange` is a generator: it yields calls (commands for servers, to be sent concurrently), is sent their results,
and returns its own result in the end. `sync_client.py` and `async_client.py` do the I/O, on threads and on an event
loop.
"""

from __future__ import annotations

import re
import time
from collections.abc import Callable, Generator, Sequence
from typing import NamedTuple, TypeVar

import hiredis

from crestgate.errors import StoreError
from crestgate.stores.redis.reply import NOT_REDIS
from crestgate.stores.redis.script import SCRIPT, SCRIPT_SHA

__all__ = [
    "Call",
    "CallFailure",
    "CallResult",
    "Evaluation",
    "Exchange",
    "ServerAddress",
    "error_of",
    "evaluate",
    "load_script",
    "pack",
    "parse_address",
    "refuse_cluster_node",
]

T = TypeVar("T")
_HOST = re.compile(r"[0-9A-Za-z_.:%-]{1,253}")
"""A host name or a numeric address, of IPv6 with its zone."""
NO_TIME = "there was no time left to ask it"
DISCOVERY_SHARE = 1 / 3
"""Share of the remaining time for each server that is asked for the topology."""
MAX_ATTEMPTS = 5
SHORT_REPLY_BYTES = 8192
"""Maximum reply to a command that is answered by a word, an address or an error."""
MAX_INFO_BYTES = 64 * 1024
DISCOVERY_PAUSE = 0.1
"""Seconds between failed discoveries: a flood of checks must not become a flood of discoveries."""

pack: Callable[[tuple[str | bytes | int, ...]], bytes] = hiredis.pack_command  # type: ignore[assignment]  # wrong stub
"""Encode a command."""


class ServerAddress(NamedTuple):
    """A server: host and port, or the path of a unix socket. Sentinels have a password of their own."""

    host: str
    port: int
    path: str | None = None
    sentinel: bool = False

    def __str__(self) -> str:
        if self.path is not None:
            return self.path
        return f"[{self.host}]:{self.port}" if ":" in self.host else f"{self.host}:{self.port}"


class Call(NamedTuple):
    """Encoded commands for one server, and the bounds of their replies."""

    address: ServerAddress
    commands: bytes
    replies: int
    share: float = 1.0
    """Share of the remaining time it may take: an exchange that asks servers in turn leaves some for the next."""
    max_bytes: int = SHORT_REPLY_BYTES
    """Of all its replies together. A server that sends more is disconnected."""
    max_elements: int = 0
    """Of all arrays in them together."""


class CallFailure(NamedTuple):
    """There is no reply. `sent` tells whether the server may have executed the commands."""

    reason: str
    sent: bool


CallResult = list[object] | CallFailure
Exchange = Generator[list[Call], list[CallResult], T]


class Evaluation:
    """One run of the script on one server: its arguments (number of keys, keys, batch), and its reply in the end."""

    __slots__ = ("arguments", "ask_address", "malformed", "max_reply_bytes", "reply", "send_source", "slot", "split")

    def __init__(
        self, arguments: tuple[str | bytes | int, ...], slot: int, max_reply_bytes: int = SHORT_REPLY_BYTES
    ) -> None:
        self.arguments = arguments
        self.slot = slot
        self.max_reply_bytes = max_reply_bytes
        self.malformed = False  # the reply is neither the script's nor an error
        self.ask_address: ServerAddress | None = (
            None  # the slot is being migrated: ask this node, after ASKING, this time
        )
        self.send_source = False  # the server does not have the script: EVAL instead of EVALSHA
        self.split = False  # the slot is being migrated, and the keys are on two nodes
        self.reply: bytes | StoreError | None = None

    def encode(self) -> bytes:
        script = ("EVAL", SCRIPT) if self.send_source else ("EVALSHA", SCRIPT_SHA)
        command = pack((*script, *self.arguments))
        return pack(("ASKING",)) + command if self.ask_address is not None else command


class Topology:
    """Maps slots to servers. This one is a single server; sentinel.py and cluster.py have others."""

    def __init__(self, address: ServerAddress) -> None:
        self.address = address
        self.stale = False
        """A server failed or redirected since the last discovery: discover again before the next batch."""
        self.discovery_failed_at = float("-inf")
        self.unchanged_at = float("-inf")

    def address_of(self, slot: int) -> ServerAddress:
        return self.address

    def discover(self) -> Exchange[None]:
        """Find out the servers' addresses; StoreError if no server tells."""
        yield from ()
        self.stale = False

    def moved(self, slot: int, address: ServerAddress) -> None:
        """A MOVED reply: this slot has another master now."""

    def can_change(self) -> bool:
        """Whether discovery may help when a server is down or no longer a master."""
        return False


def refuse_cluster_node(address: ServerAddress) -> Exchange[None]:
    """StoreError for a node of a cluster: it would decide some keys and refuse the others. INFO may be forbidden."""
    (result,) = yield [Call(address, pack(("INFO", "server")), 1, max_bytes=MAX_INFO_BYTES)]
    if not isinstance(result, CallFailure) and isinstance(result[0], bytes) and b"redis_mode:cluster" in result[0]:
        raise StoreError(f"Redis at {address}: this is a node of a cluster: write redis+cluster://{address}")


def load_script(addresses: Sequence[ServerAddress]) -> Exchange[None]:
    """SCRIPT LOAD on the servers, so that no check has to send the source."""
    # Before AUTH a server answers only short commands with NOAUTH; it drops the connection for long ones.
    load = pack(("PING",)) + pack(("SCRIPT", "LOAD", SCRIPT))
    results = yield [Call(address, load, 2) for address in addresses]
    for address, result in zip(addresses, results, strict=True):
        reason = result.reason if isinstance(result, CallFailure) else _load_error(result[0], result[1])
        if reason is not None:
            raise StoreError(f"Redis at {address}: {reason}")


def _load_error(ping: object, load: object) -> str | None:
    if load == SCRIPT_SHA.encode():
        return None
    ping_error = error_in(ping) or ""
    return (ping_error if ping_error.startswith("NOAUTH") else error_in(load)) or NOT_REDIS


def evaluate(topology: Topology, evaluations: Sequence[Evaluation]) -> Exchange[None]:
    """Run the script; retry what certainly was not executed, and never what may have been."""
    if topology.stale and topology.can_change() and not recently_unchanged(topology):
        try:
            yield from discover(topology)
        except StoreError as error:
            for evaluation in evaluations:
                evaluation.reply = error
            return
    pending: Sequence[Evaluation] = evaluations
    for _ in range(MAX_ATTEMPTS):
        groups: dict[ServerAddress, list[Evaluation]] = {}
        for evaluation in pending:
            groups.setdefault(evaluation.ask_address or topology.address_of(evaluation.slot), []).append(evaluation)
        results = yield [
            Call(
                address,
                b"".join([e.encode() for e in group]),
                sum([2 if e.ask_address else 1 for e in group]),
                max_bytes=sum([e.max_reply_bytes + SHORT_REPLY_BYTES for e in group]),
            )
            for address, group in groups.items()
        ]
        retry: list[Evaluation] = []
        failed: list[tuple[ServerAddress, Evaluation]] = []
        for (address, group), result in zip(groups.items(), results, strict=True):
            redirected, unserved = read_result(topology, address, group, result)
            retry += redirected
            failed += [(address, evaluation) for evaluation in unserved]
        if failed:
            retry += yield from rediscover(topology, failed)
        if not retry:
            return
        pending = retry


def rediscover(topology: Topology, failed: Sequence[tuple[ServerAddress, Evaluation]]) -> Exchange[list[Evaluation]]:
    """Discover the topology; returns what has another server now. The rest would fail in the same way again."""
    if recently_unchanged(topology):
        return []
    try:
        yield from discover(topology)
    except StoreError as error:
        for _, evaluation in failed:
            evaluation.reply = error
        return []
    moved = [evaluation for address, evaluation in failed if topology.address_of(evaluation.slot) != address]
    if not moved:
        topology.unchanged_at = time.monotonic()
    return moved


def recently_unchanged(topology: Topology) -> bool:
    """Whether the last discovery, a moment ago, changed nothing: servers that do not answer are just down."""
    return time.monotonic() - topology.unchanged_at < DISCOVERY_PAUSE


def read_result(
    topology: Topology, address: ServerAddress, group: Sequence[Evaluation], result: CallResult
) -> tuple[list[Evaluation], list[Evaluation]]:
    """Store a server's replies; returns what can be retried, since it was not executed.

    First what the server redirected (it knows better than any slot table), then what needs a discovery.
    """
    redirected: list[Evaluation] = []
    unserved: list[Evaluation] = []
    if isinstance(result, CallFailure):
        topology.stale = True
        for evaluation in group:
            evaluation.ask_address = None
            evaluation.reply = StoreError(f"Redis at {address}: {result.reason}")
        return redirected, unserved if result.sent or not topology.can_change() else list(group)
    position = 0
    for evaluation in group:
        position += 1 if evaluation.ask_address else 0
        reply = result[position]
        position += 1
        if isinstance(reply, bytes):
            evaluation.reply = reply
            continue
        reason = error_in(reply)
        if reason is None:
            evaluation.malformed = True
            reason = NOT_REDIS
        evaluation.reply = error_of(address, reason)
        if redirect(topology, evaluation, reason):
            redirected.append(evaluation)
        elif topology.can_change() and not from_master(reason):
            topology.stale = True
            unserved.append(evaluation)
    return redirected, unserved


def discover(topology: Topology) -> Exchange[None]:
    """Discover the topology, unless that failed a moment ago."""
    if time.monotonic() - topology.discovery_failed_at < DISCOVERY_PAUSE:
        raise StoreError("Redis topology discovery failed recently; retrying shortly")
    try:
        yield from topology.discover()
    except StoreError:
        topology.discovery_failed_at = time.monotonic()
        raise


def redirect(topology: Topology, evaluation: Evaluation, reason: str) -> bool:
    """Whether an error reply says where, or how, to retry; prepares the evaluation for it."""
    word, _, rest = reason.partition(" ")
    evaluation.ask_address = None
    if word == "NOSCRIPT":
        evaluation.send_source = True
        return True
    if word in ("MOVED", "ASK") and topology.can_change():
        slot, _, location = rest.partition(" ")
        host, _, port = location.rpartition(":")
        target = parse_address(host or topology.address_of(evaluation.slot).host, port)
        if target is None or slot != str(evaluation.slot):
            return False
        if word == "ASK":
            evaluation.ask_address = target
        else:
            topology.moved(evaluation.slot, target)
        return True
    evaluation.split = word == "TRYAGAIN"
    return False


def parse_address(host: object, port: object) -> ServerAddress | None:
    """The address in a reply, as bytes or text; None if it is not valid."""
    if isinstance(host, bytes):
        host = host.decode("ascii", "replace")
    if isinstance(port, bytes | str):
        port = int(port) if len(port) <= 5 and port.isdigit() and port.isascii() else 0
    if not isinstance(host, str) or not _HOST.fullmatch(host) or not isinstance(port, int) or not 0 < port < 65536:
        return None
    return ServerAddress(host, port)


def from_master(reason: str) -> bool:
    """Whether an error comes from a server that may decide. On a replica the script stops before it writes."""
    return "READONLY" not in reason and not reason.startswith(("MASTERDOWN", "CLUSTERDOWN"))


def error_of(address: ServerAddress, reason: str) -> StoreError:
    """An error reply, with a remedy where one is known."""
    if not from_master(reason):
        reason += " (write the address of the master, or redis+sentinel:// to have it found)"
    elif reason.startswith("MOVED"):
        reason += " (this is a node of a cluster: write redis+cluster://)"
    return StoreError(f"Redis at {address}: {reason}")


def error_in(reply: object) -> str | None:
    """The text of an error reply."""
    return str(reply) if isinstance(reply, Exception) else None
