"""The retrying clients without sockets: repeatable bodies, missing libraries, public names."""

from __future__ import annotations

import importlib
import io
import sys
from collections.abc import AsyncIterator, Iterator

import httpx
import pytest
import requests

import crestgate.retry
import crestgate.retry.httpx
import crestgate.retry.requests
from crestgate import AsyncLimiter, ConfigError, Limiter
from crestgate.retry import AsyncOutbound, Outbound, Retry
from crestgate.retry.httpx import AsyncPacedTransport, AsyncRetryTransport, PacedTransport, RetryTransport
from crestgate.retry.requests import PacedAdapter, RetryAdapter


def chunks() -> Iterator[bytes]:
    yield b"x"


async def later_chunks() -> AsyncIterator[bytes]:
    yield b"x"


class Pipe(io.BytesIO):
    def seekable(self) -> bool:
        return False

    def tell(self) -> int:
        raise OSError("a pipe has no position")


def test_public_names() -> None:
    assert crestgate.retry.__all__ == [
        "IDEMPOTENT",
        "AsyncOutbound",
        "Outbound",
        "Retry",
        "exhausted_wait",
        "host_of",
        "suggested_wait",
    ]
    for module in (crestgate.retry, crestgate.retry.httpx, crestgate.retry.requests):
        assert [name for name in module.__all__ if not hasattr(module, name)] == []


@pytest.mark.parametrize("library", ["httpx", "requests"])
def test_missing_library_is_named(library: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, library, None)
    monkeypatch.delitem(sys.modules, f"crestgate.retry.{library}")
    with pytest.raises(ImportError, match=f"crestgate.retry.{library} needs .*: pip install {library}"):
        importlib.import_module(f"crestgate.retry.{library}")


@pytest.mark.parametrize(
    ("request_", "twice"),
    [
        (httpx.Request("GET", "http://x/"), True),
        (httpx.Request("PUT", "http://x/", content=b"x"), True),
        (httpx.Request("POST", "http://x/", json={"a": 1}), True),
        (httpx.Request("POST", "http://x/", data={"a": "1"}), True),
        (httpx.Request("POST", "http://x/", files={"a": b"x"}), True),
        (httpx.Request("POST", "http://x/", data={"a": "1"}, files={"a": io.BytesIO(b"x")}), True),
        (httpx.Request("POST", "http://x/", files={"a": b"x", "b": Pipe(b"x")}), False),
        (httpx.Request("POST", "http://x/", content=chunks()), False),
        (httpx.Request("POST", "http://x/", content=later_chunks()), False),
        (httpx.Request("POST", "http://x/", content=io.BytesIO(b"x")), False),
    ],
)
def test_repeatable_httpx_bodies(request_: httpx.Request, twice: bool) -> None:
    assert crestgate.retry.httpx.is_repeatable(request_) is twice


@pytest.mark.parametrize(
    ("request_", "twice"),
    [
        (requests.Request("GET", "http://x/"), True),
        (requests.Request("PUT", "http://x/", data=b"x"), True),
        (requests.Request("POST", "http://x/", json={"a": 1}), True),
        (requests.Request("POST", "http://x/", files={"a": io.BytesIO(b"x")}), True),
        (requests.Request("POST", "http://x/", data=io.BytesIO(b"x")), True),
        (requests.Request("POST", "http://x/", data=Pipe(b"x")), False),
        (requests.Request("POST", "http://x/", data=chunks()), False),
    ],
)
def test_repeatable_requests_bodies(request_: requests.Request, twice: bool) -> None:
    assert crestgate.retry.requests.is_repeatable(request_.prepare()) is twice


def test_timeout_is_not_retried() -> None:
    requests_sent = []

    class Slow(httpx.BaseTransport):
        def handle_request(self, request: httpx.Request) -> httpx.Response:
            requests_sent.append(request)
            raise httpx.ReadTimeout("slow", request=request)

    transport = RetryTransport(Retry(attempts=5, backoff=0.0), transport=Slow())
    with pytest.raises(httpx.ReadTimeout), httpx.Client(transport=transport) as client:
        client.get("http://x/")
    assert len(requests_sent) == 1


def test_transport_opens_and_closes_the_inner_one() -> None:
    did: list[str] = []

    class Inner(httpx.BaseTransport):
        def __enter__(self) -> Inner:
            did.append("open")
            return self

        def close(self) -> None:
            did.append("close")

    with httpx.Client(transport=RetryTransport(transport=Inner())):
        assert did == ["open"]
    RetryTransport(transport=Inner()).close()
    assert did == ["open", "close", "close"]


def test_mixed_sync_and_async_is_refused_immediately() -> None:
    plain, for_async = Outbound(Limiter(), "1/second"), AsyncOutbound(AsyncLimiter(), "1/second")
    for paced in (PacedTransport, PacedAdapter):
        with pytest.raises(ConfigError, match=f"{paced.__name__} needs an Outbound"):
            paced(for_async)  # type: ignore[arg-type]  # that it is refused is what is tested
    with pytest.raises(ConfigError, match="AsyncPacedTransport needs an AsyncOutbound"):
        AsyncPacedTransport(plain)  # type: ignore[arg-type]
    for retrying in (RetryTransport, AsyncRetryTransport, RetryAdapter):
        with pytest.raises(ConfigError, match=r"retry must be a Retry .*: pass (transport|adapter)= by name"):
            retrying(httpx.HTTPTransport())  # type: ignore[arg-type]
