"""Lines of a log file, plain or gzip, in batches: streamed, with a bound on the length of a line.

A log may be larger than the memory, or have no line break at all. So it is read in chunks; a line that is longer than
`MAX_LINE` is skipped and counted as bad. Whether it is gzip is seen by its first bytes, whatever its name.
"""

from __future__ import annotations

import gzip
import os
import sys
import zlib
from collections.abc import Callable, Iterator
from typing import BinaryIO, cast

from crestgate.errors import ConfigError
from crestgate.simulate.bad_lines import BadLines

__all__ = ["MAX_LINE", "LogLines"]

MAX_LINE = 64 * 1024
"""Bytes of a line."""
CHUNK = 256 * 1024
GZIP = b"\x1f\x8b"
STDIN = "-"


class LogLines:
    """The lines of one file; `-` is the standard input."""

    def __init__(self, path: str, bad: BadLines, on_read: Callable[[int], None] | None = None) -> None:
        """`on_read` is given the bytes of the file that were read so far (of gzip: compressed)."""
        self.bad = bad
        self.count = 0
        """Lines so far."""
        self._on_read = on_read
        try:
            self._raw: BinaryIO = sys.stdin.buffer if path == STDIN else open(path, "rb")  # noqa: SIM115 - see close
        except OSError as error:
            raise ConfigError(f"cannot read the log {path!r}: {error.strerror or error}") from None
        self._is_file = path != STDIN
        self.size = os.fstat(self._raw.fileno()).st_size if self._is_file else 0
        """Bytes of the file; 0 where that is not known."""

    def batches(self) -> Iterator[tuple[int, list[str]]]:
        """Complete lines, with the number of the first of them."""
        rest, skipping = b"", False
        for chunk in self._chunks():
            data = rest + chunk if rest else chunk
            end = data.rfind(b"\n")
            if end < 0:
                rest, skipping = (b"", True) if skipping or len(data) > MAX_LINE else (data, False)
                continue
            start = 0
            if skipping:
                start = data.index(b"\n") + 1  # behind the end of the line that is too long
                self._skip()
            rest = data[end + 1 :]
            skipping = len(rest) > MAX_LINE
            if skipping:
                rest = b""
            if start <= end:
                yield self._split(data[start:end])
        if skipping:
            self._skip()
        elif rest:
            yield self._split(rest)

    def close(self) -> None:
        if self._is_file:
            self._raw.close()

    def _split(self, block: bytes) -> tuple[int, list[str]]:
        lines = block.decode("utf-8", "backslashreplace").split("\n")
        first = self.count + 1
        self.count += len(lines)
        if len(block) > MAX_LINE and max(map(len, lines)) > MAX_LINE:
            for number, line in enumerate(lines):
                if len(line) > MAX_LINE:
                    self.bad.add(first + number, _too_long())
                    lines[number] = ""
        return first, lines

    def _skip(self) -> None:
        self.count += 1
        self.bad.add(self.count, _too_long())

    def _chunks(self) -> Iterator[bytes]:
        source = self._raw
        first = source.read(CHUNK) if not self._is_file else b""
        if self._is_file:
            is_gzip = source.read(2) == GZIP
            source.seek(0)
            if is_gzip:
                source = cast(BinaryIO, gzip.GzipFile(fileobj=self._raw, mode="rb"))
        elif first.startswith(GZIP):
            raise ConfigError("the log on the standard input is gzip: decompress it first, as `zcat access.log.gz |`")
        try:
            while chunk := first or source.read(CHUNK):
                first = b""
                if self._on_read is not None and self._is_file:
                    self._on_read(self._raw.tell())
                yield chunk
        except (EOFError, gzip.BadGzipFile, zlib.error) as error:
            self.bad.add(self.count + 1, f"the gzip file is damaged, and was read up to here: {error}")


def _too_long() -> str:
    return f"longer than {MAX_LINE:,} bytes"
