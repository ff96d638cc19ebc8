"""An Envoy proxy's calls to one worker, without sockets: descriptors in, statuses out, on virtual time."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Mapping, Sequence
from pathlib import Path
from typing import Any, cast

from crestgate import AsyncLimiter, Limiter
from crestgate.config.envoy import Envoy as EnvoySettings
from crestgate.config.server import ServerLimits, ServerSettings
from crestgate.config.settings import Settings
from crestgate.core.failure_policies import OnStoreError
from crestgate.core.limit import Limit
from crestgate.envoy.files import read_descriptor_files
from crestgate.envoy.matcher import Domains
from crestgate.http.header_options import HeaderStyle
from crestgate.protobuf import messages
from crestgate.service.auth.guard import CheckCeiling
from crestgate.service.checks.envoy import EnvoyService
from crestgate.service.checks.service import CheckService
from crestgate.service.context import CallContext
from crestgate.service.dependencies import Dependencies
from crestgate.service.observability.worker_metrics import WorkerMetrics
from crestgate.stores.memory import MemoryStore
from crestgate.testing import FakeClock
from unit.service.snapshots import decision_counts

__all__ = ["START", "Proxy", "descriptor", "domains_of"]

START = 1_700_000_040
"""The start of a minute."""
Descriptor = messages.message_class("envoy.extensions.common.ratelimit.v3.RateLimitDescriptor")
NO_HEADERS = HeaderStyle(ratelimit=False, x_ratelimit=False, retry_after=False)


async def wait(response: Awaitable[bytes]) -> bytes:
    return await response


class Current:
    """A fixed source of descriptor limits."""

    def __init__(self, domains: Domains) -> None:
        self.current = domains
        self.waiting = False


def domains_of(folder: Path, text: str) -> Domains:
    path = folder / "limits.yaml"
    path.write_text(text)
    files = read_descriptor_files(str(path))
    assert not files.problems, files.problems
    return files.domains


def descriptor(*entries: str, hits: int | None = None, back: bool = False, limit: tuple[int, int] | None = None) -> Any:
    """A descriptor with entries such as `plan=gold`, and its hits and override."""
    made = Descriptor(is_negative_hits=back)
    for entry in entries:
        key, _, value = entry.partition("=")
        made.entries.add(key=key, value=value)
    if hits is not None:
        made.hits_addend.value = hits
    if limit is not None:
        made.limit.requests_per_unit, made.limit.unit = limit
    return made


class Proxy:
    """Sends rate limit requests to one worker and returns the responses."""

    def __init__(
        self,
        domains: Domains | None,
        store: Any = None,
        style: HeaderStyle = NO_HEADERS,
        on_store_error: OnStoreError = "open",
        checks: str = "100000/second",
        waits: bool = False,
        x_ratelimit: bool | None = None,
        charge_beyond_limit: bool | None = None,
        max_debt: int = 100,
    ) -> None:
        """With `waits` every response is awaited. `x_ratelimit` is the setting of Envoy's section; by default that of
        the style."""
        self.runner = asyncio.Runner()
        self.clock: FakeClock = FakeClock(START) if store is None else store.clock
        self.store: Any = MemoryStore(clock=self.clock) if store is None else store
        limits = ServerLimits(checks=Limit.parse(checks))
        limited = style.x_ratelimit if x_ratelimit is None else x_ratelimit
        envoy = EnvoySettings(
            negative_hits=True, x_ratelimit=limited, charge_beyond_limit=charge_beyond_limit, max_debt=max_debt
        )
        settings = Settings(server=ServerSettings(limits=limits), headers=style, envoy=envoy)
        self.limiter = AsyncLimiter(self.store, on_store_error=on_store_error)
        self.metrics = WorkerMetrics()
        nothing: Any = None
        parts = Dependencies(settings, self.limiter, nothing, nothing, nothing, self.metrics, nothing, nothing, (), 0)
        node = Limiter("memory://", clock=self.clock)
        self.checks = CheckService(parts, CheckCeiling(limits.checks, node), None)
        self.descriptors = None if domains is None else Current(domains)
        self.envoy = EnvoyService(self.checks, cast(Any, self.descriptors))
        if waits:
            self.limiter.backend.local = None  # so that no store call is synchronous
        self.awaited = 0
        """The number of awaited responses."""

    def check(self, *descriptors: Any, domain: str = "edge", hits: int = 0) -> Any:
        """The RateLimitResponse to a request."""
        return messages.RateLimitResponse.FromString(self.check_raw(*descriptors, domain=domain, hits=hits))

    def check_raw(self, *descriptors: Any, domain: str = "edge", hits: int = 0) -> bytes:
        return self.send(self.message(*descriptors, domain=domain, hits=hits))

    def message(self, *descriptors: Any, domain: str = "edge", hits: int = 0) -> bytes:
        request = messages.RateLimitRequest(domain=domain, descriptors=descriptors, hits_addend=hits)
        return bytes(request.SerializeToString())

    def send(self, message: bytes) -> bytes:
        response = self.envoy.should_rate_limit(self.call(), message)
        if isinstance(response, bytes):
            return response
        self.awaited += 1
        return self.runner.run(wait(response))

    def call(self) -> CallContext:
        return CallContext({"method": "POST", "path": "/", "headers": []}, {}, "request-1")

    def passes(self, *descriptors: Any, domain: str = "edge", hits: int = 0) -> bool:
        return bool(self.check(*descriptors, domain=domain, hits=hits).overall_code == 1)

    def remaining(self, *entries: str) -> int:
        """The remaining quota of a descriptor, from a request with zero hits."""
        return int(self.check(descriptor(*entries, hits=0)).statuses[0].limit_remaining)

    def counted(self) -> Mapping[tuple[str, ...], Sequence[int]]:
        """Allowed, denied and shadowed counts by rule and dimension."""
        return decision_counts(self.metrics.snapshot(self.clock.ticks(), {}))

    def close(self) -> None:
        self.runner.run(self.limiter.aclose())
        self.runner.close()
