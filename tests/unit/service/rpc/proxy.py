"""What a proxy asks of one worker, without sockets: descriptors in, statuses out, on virtual time."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, cast

from headgate import AsyncLimiter, Limiter
from headgate.config.envoy import Envoy as EnvoySettings
from headgate.config.server import Ceilings, Server
from headgate.config.settings import Settings
from headgate.core.limit import Limit
from headgate.engine.failure import OnStoreError
from headgate.envoy.files import read_descriptor_files
from headgate.envoy.limits import Domains
from headgate.http.style import HeaderStyle
from headgate.service.asgi import Call
from headgate.service.auth.guard import CheckCeiling
from headgate.service.data.plane import DataPlane
from headgate.service.observe.tally import Tally
from headgate.service.parts import Parts
from headgate.service.rpc import messages
from headgate.service.rpc.envoy import Envoy
from headgate.stores.memory import MemoryStore
from headgate.testing import FakeClock

__all__ = ["START", "Proxy", "descriptor", "domains_of"]

START = 1_700_000_040
"""The beginning of a minute."""
Descriptor = messages.message_class("envoy.extensions.common.ratelimit.v3.RateLimitDescriptor")
NO_HEADERS = HeaderStyle(ratelimit=False, x_ratelimit=False, retry_after=False)


class Current:
    """What is known of descriptors, as of now."""

    def __init__(self, domains: Domains) -> None:
        self.current = domains


def domains_of(folder: Path, text: str) -> Domains:
    path = folder / "limits.yaml"
    path.write_text(text)
    files = read_descriptor_files(str(path))
    assert not files.problems, files.problems
    return files.domains


def descriptor(*entries: str, hits: int | None = None, back: bool = False, limit: tuple[int, int] | None = None) -> Any:
    """A descriptor of entries such as `plan=gold`, with what it says beside them."""
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
    """Asks, and says what it is answered."""

    def __init__(
        self,
        domains: Domains | None,
        store: Any = None,
        style: HeaderStyle = NO_HEADERS,
        on_store_error: OnStoreError = "open",
        checks: str = "100000/second",
        waits: bool = False,
        x_ratelimit: bool | None = None,
    ) -> None:
        """With `waits` nothing is answered at once. `x_ratelimit` is the setting of Envoy's section; as the style has
        it unless said."""
        self.runner = asyncio.Runner()
        self.clock: FakeClock = FakeClock(START) if store is None else store.clock
        self.store: Any = MemoryStore(clock=self.clock) if store is None else store
        limits = Ceilings(checks=Limit.parse(checks))
        limited = style.x_ratelimit if x_ratelimit is None else x_ratelimit
        envoy = EnvoySettings(negative_hits=True, x_ratelimit=limited)
        settings = Settings(server=Server(limits=limits), headers=style, envoy=envoy)
        self.limiter = AsyncLimiter(self.store, on_store_error=on_store_error)
        self.tally = Tally()
        nothing: Any = None
        parts = Parts(settings, self.limiter, nothing, nothing, nothing, self.tally, nothing, nothing, (), 0)
        node = Limiter("memory://", clock=self.clock)
        self.plane = DataPlane(parts, CheckCeiling(limits.checks, node), None, nothing)
        self.descriptors = None if domains is None else Current(domains)
        self.envoy = Envoy(self.plane, cast(Any, self.descriptors))
        self.waits = waits
        self.at_once = 0
        """How many were answered at once."""

    def ask(self, *descriptors: Any, domain: str = "edge", hits: int = 0) -> Any:
        """The RateLimitResponse to a request."""
        return messages.RateLimitResponse.FromString(self.answer(*descriptors, domain=domain, hits=hits))

    def answer(self, *descriptors: Any, domain: str = "edge", hits: int = 0) -> bytes:
        return self.send(self.message(*descriptors, domain=domain, hits=hits))

    def message(self, *descriptors: Any, domain: str = "edge", hits: int = 0) -> bytes:
        asked = messages.RateLimitRequest(domain=domain, descriptors=descriptors, hits_addend=hits)
        return bytes(asked.SerializeToString())

    def send(self, message: bytes) -> bytes:
        call = self.call()
        answer = None if self.waits else self.envoy.at_once(call, message)
        if answer is None:
            return self.runner.run(self.envoy.in_time(call, message))
        self.at_once += 1
        return answer

    def call(self) -> Call:
        return Call({"method": "POST", "path": "/", "headers": []}, {}, "request-1")

    def passes(self, *descriptors: Any, domain: str = "edge", hits: int = 0) -> bool:
        return bool(self.ask(*descriptors, domain=domain, hits=hits).overall_code == 1)

    def left(self, *entries: str) -> int:
        """What is left to a descriptor, as a look says."""
        return int(self.ask(descriptor(*entries, hits=0)).statuses[0].limit_remaining)

    def counted(self) -> Mapping[tuple[str, str], Sequence[int]]:
        """What was allowed, denied and shadowed, by rule and dimension."""
        rows = self.tally.snapshot(self.clock.ticks(), {}).decisions
        return {(rule, dimension): (allowed, denied, shadowed) for rule, dimension, allowed, denied, shadowed in rows}

    def close(self) -> None:
        self.runner.run(self.limiter.aclose())
        self.runner.close()
