"""What the endpoints of one worker share. Created in composition.py."""

from __future__ import annotations

import secrets
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from crestgate.rules.editor import Editor
from crestgate.rules.port import Actor
from crestgate.service.observability.last_uses import LastUses

if TYPE_CHECKING:
    from crestgate.config.settings import Settings
    from crestgate.envoy.reloader import Descriptors
    from crestgate.history.port import History
    from crestgate.limiter.async_limiter import AsyncLimiter
    from crestgate.locks.port import LockService
    from crestgate.rules.catalog import Catalog
    from crestgate.rules.port import Repository
    from crestgate.service.checks.traffic import TrafficRecorder
    from crestgate.service.node import WorkerNotifier
    from crestgate.service.observability.worker_metrics import WorkerMetrics
    from crestgate.service.observability.worker_snapshots import WorkerSnapshots

__all__ = ["Dependencies"]


@dataclass(frozen=True, slots=True)
class Dependencies:
    """The shared objects of one worker."""

    settings: Settings
    limiter: AsyncLimiter
    """With the rules of `catalog`."""
    repository: Repository
    """The rule database, where rules, keys and the audit log are."""
    locks: LockService[Any]
    history: History
    metrics: WorkerMetrics
    worker_snapshots: WorkerSnapshots
    notifier: WorkerNotifier
    store_titles: tuple[str, ...]
    """Where counters and rules are, without any password."""
    started_us: int
    descriptors: Descriptors | None = None
    """The limits on Envoy's descriptors, where `envoy.config` says what they are."""
    traffic: TrafficRecorder | None = None
    """Recent checks; None where they are not recorded."""
    token_key: bytes = field(default_factory=lambda: secrets.token_bytes(32), repr=False)
    """What settlement tokens are signed with: see auth/token_keys.py. Random by default."""
    last_uses: LastUses = field(init=False)

    def __post_init__(self) -> None:
        object.__setattr__(self, "last_uses", LastUses(self.worker_snapshots, self.history))

    @property
    def catalog(self) -> Catalog:
        return self.limiter.catalog

    def editor(self, actor: Actor) -> Editor:
        return Editor(self.repository, actor, locks=self.locks, on_write=self.announce_write)

    def announce_write(self) -> None:
        """Put what was written in force in this worker now, and notify the other workers of this node."""
        self.notifier.notify()
        self.catalog.refresh()
