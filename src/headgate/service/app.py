"""The composition root: one worker, put together from its parts. The only file here that knows all of them."""

from __future__ import annotations

import asyncio
import logging
import os
import time
from collections.abc import Mapping

from headgate.config.settings import Settings
from headgate.embedded.async_limiter import AsyncLimiter
from headgate.embedded.limiter import Limiter
from headgate.envoy.following import Descriptors
from headgate.errors import HeadgateError, StoreError
from headgate.history.opening import open_history
from headgate.locks.opening import open_locks
from headgate.rules.catalog import Catalog
from headgate.rules.repositories.opening import open_repository
from headgate.service.auth.guard import CheckCeiling, Guard, needed_to_check
from headgate.service.auth.keys import Keys, Scope
from headgate.service.auth.signing import signing_key
from headgate.service.control.api import make_control
from headgate.service.data.plane import DataPlane
from headgate.service.dispatch import Dispatch, Page
from headgate.service.health import Health
from headgate.service.neighbours import Neighbours
from headgate.service.node import Node
from headgate.service.observe.board import Board
from headgate.service.observe.history_sweeper import sweep_history
from headgate.service.observe.pressure import PressureWatch
from headgate.service.observe.publishing import Publisher
from headgate.service.observe.tally import Tally
from headgate.service.observe.tracing import tracer_of
from headgate.service.observe.usage import record_usage
from headgate.service.observe.webhook import Webhook
from headgate.service.pages import Pages
from headgate.service.parts import Parts
from headgate.service.request_log import RequestLog
from headgate.service.rpc.call import Method
from headgate.service.rpc.envoy import Envoy
from headgate.service.rpc.methods import make_methods
from headgate.service.starting import ADMIN_KEY

__all__ = ["Service", "open_service"]

PUBLISH_SECONDS = 1.0
RECORD_EVERY = 10
"""Publications between two additions to the history."""
_log = logging.getLogger("headgate")


class Service:
    """What one worker runs: its application, its methods over gRPC, and what is done beside them."""

    def __init__(
        self,
        parts: Parts,
        app: Dispatch,
        rpc: Mapping[bytes, Method],
        publisher: Publisher,
        health: Health,
        node: Limiter,
        webhook: Webhook | None,
    ) -> None:
        self.parts = parts
        self.app = app
        self.rpc = rpc
        """What is answered over gRPC, by path."""
        self.health = health
        self._publisher = publisher
        self._node = node
        self._webhook = webhook

    def reload(self) -> None:
        """Have all rules, and Envoy's descriptors, read again. A signal handler may call it."""
        self.parts.limiter.reload()
        if self.parts.descriptors is not None:
            self.parts.descriptors.reload()

    async def keep_house(self) -> None:
        """Publish the numbers every second, and add to the history every ten; sweep it; until cancelled."""
        sweeping = asyncio.create_task(sweep_history(self.parts.history)) if self.parts.board.worker == 0 else None
        try:
            await self._publish_and_record()
        finally:
            if sweeping is not None:
                sweeping.cancel()

    async def _publish_and_record(self) -> None:
        rounds = 0
        while True:
            await asyncio.sleep(PUBLISH_SECONDS)
            rounds += 1
            try:
                await self._publisher.publish(_now_us())
                if rounds % RECORD_EVERY == 0:
                    await self._record()
            except (HeadgateError, OSError) as error:
                _log.warning("numbers could not be written down, and will be later: %s", error)
            except Exception:  # noqa: BLE001 - whatever it is, the next round must come
                _log.exception("numbers could not be written down, and will be later")

    async def close(self) -> None:
        """Write down what was counted, and let go of everything."""
        try:
            self._publisher.close(_now_us())
        except OSError as error:  # nobody is left to read them in any case
            _log.warning("the last numbers of this worker cannot be written: %s", error)
        await self._record()
        self.parts.neighbours.close()
        await self.parts.limiter.aclose()
        await asyncio.to_thread(self._close_rest)

    async def _record(self) -> None:
        await record_usage(self.parts.tally, self.parts.history, _now_us())
        await asyncio.to_thread(self.parts.last_uses.record)

    def _close_rest(self) -> None:
        self.parts.catalog.close()
        if self.parts.descriptors is not None:
            self.parts.descriptors.close()
        self.parts.locks.close()
        self.parts.history.close()
        self._node.close()
        if self._webhook is not None:
            self._webhook.close()


async def open_service(settings: Settings, node: Node, worker: int, environ: Mapping[str, str] = os.environ) -> Service:
    """Open all that a worker needs. `settings` are completed ones: see starting.py."""
    assert settings.rules_store is not None
    rules_store = settings.rules_store
    repository = await asyncio.to_thread(open_repository, rules_store)
    catalog = await asyncio.to_thread(Catalog, [settings.rule_files(), repository], settings.refresh_seconds)
    board = Board(node.boards, worker)
    neighbours = Neighbours(node.folder, worker)
    neighbours.listen(catalog.wake)
    tally = Tally(board.before())
    seen = board.own_seen()
    tally.keys.restore(seen.keys)
    tally.clients.restore(seen.clients)
    webhook = Webhook(settings.webhook) if settings.webhook is not None else None
    watch = PressureWatch(tally, settings.logs.keys, webhook)
    limiter = AsyncLimiter(settings.store, on_store_error=settings.on_store_error, on_pressure=watch, catalog=catalog)
    try:
        await limiter.connect()
    except StoreError as error:
        # It was there when the service started: whoever takes a dead worker's place answers by the failure policy.
        _log.error("the store cannot be reached, and on_store_error answers until it can: %s", error)
    descriptors = await asyncio.to_thread(_descriptors, settings)
    parts = Parts(
        settings=settings,
        limiter=limiter,
        repository=repository,
        locks=await asyncio.to_thread(open_locks, rules_store),
        history=await asyncio.to_thread(open_history, rules_store),
        tally=tally,
        board=board,
        neighbours=neighbours,
        store_titles=(limiter.title, repository.title),
        started_us=_now_us(),
        token_key=await asyncio.to_thread(signing_key, repository),
        descriptors=descriptors,
    )
    callers = Limiter(node.counters)
    guard = Guard(Keys(lambda: catalog.keys, environ.get(ADMIN_KEY, "").strip() or None), settings.server, callers)
    ceiling = CheckCeiling(settings.server.limits.checks, callers)
    plane = DataPlane(parts, ceiling, tracer_of(settings.tracing.enabled), guard)
    health = Health(limiter, repository)

    def totals() -> dict[str, int]:
        return {**watch.totals(), "envoy_reload_failures": 0 if descriptors is None else descriptors.failures}

    publisher = Publisher(
        tally,
        board,
        limiter,
        prefix=settings.metrics.prefix,
        keys=settings.logs.keys,
        last_uses=parts.last_uses,
        totals=totals,
    )
    pages = Pages(health, publisher)
    to_check = needed_to_check(settings.server, settings.server.http)
    shown: dict[str, tuple[Page, Scope | None]] = {
        "/healthz": (pages.alive, None),
        "/readyz": (pages.ready, None),
        "/metrics": (pages.metrics, None if to_check is None else "read"),
    }
    log = RequestLog(settings.logs)
    envoy = Envoy(plane, descriptors)  # of HTTP and gRPC: what it remembers and its labels are bounded together
    app = Dispatch(parts, guard, plane, make_control(parts), shown, to_check, log, envoy)
    rpc = make_methods(parts, guard, plane, health, log, envoy)
    if webhook is not None:
        webhook.start()
    return Service(parts, app, rpc, publisher, health, callers, webhook)


def _descriptors(settings: Settings) -> Descriptors | None:
    """Those of the moment: the settings have them as they were at the start, and whoever takes a dead worker's place
    comes later. Files with mistakes in them by now change nothing."""
    descriptors = settings.descriptors()
    if descriptors is not None:
        descriptors.refresh()
    return descriptors


def _now_us() -> int:
    return time.time_ns() // 1000
