"""The bystander that measures attacks must itself detect a service that does not answer."""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Callable

import pytest

from integration.service.service_process import Service
from security.bystander import Bystander, Control, memory_bytes, peak_memory_bytes, unharmed


def test_bystander_notices_a_stalled_service(serve: Callable[..., Service]) -> None:
    service = serve()
    with Bystander(service) as bystander, Control() as control:
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
        unharmed(quiet, stalled, [0.0])
    assert control.statuses(start, end) == {200}
    assert max(control.waits(middle, end)) < max(stalled)


def test_load_of_the_machine_is_not_attributed_to_the_attack() -> None:
    fast, slow = [0.001] * 100, [0.3] * 100
    unharmed(fast, slow, [0.05] * 100)
    with pytest.raises(AssertionError, match=r"control 1\.0 ms"):
        unharmed(fast, slow, fast)
    unharmed(fast, [1.5] * 100, [0.2] * 100)
    with pytest.raises(AssertionError, match="control"):
        unharmed([0.2] * 100, [1.5] * 100, [0.05] * 100)


def test_memory_is_that_of_all_processes(serve: Callable[..., Service]) -> None:
    service = serve()
    assert 10_000_000 < memory_bytes(service) <= peak_memory_bytes(service)
