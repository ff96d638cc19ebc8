"""One application for all proxies. Each test has its own client address, so tests do not share limits."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator
from contextlib import ExitStack

import httpx
import pytest

from integration.proxies.origin import Origin, serve_origin
from servers.process import ServerProcess

OpenClient = Callable[[ServerProcess], httpx.Client]
_addresses = itertools.count(2)


@pytest.fixture(scope="session")
def application() -> Iterator[Origin]:
    with serve_origin() as started:
        yield started


@pytest.fixture
def address() -> str:
    """An unused address: all of 127.0.0.0/8 is this machine."""
    number = next(_addresses)
    return f"127.0.{number // 250 + 1}.{number % 250 + 1}"


@pytest.fixture
def open_client(address: str) -> Iterator[OpenClient]:
    """Opens clients of a proxy, all at the test's address."""
    with ExitStack() as stack:

        def at(proxy: ServerProcess) -> httpx.Client:
            transport = httpx.HTTPTransport(local_address=address)
            return stack.enter_context(httpx.Client(base_url=proxy.url, transport=transport, timeout=30))

        yield at
