"""The service's log: one line for each event, as JSON or as text, to stderr.

Everything comes out in the same form, whoever says it: Headgate's own logger of the standard library, structlog, and
the server underneath. A line has `timestamp` (RFC 3339, UTC), `level`, `event`, `logger`, and where there is one
`worker`, `request_id` and `key`; a record of the standard library brings such fields as `extra={"fields": {…}}`. What
a client sends cannot begin a line of its own: control characters are written as escapes.

What repeats itself is held back. A warning or error that says the same as one within the last second is counted, and
the next that is said tells how many there were (`repeated`). What is said of one request, and what comes with a
traceback, is never held back: who was given a request id must find it here.
"""

from __future__ import annotations

import json
import logging
import sys
import time
from collections.abc import Callable, Iterable
from typing import TYPE_CHECKING, TextIO

import structlog
from structlog.stdlib import ProcessorFormatter
from structlog.typing import EventDict, Processor

from headgate.core.masking import MASK
from headgate.service.observe.scrubbing import Scrubber

if TYPE_CHECKING:
    from headgate.config.observing import Logs

__all__ = ["Repeats", "configure"]

REPEATS_SECONDS = 1.0
MOST_REPEATS = 256
"""Different messages that are remembered; past that all are forgotten, and may be said again."""
FIRST = ("timestamp", "level", "event", "logger", "worker", "request_id", "key")
SECRET_FIELDS = frozenset({"authorization", "cookie", "password", "secret", "token", "x-api-key", "x-headgate-key"})
SERVERS = ("uvicorn", "uvicorn.error", "uvicorn.access", "uvicorn.asgi", "asyncio", "py.warnings")


def configure(
    logs: Logs, *, stream: TextIO | None = None, worker: int | None = None, secrets: Iterable[str] = ()
) -> None:
    """Have all that is logged in this process come out here, from now on. `secrets` are taken out of every line."""
    stream = sys.stderr if stream is None else stream
    form = logs.format or ("text" if stream.isatty() else "json")
    before: list[Processor] = [
        structlog.contextvars.merge_contextvars,
        structlog.stdlib.add_log_level,
        structlog.stdlib.add_logger_name,
        structlog.processors.TimeStamper(fmt="iso", utc=True),
        structlog.processors.format_exc_info,
        _Arranged(worker),
    ]
    structlog.configure(
        processors=[
            structlog.stdlib.filter_by_level,
            structlog.stdlib.PositionalArgumentsFormatter(),
            *before,
            ProcessorFormatter.wrap_for_formatter,
        ],
        logger_factory=structlog.stdlib.LoggerFactory(),
        wrapper_class=structlog.stdlib.BoundLogger,
        cache_logger_on_first_use=False,
    )
    handler = logging.StreamHandler(stream)
    handler.setFormatter(_Formatter(before, as_json if form == "json" else as_text, Scrubber(secrets)))
    handler.addFilter(Repeats())
    root = logging.getLogger()
    root.handlers[:] = [handler]
    level = logging.getLevelNamesMapping()[logs.level.upper()]
    root.setLevel(max(level, logging.WARNING))
    own = logging.getLogger("headgate")
    own.handlers.clear()  # the command line's: it would say everything a second time, with the secrets
    own.setLevel(level)
    for name in SERVERS:  # what they say of themselves, the service says better
        logger = logging.getLogger(name)
        logger.handlers.clear()
        logger.propagate = True
        logger.setLevel(logging.NOTSET)
    logging.captureWarnings(True)


class Repeats(logging.Filter):
    """Holds back warnings and errors that say what was said within the last second, unless they tell of one request or
    have a traceback."""

    def __init__(self, now: Callable[[], float] = time.monotonic) -> None:
        super().__init__()
        self._now = now
        self._said: dict[tuple[str, int, str], tuple[float, int]] = {}

    def filter(self, record: logging.LogRecord) -> bool:
        if record.levelno < logging.WARNING:
            return True
        fields = record.msg if isinstance(record.msg, dict) else None
        if record.exc_info or _tells_more(fields if fields is not None else getattr(record, "fields", None)):
            return True
        event = str(fields.get("event")) if fields is not None else record.getMessage()
        now = self._now()
        message = (record.name, record.levelno, event)
        at, unsaid = self._said.get(message, (-REPEATS_SECONDS, 0))
        if now - at < REPEATS_SECONDS:
            self._said[message] = (at, unsaid + 1)
            return False
        if len(self._said) >= MOST_REPEATS:
            self._said.clear()
        self._said[message] = (now, 0)
        if unsaid and fields is not None:
            fields["repeated"] = unsaid
        elif unsaid:
            record.repeated = unsaid
        return True


def _tells_more(fields: object) -> bool:
    """Whether there is more to a message than its text, which no other one has."""
    return isinstance(fields, dict) and ("request_id" in fields or "exception" in fields)


class _Formatter(ProcessorFormatter):
    """A record as one line, without secrets."""

    def __init__(self, before: list[Processor], render: Callable[[EventDict], str], scrubber: Scrubber) -> None:
        super().__init__(
            processors=[ProcessorFormatter.remove_processors_meta, self._rendered],
            foreign_pre_chain=[*before[:-1], structlog.stdlib.ExtraAdder(["fields", "repeated"]), before[-1]],
        )
        self._render = render
        self._scrubber = scrubber

    def _rendered(self, logger: object, method: str, event: EventDict) -> str:
        return self._render(event)

    def format(self, record: logging.LogRecord) -> str:
        return self._scrubber.scrub(super().format(record))


class _Arranged:
    """Puts the fields that all lines have first, and hides those that are secret by their name."""

    def __init__(self, worker: int | None) -> None:
        self._worker = worker

    def __call__(self, logger: object, method: str, event: EventDict) -> EventDict:
        if self._worker is not None:
            event["worker"] = self._worker
        fields = event.pop("fields", None)
        if isinstance(fields, dict):
            event.update(fields)
        arranged = {name: event[name] for name in FIRST if name in event}
        for name, value in event.items():
            arranged[name] = MASK if name.lower() in SECRET_FIELDS else value
        return arranged


def as_json(event: EventDict) -> str:
    return json.dumps(event, default=str)


def as_text(event: EventDict) -> str:
    """
    >>> as_text({"timestamp": "2026-01-01T00:00:00Z", "level": "info", "event": "a\\nb", "n": 1, "t": "x y"})
    '2026-01-01T00:00:00Z info    a\\\\nb n=1 t="x y"'
    """
    words = [str(event.pop("timestamp", "")), f"{event.pop('level', ''):<7}", one_line(str(event.pop("event", "")))]
    for name, value in event.items():
        text = str(value)
        plain = text.isprintable() and text and not set(text) & set(' "=')
        words.append(f"{one_line(name)}={text if plain else json.dumps(text, ensure_ascii=False)}")
    return one_line(" ".join(words))


def one_line(text: str) -> str:
    """The text with an escape for every character that is not to be printed, such as the end of a line."""
    if text.isprintable():
        return text
    return "".join(c if c.isprintable() else c.encode("unicode_escape").decode() for c in text)
