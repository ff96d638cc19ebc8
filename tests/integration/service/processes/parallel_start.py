"""Several services that start at the same time, because each takes seconds."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, contextmanager

from integration.service.service_process import Service

__all__ = ["together"]


@contextmanager
def together(*starts: Callable[[], Service]) -> Iterator[list[Service]]:
    """All of them, and at the end none, also if one did not come up. Those that came up must end as they should."""
    with ExitStack() as stack:
        with ThreadPoolExecutor(len(starts)) as pool:
            coming = [pool.submit(start) for start in starts]
        for one in coming:
            if one.exception() is None:
                stack.enter_context(one.result())
        services = [one.result() for one in coming]
        yield services
        for service in services:
            assert service.stop() == 0
            assert "Traceback" not in service.logged
