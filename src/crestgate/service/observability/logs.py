"""The service's log: one line per event, as JSON or text, to stderr.

All lines have one format, whether they come from Crestgate's standard library loggers, structlog or the HTTP server. A
line has `timestamp` (RFC 3339, UTC), `level`, `event`, `logger`, and optionally `worker`, `request_id` and `key`; a
standard library record passes such fields as `extra={"fields": {…}}`. Clients cannot inject lines: control characters
are escaped.

Repeated lines are suppressed. A warning or error with the text of one in the last second is counted, and the next that
is logged has the count (`repeated`). Lines with a request id or a traceback are never suppressed: whoever was given a
request id must find it here.
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

from crestgate.core.bounded_cache import BoundedCache
from crestgate.core.redaction import MASK
from crestgate.service.observability.log_redaction import Redactor

if TYPE_CHECKING:
    from crestgate.config.observability import Logs

__all__ = ["RepeatFilter", "configure"]

SUPPRESS_SECONDS = 1.0
MAX_REMEMBERED = 256
"""Different messages. When there are more, all are forgotten, and may be logged again."""
COMMON_FIELDS = ("timestamp", "level", "event", "logger", "worker", "request_id", "key")
SECRET_FIELDS = frozenset({"authorization", "cookie", "password", "secret", "token", "x-api-key", "x-crestgate-key"})
SERVER_LOGGERS = ("uvicorn", "uvicorn.error", "uvicorn.access", "uvicorn.asgi", "asyncio", "py.warnings")


def configure(
    logs: Logs, *, stream: TextIO | None = None, worker: int | None = None, secrets: Iterable[str] = ()
) -> None:
    """Set up logging of this process. `secrets` are redacted in every line."""
    stream = sys.stderr if stream is None else stream
    form = logs.format or ("text" if stream.isatty() else "json")
    processors: list[Processor] = [
        structlog.contextvars.merge_contextvars,
        structlog.stdlib.add_log_level,
        structlog.stdlib.add_logger_name,
        structlog.processors.TimeStamper(fmt="iso", utc=True),
        structlog.processors.format_exc_info,
        _FieldOrder(worker),
    ]
    structlog.configure(
        processors=[
            structlog.stdlib.filter_by_level,
            structlog.stdlib.PositionalArgumentsFormatter(),
            *processors,
            ProcessorFormatter.wrap_for_formatter,
        ],
        logger_factory=structlog.stdlib.LoggerFactory(),
        wrapper_class=structlog.stdlib.BoundLogger,
        cache_logger_on_first_use=False,
    )
    handler = logging.StreamHandler(stream)
    handler.setFormatter(_Formatter(processors, as_json if form == "json" else as_text, Redactor(secrets)))
    handler.addFilter(RepeatFilter())
    root = logging.getLogger()
    root.handlers[:] = [handler]
    level = logging.getLevelNamesMapping()[logs.level.upper()]
    root.setLevel(max(level, logging.WARNING))
    own = logging.getLogger("crestgate")
    own.handlers.clear()  # that of the command line would log everything twice, unredacted
    own.setLevel(level)
    for name in SERVER_LOGGERS:  # the service has its own lines for what these would log
        logger = logging.getLogger(name)
        logger.handlers.clear()
        logger.propagate = True
        logger.setLevel(logging.NOTSET)
    logging.captureWarnings(True)


class RepeatFilter(logging.Filter):
    """Suppresses warnings and errors with the text of one in the last second, unless they have a request id or a
    traceback."""

    def __init__(self, now: Callable[[], float] = time.monotonic) -> None:
        super().__init__()
        self._now = now
        self._logged: dict[tuple[str, int, str], tuple[float, int]] = BoundedCache(MAX_REMEMBERED)

    def filter(self, record: logging.LogRecord) -> bool:
        if record.levelno < logging.WARNING:
            return True
        fields = record.msg if isinstance(record.msg, dict) else None
        if record.exc_info or _is_unique(fields if fields is not None else getattr(record, "fields", None)):
            return True
        event = str(fields.get("event")) if fields is not None else record.getMessage()
        now = self._now()
        message = (record.name, record.levelno, event)
        at, suppressed = self._logged.get(message, (-SUPPRESS_SECONDS, 0))
        if now - at < SUPPRESS_SECONDS:
            self._logged[message] = (at, suppressed + 1)
            return False
        self._logged[message] = (now, 0)
        if suppressed and fields is not None:
            fields["repeated"] = suppressed
        elif suppressed:
            record.repeated = suppressed
        return True


def _is_unique(fields: object) -> bool:
    """Whether a record has fields that no other one has."""
    return isinstance(fields, dict) and ("request_id" in fields or "exception" in fields)


class _Formatter(ProcessorFormatter):
    """Formats a record as one line, without secrets."""

    def __init__(self, processors: list[Processor], render: Callable[[EventDict], str], redactor: Redactor) -> None:
        super().__init__(
            processors=[ProcessorFormatter.remove_processors_meta, self._render_event],
            foreign_pre_chain=[*processors[:-1], structlog.stdlib.ExtraAdder(["fields", "repeated"]), processors[-1]],
        )
        self._render = render
        self._redactor = redactor

    def _render_event(self, logger: object, method: str, event: EventDict) -> str:
        return self._render(event)

    def format(self, record: logging.LogRecord) -> str:
        return self._redactor.redact(super().format(record))


class _FieldOrder:
    """Puts the common fields first, and masks those with a secret name."""

    def __init__(self, worker: int | None) -> None:
        self._worker = worker

    def __call__(self, logger: object, method: str, event: EventDict) -> EventDict:
        if self._worker is not None:
            event["worker"] = self._worker
        fields = event.pop("fields", None)
        if isinstance(fields, dict):
            event.update(fields)
        ordered = {name: event[name] for name in COMMON_FIELDS if name in event}
        for name, value in event.items():
            ordered[name] = MASK if name.lower() in SECRET_FIELDS else value
        return ordered


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
    """The text with all unprintable characters escaped, such as line breaks."""
    if text.isprintable():
        return text
    return "".join(c if c.isprintable() else c.encode("unicode_escape").decode() for c in text)
