# mypyc: compile
"""Topology of one master behind Redis Sentinels, which know its address after a failover."""

from __future__ import annotations

from collections.abc import Sequence
from typing import final

from crestgate.errors import StoreError
from crestgate.stores.redis.protocol import (
    DISCOVERY_SHARE,
    NO_TIME,
    Call,
    CallFailure,
    Exchange,
    ServerAddress,
    Topology,
    error_in,
    pack,
    parse_address,
)

__all__ = ["SentinelTopology"]

MAX_ROLE_BYTES = 256 * 1024
MAX_ROLE_ELEMENTS = 10_000
"""A master names its replicas: four elements and less than a hundred bytes each."""


@final
class SentinelTopology(Topology):
    """The master of one name. A Sentinel's answer is used once the server itself confirms, by ROLE, to be a master."""

    def __init__(self, sentinels: Sequence[ServerAddress], name: str) -> None:
        super().__init__(sentinels[0])
        self.sentinels = list(sentinels)
        self.name = name
        self.stale = True

    def can_change(self) -> bool:
        return True

    def discover(self) -> Exchange[None]:
        question = pack(("SENTINEL", "GET-MASTER-ADDR-BY-NAME", self.name))
        reasons = []
        sentinels = tuple(self.sentinels)
        for sentinel in sentinels:
            share = DISCOVERY_SHARE if sentinel is not sentinels[-1] else 1.0
            (result,) = yield [Call(sentinel, question, 1, share, max_elements=2)]
            reply = None if isinstance(result, CallFailure) else result[0]
            if isinstance(result, CallFailure) and result.reason == NO_TIME:
                break
            if isinstance(result, CallFailure) or isinstance(reply, Exception):
                # The next discovery begins with another one.
                self.sentinels = [*(other for other in self.sentinels if other != sentinel), sentinel]
                reason = result.reason if isinstance(result, CallFailure) else str(reply)
                reasons.append(f"{sentinel}: {reason}")
                continue
            if not isinstance(reply, list):
                reasons.append(f"{sentinel} knows no master named {self.name!r}")
                continue
            master = parse_address(*reply) if len(reply) == 2 else None
            if master is None:
                reasons.append(f"{sentinel}: what it says of {self.name!r} is not an address")
                continue
            (result,) = yield [
                Call(master, pack(("ROLE",)), 1, share, max_bytes=MAX_ROLE_BYTES, max_elements=MAX_ROLE_ELEMENTS)
            ]
            named = f"{master}, which {sentinel} names"
            if isinstance(result, CallFailure):
                reasons.append(f"{named}: {result.reason}")
            elif isinstance(result[0], list) and result[0][:1] == [b"master"]:
                self.address = master
                self.stale = False
                return
            else:
                reasons.append(f"{named}: {error_in(result[0]) or 'it is not a master (any more, or yet)'}")
        raise StoreError(f"no master named {self.name!r} was found through the Sentinels: {'; '.join(reasons)}")
