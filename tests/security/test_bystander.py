"""The measure that the attacks are judged by must itself see a service that does not answer."""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Callable

import pytest

from integration.service.serving import Service
from security.bystander import Bystander, memory_bytes, peak_memory_bytes, unharmed


def test_bystander_notices_a_stalled_service(serve: Callable[..., Service]) -> None:
    service = serve()
    with Bystander(service) as bystander:
        start = time.monotonic()
        time.sleep(0.5)  # real requests in real time: there is no other clock to drive
        middle = time.monotonic()
        os.kill(service.pid, signal.SIGSTOP)
        try:
            time.sleep(3 * 10 * 0.1)
        finally:
            os.kill(service.pid, signal.SIGCONT)
        end = time.monotonic()
    quiet, stalled = bystander.waits(start, middle), bystander.waits(middle, end)
    assert bystander.statuses(start, end) == {200}
    assert max(stalled) > 2
    with pytest.raises(AssertionError, match="under attack"):
        unharmed(quiet, stalled)


def test_memory_is_that_of_all_processes(serve: Callable[..., Service]) -> None:
    service = serve()
    assert 10_000_000 < memory_bytes(service) <= peak_memory_bytes(service)
