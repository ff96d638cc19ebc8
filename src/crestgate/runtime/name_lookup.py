"""Host name lookups with a deadline.

The system's resolver cannot be interrupted, and takes seconds when a name server is away. So a thread makes the lookup,
and those that need it wait for its result until their deadline. All that need a name at the same time share one lookup,
and at most MAX_LOOKUPS run in a process.

The last good addresses of a name are kept. When a lookup does not end within a fourth of the time, or fails for another
reason than that there is no such name, they are used instead: so connections can be opened while the name servers are
away.
"""

from __future__ import annotations

import socket
import time
from concurrent.futures import Future
from threading import Thread
from typing import Any, TypeAlias, final

from crestgate.runtime.fork_safety import fork_safe_lock, renew_after_fork

__all__ = ["MAX_LOOKUPS", "Addresses", "NameLookupError", "NameLookups", "is_numeric", "resolve", "resolve_async"]

MAX_LOOKUPS = 8
"""Lookups in progress, and so threads. They end when the system's resolver gives up."""
MAX_NAMES = 1024
"""Names whose addresses are kept."""
SHARE = 0.25
"""Share of the remaining time that a lookup may take while there are addresses from before."""

Addresses: TypeAlias = "list[tuple[Any, Any, int, str, Any]]"
"""What `socket.getaddrinfo` returns: family, type, protocol, canonical name and address of each."""


class NameLookupError(OSError):
    """A lookup has not ended in time. That says nothing about the server."""


def resolve(host: str, port: int, deadline: float) -> Addresses:
    """The addresses of a host, by the deadline. OSError if it has none, or the lookup takes longer."""
    if is_numeric(host):
        return _getaddrinfo(host, port)
    lookup, known, seconds = lookups.start(host, port, deadline)
    if lookup is not None:
        try:
            return lookup.result(max(seconds, 0.0))
        except (OSError, UnicodeError) as error:  # its own error, or a timeout
            if known is None or _is_final(error):
                raise _explained(error, host, lookup) from None
    return known if known is not None else _too_many(host)


async def resolve_async(host: str, port: int, deadline: float) -> Addresses:
    """The same on an event loop."""
    import asyncio  # not above: programs without an event loop would pay for it

    if is_numeric(host):
        return _getaddrinfo(host, port)
    lookup, known, seconds = lookups.start(host, port, deadline)
    if lookup is not None:
        try:
            return await asyncio.wait_for(asyncio.shield(asyncio.wrap_future(lookup)), max(seconds, 0.0))
        except (OSError, UnicodeError) as error:
            if known is None or _is_final(error):
                raise _explained(error, host, lookup) from None
    return known if known is not None else _too_many(host)


def is_numeric(host: str) -> bool:
    """Whether it is an address already, of IPv6 perhaps with its zone."""
    for family, text in ((socket.AF_INET, host), (socket.AF_INET6, host.partition("%")[0])):
        try:
            socket.inet_pton(family, text)
        except (OSError, ValueError):
            continue
        return True
    return False


def _getaddrinfo(host: str, port: int) -> Addresses:
    return list(socket.getaddrinfo(host, port, type=socket.SOCK_STREAM))


def _is_final(error: Exception) -> bool:
    """Whether another attempt would fail in the same way: there is no such name."""
    return isinstance(error, UnicodeError) or (isinstance(error, socket.gaierror) and error.errno == socket.EAI_NONAME)


def _explained(error: Exception, host: str, lookup: Future[Addresses]) -> Exception:
    if isinstance(error, TimeoutError) and not lookup.done():
        return NameLookupError(f"the lookup of the name {host!r} took too long")
    return error


def _too_many(host: str) -> Addresses:
    raise NameLookupError(f"the name {host!r} was not looked up: {MAX_LOOKUPS} lookups have not ended yet")


@final
class NameLookups:
    """The lookups of a process, and the last good addresses."""

    def __init__(self) -> None:
        self._lock = fork_safe_lock()
        self._running: dict[tuple[str, int], Future[Addresses]] = {}
        self._known: dict[tuple[str, int], Addresses] = {}
        renew_after_fork(self)

    def renew(self) -> None:
        """In a forked child: the threads are the parent's."""
        self._running = {}

    def start(self, host: str, port: int, deadline: float) -> tuple[Future[Addresses] | None, Addresses | None, float]:
        """A lookup, or None if too many are running; the addresses from before; and the seconds to wait."""
        name = (host, port)
        seconds = deadline - time.monotonic()
        with self._lock:
            known = self._known.get(name)
            lookup = self._running.get(name)
            if lookup is None and len(self._running) < MAX_LOOKUPS:
                lookup = Future()
                lookup.set_running_or_notify_cancel()  # one of those that wait cannot cancel it for the others
                thread = Thread(target=self._look_up, args=(name, lookup), name="crestgate-lookup", daemon=True)
                try:
                    thread.start()
                    self._running[name] = lookup
                except RuntimeError as error:  # no more threads, or the interpreter is shutting down
                    lookup.set_exception(NameLookupError(f"no thread to look up the name {host!r}: {error}"))
        return lookup, known, seconds if known is None else seconds * SHARE

    def _look_up(self, name: tuple[str, int], lookup: Future[Addresses]) -> None:
        addresses: Addresses = []
        problem: Exception | None = None
        try:
            addresses = _getaddrinfo(*name)
        except Exception as error:  # noqa: BLE001 - whatever it is, those that wait must get it
            problem = error
        with self._lock:
            if self._running.get(name) is lookup:
                del self._running[name]
            if addresses:
                if len(self._known) >= MAX_NAMES and name not in self._known:
                    self._known.clear()
                self._known[name] = addresses
        if problem is not None:
            lookup.set_exception(problem)
        else:
            lookup.set_result(addresses)


lookups = NameLookups()
