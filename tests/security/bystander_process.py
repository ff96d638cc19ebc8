"""The process of a bystander: see bystander.py."""

from __future__ import annotations

import http.client
import json
import select
import sys
import time
from urllib.parse import urlsplit

from security.run_delay import RunDelay

PAUSE = 0.002
TIMEOUT = 300.0


def send_requests(url: str, path: str, fresh: bool, pids: list[int]) -> None:
    """Send requests until a line arrives on standard input, then write the record."""
    delay = RunDelay(pids)
    parts = urlsplit(url)
    assert parts.hostname is not None
    record: list[tuple[float, float, int]] = []
    connection = http.client.HTTPConnection(parts.hostname, parts.port, timeout=TIMEOUT)
    sys.stdout.write("ready\n")
    sys.stdout.flush()
    while not select.select([sys.stdin], [], [], PAUSE)[0]:
        delay.start()
        began = time.monotonic()
        status = 0
        try:
            connection.request("GET", path)
            response = connection.getresponse()
            response.read()
            status = response.status
        except OSError:
            connection.close()
        took = time.monotonic() - began
        record.append((began, max(took - delay.seconds(), 0.0), status))
        if fresh:
            connection.close()
    sys.stdout.write(json.dumps(record))


if __name__ == "__main__":
    send_requests(sys.argv[1], sys.argv[2], sys.argv[3] == "1", [int(pid) for pid in sys.argv[4:]])
