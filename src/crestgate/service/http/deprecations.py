"""`Deprecation` (RFC 9745) and `Sunset` (RFC 8594) headers of deprecated endpoints, as configured."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import UTC, date, datetime, time
from email.utils import format_datetime

from crestgate.config.settings import Deprecation
from crestgate.rules.matching.patterns import parse_pattern
from crestgate.rules.matching.trie import Trie, TrieEditor
from crestgate.service.context import Headers

__all__ = ["Deprecations"]


class Deprecations:
    """The configured headers by path."""

    def __init__(self, configured: Sequence[Deprecation]) -> None:
        editing: TrieEditor[list[tuple[bytes, bytes]]] = TrieEditor(Trie())
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
        """The headers of a path; those of the first pattern that matches."""
        if not self._any:
            return ()
        headers = self._trie.matches(path)
        return headers[0] if headers else self._everywhere


def _headers(one: Deprecation) -> list[tuple[bytes, bytes]]:
    headers = [
        (b"deprecation", b"@%d" % _midnight(one.since).timestamp()),
        (b"sunset", format_datetime(_midnight(one.sunset), usegmt=True).encode()),
    ]
    if one.link is not None:
        headers.append((b"link", f'<{one.link}>; rel="deprecation"'.encode()))
    return headers


def _midnight(day: date) -> datetime:
    return datetime.combine(day, time(), UTC)
