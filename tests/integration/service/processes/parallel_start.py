"""Starts several services in parallel, because each takes seconds."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, contextmanager

from integration.service.service_process import Service

__all__ = ["start_services"]


@contextmanager
def start_services(*starts: Callable[[], Service]) -> Iterator[list[Service]]:
    """Start all services, and stop all at the end, even if one failed to start. Each must stop cleanly."""
    with ExitStack() as stack:
        with ThreadPoolExecutor(len(starts)) as pool:
            futures = [pool.submit(start) for start in starts]
        for future in futures:
            if future.exception() is None:
                stack.enter_context(future.result())
        services = [future.result() for future in futures]
        yield services
        for service in services:
            assert service.stop() == 0
            assert "Traceback" not in service.logged
