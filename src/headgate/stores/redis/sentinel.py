"""One master, found through Sentinels: they know which server is in charge, and after a failover which one is now."""

from __future__ import annotations

from collections.abc import Sequence
from typing import final

from headgate.errors import StoreError
from headgate.stores.redis.talk import NO_TIME, PART, Address, Call, Lost, Talk, Topology, address_in, error_in, pack

__all__ = ["SentinelTopology"]

MAX_ROLE_BYTES = 256 * 1024
MAX_ROLE_ELEMENTS = 10_000
"""A master names its replicas: four elements and less than a hundred bytes each."""


@final
class SentinelTopology(Topology):
    """The master of one name. What a Sentinel says is believed once the server itself says that it is a master."""

    def __init__(self, sentinels: Sequence[Address], name: str) -> None:
        super().__init__(sentinels[0])
        self.sentinels = list(sentinels)
        self.name = name
        self.doubtful = True

    def can_move(self) -> bool:
        return True

    def find(self) -> Talk[None]:
        question = pack(("SENTINEL", "GET-MASTER-ADDR-BY-NAME", self.name))
        problems = []
        sentinels = tuple(self.sentinels)
        for sentinel in sentinels:
            share = PART if sentinel is not sentinels[-1] else 1.0
            (answer,) = yield [Call(sentinel, question, 1, share, max_elements=2)]
            found = None if isinstance(answer, Lost) else answer[0]
            if isinstance(answer, Lost) and answer.problem == NO_TIME:
                break
            if isinstance(answer, Lost) or isinstance(found, Exception):
                # The next search begins with another one.
                self.sentinels = [*(other for other in self.sentinels if other != sentinel), sentinel]
                problem = answer.problem if isinstance(answer, Lost) else str(found)
                problems.append(f"{sentinel}: {problem}")
                continue
            if not isinstance(found, list):
                problems.append(f"{sentinel} knows no master named {self.name!r}")
                continue
            master = address_in(*found) if len(found) == 2 else None
            if master is None:
                problems.append(f"{sentinel}: what it says of {self.name!r} is not an address")
                continue
            (answer,) = yield [
                Call(master, pack(("ROLE",)), 1, share, max_bytes=MAX_ROLE_BYTES, max_elements=MAX_ROLE_ELEMENTS)
            ]
            named = f"{master}, which {sentinel} names"
            if isinstance(answer, Lost):
                problems.append(f"{named}: {answer.problem}")
            elif isinstance(answer[0], list) and answer[0][:1] == [b"master"]:
                self.address = master
                self.doubtful = False
                return
            else:
                problems.append(f"{named}: {error_in(answer[0]) or 'it is not a master (any more, or yet)'}")
        raise StoreError(f"no master named {self.name!r} was found through the Sentinels: {'; '.join(problems)}")
