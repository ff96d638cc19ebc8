"""Endpoints on their way out: `Deprecation` (RFC 9745) and `Sunset` (RFC 8594) on every answer, as configured."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import UTC, date, datetime, time
from email.utils import format_datetime

from headgate.config.settings import Deprecation
from headgate.rules.pattern import parse_pattern
from headgate.rules.trie import Editing, Trie
from headgate.service.asgi import Headers

__all__ = ["Deprecations"]


class Deprecations:
    """Which paths are deprecated, and what is said of them."""

    def __init__(self, configured: Sequence[Deprecation]) -> None:
        editing: Editing[list[tuple[bytes, bytes]]] = Editing(Trie())
        self._everywhere: list[tuple[bytes, bytes]] = []
        self._any = bool(configured)
        for one in configured:
            pattern = parse_pattern(one.path)
            if pattern.segments is None:
                self._everywhere = _headers(one)
            else:
                editing.put(pattern, _headers(one))
        self._trie = editing.done()

    def headers(self, path: str) -> Headers:
        """What is to be said of a path: nothing for most. The first that matches speaks."""
        if not self._any:
            return ()
        found = self._trie.matches(path)
        return found[0] if found else self._everywhere


def _headers(one: Deprecation) -> list[tuple[bytes, bytes]]:
    said = [
        (b"deprecation", b"@%d" % _midnight(one.since).timestamp()),
        (b"sunset", format_datetime(_midnight(one.sunset), usegmt=True).encode()),
    ]
    if one.link is not None:
        said.append((b"link", f'<{one.link}>; rel="deprecation"'.encode()))
    return said


def _midnight(day: date) -> datetime:
    return datetime.combine(day, time(), UTC)
