"""A proxy between a client and its server that simulates network faults: refuse, stall, delay, cut in mid-reply, drop
replies, pass them byte by byte, forget connections without a word.

It runs in a thread of the test process, and works with any protocol over TCP. Its mode can be changed at any time, and
applies to open connections as well as new ones. A reply is anything that the server sends; so in a protocol where the
server sends first, its greeting is a reply too.
"""

from __future__ import annotations

import asyncio
import random
import socket
import struct
import threading
from collections.abc import Callable
from types import TracebackType

from servers.machine import PATIENCE, free_port

__all__ = ["CuttingProxy"]

_AT_ONCE = struct.pack("ii", 1, 0)
"""Linger for no time: what is closed is reset."""


class CuttingProxy:
    """Listens on `port` from the start, and by default passes everything.

    >>> with CuttingProxy(6379) as proxy:  # doctest: +SKIP
    ...     proxy.cut_after(3)
    """

    def __init__(self, target_port: int, host: str = "127.0.0.1", unharmed: str | None = None) -> None:
        """`host` is the address it listens on. Connections from the address `unharmed`, those of servers among each
        other, pass in every mode while it listens."""
        self.host = host
        self.unharmed = unharmed
        self.port = free_port()
        self.target_port = target_port
        self.accepted = 0
        """How many connections have been made to it."""
        self._listener: asyncio.Server | None = None
        self._connections: dict[asyncio.Task[None], list[asyncio.StreamWriter]] = {}
        self._unharmed: set[asyncio.Task[None]] = set()
        self._requests_pass = asyncio.Event()
        self._replies_pass = asyncio.Event()
        self._delay = self._jitter = self._drop_share = 0.0
        self._chunk = 0
        self._random = random.Random()
        self._generation = 0
        """Connections of earlier generations are half open: nothing passes, and nobody is told."""
        self._cut: int | None = None
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever, name="proxy", daemon=True)
        self._thread.start()
        self.pass_all()

    def pass_all(self) -> None:
        """Listen, pass everything immediately, and deliver what was held back."""
        self._set(requests=True, replies=True)

    def refuse(self) -> None:
        """Behave like a crashed server: close the listener, and reset open connections."""
        self._set(requests=True, replies=True, listen=False)
        self.cut()

    def hang(self, *, replies_only: bool = False) -> None:
        """Accept connections and hold everything back; or only the replies, so that requests are still executed.

        What is held back is delivered later, when all is passed again, as after a stall of the network: requests
        too, whose clients have given up by then. `cut()` first, if they must not arrive.
        """
        self._set(requests=replies_only, replies=False)

    def delay(self, seconds: float, jitter: float = 0.0) -> None:
        """Hold back each reply for `seconds`, and up to `jitter` seconds more."""
        self._set(requests=True, replies=True, delay=seconds, jitter=jitter)

    def dribble(self, chunk: int, seconds: float) -> None:
        """Pass `chunk` bytes of a reply, then wait for `seconds`, and so on."""
        self._set(requests=True, replies=True, delay=seconds, chunk=chunk)

    def drop_replies(self, share: float, seed: int = 0) -> None:
        """Close the connection instead of passing a reply, for this share of replies: the request was executed."""
        self._random.seed(seed)
        self._set(requests=True, replies=True, drop_share=share)

    def forget_connections(self) -> None:
        """Leave open connections half open, as when a server loses power: new ones pass."""
        self._do(self._forget)

    def cut_after(self, count: int) -> None:
        """Pass `count` bytes of the next reply, then close its connection; pass everything afterwards."""
        self._set(requests=True, replies=True, cut=count)

    def cut(self) -> None:
        """Reset all open connections; what was held back is lost."""
        self._do(self._reset_all)

    def close(self) -> None:
        if self._thread.is_alive():
            self.refuse()
            self._do(self._unharmed.clear)
            self.cut()
            self._do(self._end)
            self._loop.call_soon_threadsafe(self._loop.stop)
            self._thread.join(PATIENCE)
            self._loop.close()

    def __enter__(self) -> CuttingProxy:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def _set(
        self,
        *,
        requests: bool,
        replies: bool,
        listen: bool = True,
        delay: float = 0.0,
        jitter: float = 0.0,
        chunk: int = 0,
        drop_share: float = 0.0,
        cut: int | None = None,
    ) -> None:
        async def change() -> None:
            self._delay, self._jitter, self._chunk, self._drop_share, self._cut = delay, jitter, chunk, drop_share, cut
            for event, passing in ((self._requests_pass, requests), (self._replies_pass, replies)):
                event.set() if passing else event.clear()
            if listen and self._listener is None:
                self._listener = await asyncio.start_server(self._serve, self.host, self.port)
            if not listen and self._listener is not None:
                self._listener.close()
                self._listener = None

        self._do(change)

    def _do(self, work: Callable[[], object]) -> None:
        """Run it in the thread of the proxy, and wait until it is done."""

        async def call() -> None:
            result = work()
            if asyncio.iscoroutine(result):
                await result

        asyncio.run_coroutine_threadsafe(call(), self._loop).result(PATIENCE)

    def _reset_all(self) -> None:
        for task, writers in self._connections.items():
            if task in self._unharmed:
                continue
            for writer in writers:
                writer.get_extra_info("socket").setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, _AT_ONCE)
                writer.transport.abort()
            task.cancel()

    def _forget(self) -> None:
        self._generation += 1

    async def _end(self) -> None:
        await asyncio.gather(*self._connections, return_exceptions=True)

    async def _serve(self, from_client: asyncio.StreamReader, to_client: asyncio.StreamWriter) -> None:
        self.accepted += 1
        task = asyncio.current_task()
        assert task is not None
        writers = self._connections[task] = [to_client]
        pumps = self._pass_requests, self._pass_replies
        if to_client.get_extra_info("peername")[0] == self.unharmed:
            self._unharmed.add(task)
            pumps = _copy, _copy
        try:
            from_server, to_server = await asyncio.open_connection("127.0.0.1", self.target_port)
            writers.append(to_server)
            async with asyncio.TaskGroup() as group:
                group.create_task(pumps[0](from_client, to_server))
                group.create_task(pumps[1](from_server, to_client))
        except* (OSError, asyncio.CancelledError):
            pass  # one side has disconnected, or was cut off: close the other side
        finally:
            del self._connections[task]
            self._unharmed.discard(task)
            for writer in writers:
                writer.close()

    async def _pass_requests(self, source: asyncio.StreamReader, sink: asyncio.StreamWriter) -> None:
        generation = self._generation
        while data := await source.read(65536):
            await self._requests_pass.wait()
            if generation == self._generation:
                sink.write(data)
                await sink.drain()
        await self._requests_pass.wait()
        sink.write_eof()

    async def _pass_replies(self, source: asyncio.StreamReader, sink: asyncio.StreamWriter) -> None:
        generation = self._generation
        while data := await source.read(self._chunk or 65536):
            await asyncio.sleep(self._delay + self._jitter * self._random.random())
            await self._replies_pass.wait()
            if generation != self._generation:
                continue
            if self._drop_share and self._random.random() < self._drop_share:
                raise ConnectionAbortedError("the reply is dropped, as told")
            if self._cut is not None:
                if len(data) >= self._cut:
                    sink.write(data[: self._cut])
                    self._cut = None
                    raise ConnectionAbortedError("cut in mid-reply, as told")
                self._cut -= len(data)
            sink.write(data)
            await sink.drain()
        await self._replies_pass.wait()
        sink.write_eof()


async def _copy(source: asyncio.StreamReader, sink: asyncio.StreamWriter) -> None:
    while data := await source.read(65536):
        sink.write(data)
        await sink.drain()
    sink.write_eof()
