"""Stream from a control plane, in a thread: every configuration is checked, written to the snapshot, and acknowledged.

One with an error is refused (NACK) with its reason, and the last good one stays in force. A stream that ends is opened
again, after a wait that doubles up to MAX_WAIT and is jittered, so that many instances do not return at once. A control
plane that has no aggregated service (ADS) is asked for the one of rate limits alone (StreamRlsConfigs).

The first request of a stream names no version: versions of a control plane that was restarted may begin again, and it
would otherwise keep back a configuration that happens to have the number of an old one.

grpcio is imported when a client starts. The service's own gRPC listener is no client, and a client that is called some
times a day needs no speed, but TLS, keepalive, flow control and their security fixes from a library that many use.
"""

from __future__ import annotations

import logging
import random
import time
from collections.abc import Callable, Iterator
from queue import SimpleQueue
from threading import Event, Thread
from typing import Any, Final

from crestgate.envoy.xds.messages import ADS, RLS, DiscoveryResponse, discovery_request, resources_of
from crestgate.envoy.xds.settings import Xds, XdsTls
from crestgate.envoy.xds.snapshot import validate_resources, write_snapshot
from crestgate.errors import ConfigError

__all__ = ["XdsClient", "require_grpcio"]

MIN_WAIT: Final = 0.5
MAX_WAIT: Final = 30.0
"""Seconds between two attempts to connect."""
CLOSE_TIMEOUT: Final = 5.0
MAX_PROBLEMS: Final = 5
"""Of a configuration, that are logged and sent."""
OPTIONS: Final = (
    ("grpc.keepalive_time_ms", 30_000),  # a control plane that is gone without a word
    ("grpc.keepalive_timeout_ms", 10_000),
    ("grpc.max_receive_message_length", 64 * 1024 * 1024),
    ("grpc.use_local_subchannel_pool", 1),  # else a new channel inherits the backoff of the one before
)
_log = logging.getLogger("crestgate.envoy")


class XdsClient:
    """Keeps the snapshot at `path` up to date. `on_change` is called in the thread after it has been written."""

    def __init__(self, xds: Xds, path: str, on_change: Callable[[], None] = lambda: None) -> None:
        require_grpcio()
        self._xds = xds
        self._path = path
        self._on_change = on_change
        self._closed = Event()
        self._method = ADS
        self._version = ""
        """Of the configuration that was accepted last, on this stream."""
        self._call: Any = None
        self._problem: str | None = None
        """What was logged last, of the connection."""
        self.refused = 0
        """How many configurations had errors."""
        self.accepted = 0
        self._thread = Thread(target=self._run, name="crestgate-xds", daemon=True)

    def start(self) -> None:
        self._thread.start()

    def close(self) -> None:
        """End the stream. The last configuration stays in force."""
        self._closed.set()
        call = self._call
        if call is not None:
            call.cancel()
        if self._thread.is_alive():
            self._thread.join(CLOSE_TIMEOUT)

    def _run(self) -> None:
        attempt = 0
        while not self._closed.is_set():
            started = time.monotonic()
            received = self._try_stream()
            if received or time.monotonic() - started > MAX_WAIT:
                attempt = 0
            wait = min(MIN_WAIT * 2**attempt, MAX_WAIT) * random.uniform(0.5, 1.0)  # noqa: S311 - no secret
            attempt = min(attempt + 1, 10)
            self._closed.wait(wait)

    def _try_stream(self) -> bool:
        """Follow one stream to its end, which is logged; whether it had a response."""
        before = self.accepted + self.refused
        try:
            self._stream()
            self._lost("the stream has ended")
        except Exception as error:  # noqa: BLE001 - whatever it is, the next attempt must come
            self._fail(error)
        return self.accepted + self.refused > before

    def _fail(self, error: Exception) -> None:
        import grpc

        if isinstance(error, grpc.RpcError) and isinstance(error, grpc.Call):
            if error.code() is grpc.StatusCode.UNIMPLEMENTED:
                self._method = RLS if self._method == ADS else ADS
            self._lost(f"{error.code().name}: {error.details()}")
        elif isinstance(error, OSError):
            self._lost(f"{error.filename or ''}: {error.strerror}".removeprefix(": "))
        else:
            self._lost(repr(error))

    def _lost(self, problem: str) -> None:
        if not self._closed.is_set() and problem != self._problem:
            self._problem = problem
            _log.warning(
                "xDS stream of %s failed, keeping the last configuration and reconnecting: %s",
                self._xds.server,
                problem,
            )

    def _stream(self) -> None:
        requests: SimpleQueue[Any] = SimpleQueue()
        self._version = ""
        requests.put(discovery_request(self._xds))
        with _open_channel(self._xds) as channel:
            method = channel.stream_stream(
                self._method,
                request_serializer=lambda request: request.SerializeToString(),
                response_deserializer=DiscoveryResponse.FromString,
            )
            self._call = method(
                _until_none(requests), metadata=[(name.lower(), value) for name, value in self._xds.headers.items()]
            )
            try:
                if self._closed.is_set():
                    return
                for response in self._call:
                    if self._problem is not None:
                        self._problem = None
                        _log.warning("xDS stream of %s recovered", self._xds.server)
                    requests.put(self._answer(response))
            finally:
                requests.put(None)
                self._call.cancel()

    def _answer(self, response: Any) -> Any:
        """Put a response in force, or refuse it; the request that says so."""
        error = self._apply(response)
        if error is None:
            self.accepted += 1
            self._version = response.version_info
        else:
            self.refused += 1
            _log.error(
                "xDS configuration %s of %s refused, keeping the previous one: %s",
                repr(response.version_info[:100]),
                self._xds.server,
                error,
            )
        return discovery_request(self._xds, self._version, response.nonce, error)

    def _apply(self, response: Any) -> str | None:
        """The error of a response, or None when it is in force."""
        try:
            resources = resources_of(response)
        except ValueError as error:
            return str(error)
        _, problems = validate_resources(resources)
        if problems:
            more = f"; and {len(problems) - MAX_PROBLEMS} more" if len(problems) > MAX_PROBLEMS else ""
            return "; ".join(map(str, problems[:MAX_PROBLEMS])) + more
        try:
            write_snapshot(self._path, response.version_info, resources)
        except OSError as error:
            return f"cannot write {self._path}: {error.strerror}"
        self._on_change()
        return None


def require_grpcio() -> None:
    """ConfigError if it is not installed."""
    try:
        import grpc  # noqa: F401
    except ModuleNotFoundError:
        raise ConfigError("envoy.xds: needs grpcio: pip install 'crestgate[grpc]'") from None


def _open_channel(xds: Xds) -> Any:
    import grpc

    if xds.tls is None or not xds.tls.enabled:
        return grpc.insecure_channel(xds.server, OPTIONS)
    options = [*OPTIONS]
    if xds.tls.server_name is not None:
        options.append(("grpc.ssl_target_name_override", xds.tls.server_name))  # type: ignore[arg-type]
    return grpc.secure_channel(xds.server, _credentials(xds.tls), options)


def _credentials(tls: XdsTls) -> Any:
    """Read at every connect, so that renewed certificates are used."""
    import grpc

    def contents(path: str | None) -> bytes | None:
        if path is None:
            return None
        with open(path, "rb") as file:
            return file.read()

    return grpc.ssl_channel_credentials(contents(tls.ca), contents(tls.key), contents(tls.certificate))


def _until_none(queue: SimpleQueue[Any]) -> Iterator[Any]:
    """For gRPC, which iterates in a thread of its own."""
    while (request := queue.get()) is not None:
        yield request
