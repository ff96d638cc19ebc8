"""Server-sent events: `/dashboard/events`, one a second, for as long as the session lasts.

Bounds: `MAX_STREAMS` on this machine, in equal parts for its workers, and `MAX_PER_KEY` of one key on a worker, but no
more than half. Nothing is queued: an event is made when the one before it was taken by the connection, so a client that
does not read costs the connection's own small buffer, and is closed with it (see http/flow_control.py).
"""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import AsyncIterator, Callable

from starlette.responses import StreamingResponse

from crestgate.service.auth.sessions import Session
from crestgate.service.dashboard.live import LiveFeed
from crestgate.service.errors import ApiError

__all__ = ["MAX_PER_KEY", "MAX_STREAMS", "EventStreams"]

MAX_STREAMS = 200
MIN_STREAMS = 4
"""For a worker, however many there are."""
MAX_PER_KEY = 20


class EventStreams:
    """The open streams of one worker."""

    def __init__(self, feed: LiveFeed, workers: int) -> None:
        self._feed = feed
        self._max = max(MIN_STREAMS, MAX_STREAMS // max(workers, 1))
        self._max_per_key = min(MAX_PER_KEY, max(self._max // 2, 1))  # none takes the streams of all others
        self._open: Counter[str] = Counter()

    def open(self, session: Session, still_valid: Callable[[], bool]) -> StreamingResponse:
        """The response; ApiError if there are too many."""
        key_id = session.caller.key_id
        if self._open.total() >= self._max or self._open[key_id] >= self._max_per_key:
            raise ApiError(503, "too many pages with live data are open: close some", [(b"retry-after", b"10")])
        headers = {"Cache-Control": "no-store", "X-Accel-Buffering": "no"}  # proxies must not collect events
        return _CountedStream(self._events(still_valid), self._open, key_id, headers)

    async def _events(self, still_valid: Callable[[], bool]) -> AsyncIterator[bytes]:
        with self._feed as feed:
            history = [sample.data() for sample in feed.samples]
            yield b"retry: 3000\n" + _event("history", history)
            while not feed.stopping and still_valid():
                sample = await feed.next()
                yield _event("sample", sample.data())
            if not feed.stopping:
                yield _event("end", {})  # the page must not connect again


class _CountedStream(StreamingResponse):
    """A stream that is counted from its first byte to its end, however it ends."""

    def __init__(
        self, events: AsyncIterator[bytes], counts: Counter[str], key_id: str, headers: dict[str, str]
    ) -> None:
        super().__init__(events, headers=headers, media_type="text/event-stream")
        self._events = events
        self._counts = counts
        self._key_id = key_id

    async def __call__(self, scope, receive, send):  # type: ignore[no-untyped-def]  # as Starlette's
        self._counts[self._key_id] += 1
        try:
            await super().__call__(scope, receive, send)
        finally:
            self._counts[self._key_id] -= 1
            if not self._counts[self._key_id]:
                del self._counts[self._key_id]
            await self._events.aclose()  # type: ignore[attr-defined]  # a generator: it leaves the feed now


def _event(name: str, data: object) -> bytes:
    return f"event: {name}\ndata: {json.dumps(data, separators=(',', ':'))}\n\n".encode()
