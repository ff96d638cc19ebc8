"""What one worker is made of. Put together in app.py, and handed to both planes."""

from __future__ import annotations

import secrets
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from headgate.rules.editor import Editor
from headgate.rules.repositories.port import Actor
from headgate.service.observe.last_uses import LastUses

if TYPE_CHECKING:
    from headgate.config.settings import Settings
    from headgate.embedded.async_limiter import AsyncLimiter
    from headgate.envoy.following import Descriptors
    from headgate.history.port import History
    from headgate.locks.port import LockService
    from headgate.rules.catalog import Catalog
    from headgate.rules.repositories.port import Repository
    from headgate.service.auth.keys import Caller
    from headgate.service.neighbours import Neighbours
    from headgate.service.observe.board import Board
    from headgate.service.observe.tally import Tally

__all__ = ["Parts", "Visit"]


@dataclass(frozen=True, slots=True)
class Visit:
    """Who calls, as the guard found out. `scope["headgate"]` has it behind the guard."""

    caller: Caller | None
    address: str | None
    """Of the client, as far as proxies are trusted to tell it."""
    request_id: str

    @property
    def actor(self) -> Actor:
        """In whose name something is written."""
        return Actor("anonymous" if self.caller is None else f"key:{self.caller.name}", self.address or "")


@dataclass(frozen=True, slots=True)
class Parts:
    """The parts of one worker."""

    settings: Settings
    limiter: AsyncLimiter
    """With the rules of `catalog`."""
    repository: Repository
    """The rule database, where rules, keys and the audit log are."""
    locks: LockService[Any]
    history: History
    tally: Tally
    board: Board
    neighbours: Neighbours
    store_titles: tuple[str, ...]
    """Where counters and rules are, without any password."""
    started_us: int
    descriptors: Descriptors | None = None
    """The limits on Envoy's descriptors, where `envoy.config` says what they are."""
    token_key: bytes = field(default_factory=lambda: secrets.token_bytes(32), repr=False)
    """What settlement tokens are signed with: see auth/signing.py. Of its own unless all share one."""
    last_uses: LastUses = field(init=False)

    def __post_init__(self) -> None:
        object.__setattr__(self, "last_uses", LastUses(self.board, self.history))

    @property
    def catalog(self) -> Catalog:
        return self.limiter.catalog

    def editor(self, actor: Actor) -> Editor:
        return Editor(self.repository, actor, locks=self.locks)
