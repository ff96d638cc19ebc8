"""The process of a bystander: see bystander.py."""

from __future__ import annotations

import http.client
import json
import select
import sys
import time
from urllib.parse import urlsplit

PAUSE = 0.002
PATIENCE = 60.0


def ask(url: str, path: str, fresh: bool) -> None:
    """Send requests until a line arrives on standard input, then write the record."""
    parts = urlsplit(url)
    assert parts.hostname is not None
    record: list[tuple[float, float, int]] = []
    connection = http.client.HTTPConnection(parts.hostname, parts.port, timeout=PATIENCE)
    sys.stdout.write("ready\n")
    sys.stdout.flush()
    while not select.select([sys.stdin], [], [], PAUSE)[0]:
        began = time.monotonic()
        status = 0
        try:
            connection.request("GET", path)
            response = connection.getresponse()
            response.read()
            status = response.status
        except OSError:
            connection.close()
        if fresh:
            connection.close()
        record.append((began, time.monotonic() - began, status))
    sys.stdout.write(json.dumps(record))


if __name__ == "__main__":
    ask(sys.argv[1], sys.argv[2], sys.argv[3] == "1")
