"""The composition root of a worker: the only module that knows all of its parts."""

from __future__ import annotations

import asyncio
import logging
import os
import time
from collections.abc import Callable, Mapping
from contextlib import suppress

from crestgate.config.settings import Settings
from crestgate.envoy.reloader import Descriptors
from crestgate.envoy.xds.client import XdsClient
from crestgate.errors import CrestgateError, StoreError
from crestgate.history.factory import open_history
from crestgate.limiter.async_limiter import AsyncLimiter
from crestgate.limiter.limiter import Limiter
from crestgate.locks.factory import open_locks
from crestgate.rules.catalog import Catalog
from crestgate.rules.storage.factory import open_repository
from crestgate.service.admin.api import ADMIN_PATHS, create_admin_app
from crestgate.service.auth.guard import CheckCeiling, Guard, required_check_scope
from crestgate.service.auth.keys import ApiKeys, Scope
from crestgate.service.auth.log_outs import LogOuts
from crestgate.service.auth.sessions import Sessions
from crestgate.service.auth.token_keys import signing_key
from crestgate.service.certificates import Certificates
from crestgate.service.checks.envoy import EnvoyService
from crestgate.service.checks.service import CheckService
from crestgate.service.checks.traffic import MAX_MINUTES, TrafficRecorder
from crestgate.service.dashboard.app import DASHBOARD_PATHS, create_dashboard
from crestgate.service.dependencies import Dependencies
from crestgate.service.grpc.services.registry import build_methods
from crestgate.service.grpc.transport.call import Method
from crestgate.service.http.probes import Probes
from crestgate.service.http.router import Handler, Router
from crestgate.service.node import NodeDirectory, WorkerNotifier
from crestgate.service.observability.health import Health, required_probes
from crestgate.service.observability.history_sweeper import purge_rules, sweep_history, sweep_reservations
from crestgate.service.observability.metrics import Labels
from crestgate.service.observability.pressure import PressureWatch
from crestgate.service.observability.publisher import Publisher
from crestgate.service.observability.request_log import RequestLog
from crestgate.service.observability.tracing import create_tracer
from crestgate.service.observability.traffic_files import TrafficFile, TrafficFiles
from crestgate.service.observability.usage import record_usage
from crestgate.service.observability.webhook import Webhook
from crestgate.service.observability.worker_metrics import WorkerMetrics
from crestgate.service.observability.worker_snapshots import WorkerSnapshots
from crestgate.service.preflight import ADMIN_KEY
from crestgate.service.resp.turn import RespService

__all__ = ["Service", "open_service"]

PUBLISH_SECONDS = 1.0
RECORD_EVERY = 10
"""Publications between two records of usage."""
_log = logging.getLogger("crestgate")


class Service:
    """One worker: its ASGI application, its gRPC methods, its RESP commands, and its background work."""

    def __init__(
        self,
        dependencies: Dependencies,
        app: Router,
        rpc: Mapping[bytes, Method],
        publisher: Publisher,
        health: Health,
        node: Limiter,
        webhook: Webhook | None,
        certificates: Certificates | None = None,
        resp: RespService | None = None,
        xds: XdsClient | None = None,
    ) -> None:
        self.dependencies = dependencies
        self.app = app
        self.rpc = rpc
        """gRPC methods by path."""
        self.resp = resp
        """RESP commands; None where it is off."""
        self.health = health
        self.certificates = certificates
        """None without TLS."""
        self._xds = xds
        """The stream of the node, in its first worker."""
        self._publisher = publisher
        self._node = node
        self._webhook = webhook

    def reload(self) -> None:
        """Reload all rules, Envoy's descriptors and the certificates. Safe in a signal handler."""
        self.dependencies.limiter.reload()
        if self.dependencies.descriptors is not None:
            self.dependencies.descriptors.reload()
        if self.certificates is not None:
            self.certificates.reload()

    async def run_background(self) -> None:
        """Publish metrics every second, record usage every ten, and sweep the history; until cancelled."""
        sweeping: list[asyncio.Task[None]] = []
        if self.dependencies.worker_snapshots.worker == 0:
            sweeping.append(asyncio.create_task(sweep_history(self.dependencies.history)))
            sweeping.append(asyncio.create_task(purge_rules(self.dependencies.repository)))
            sweeping.append(asyncio.create_task(sweep_reservations(self.dependencies.limiter.reservations)))
        try:
            await self._publish_and_record()
        finally:
            for task in sweeping:
                task.cancel()

    async def _publish_and_record(self) -> None:
        rounds = 0
        while True:
            await asyncio.sleep(PUBLISH_SECONDS)
            rounds += 1
            try:
                await self._publisher.publish(_now_us())
                await self._probe_store_that_is_away()
                if rounds % RECORD_EVERY == 0:
                    await self._record()
            except (CrestgateError, OSError) as error:
                _log.warning("cannot publish metrics, will retry: %s", error)
            except Exception:  # noqa: BLE001 - whatever it is, the next round must come
                _log.exception("unhandled error in publishing metrics")

    async def _probe_store_that_is_away(self) -> None:
        """The log must say when it is back, also if no check asks."""
        outages = self.dependencies.limiter.backend.failure.outages
        if outages is not None and outages.is_open:
            with suppress(StoreError):
                await self.dependencies.limiter.probe()

    async def close(self) -> None:
        """Record what was counted, and close everything."""
        try:
            self._publisher.close(_now_us())
        except OSError as error:  # nobody is left to read them in any case
            _log.warning("cannot write metrics: %s", error)
        await self._record()
        self.dependencies.notifier.close()
        await self.dependencies.limiter.aclose()
        await asyncio.to_thread(self._close_dependencies)

    async def _record(self) -> None:
        await record_usage(self.dependencies.metrics, self.dependencies.history, _now_us())
        await asyncio.to_thread(self.dependencies.last_uses.record)

    def _close_dependencies(self) -> None:
        self.dependencies.catalog.close()
        if self._xds is not None:
            self._xds.close()
        if self.dependencies.descriptors is not None:
            self.dependencies.descriptors.close()
        if self.certificates is not None:
            self.certificates.close()
        self.dependencies.locks.close()
        self.dependencies.history.close()
        self._node.close()
        if self._webhook is not None:
            self._webhook.close()


async def open_service(
    settings: Settings, node: NodeDirectory, worker: int, environ: Mapping[str, str] = os.environ
) -> Service:
    """Create all that a worker needs. `settings` are complete: see preflight.py."""
    assert settings.rules_store is not None
    rules_store = settings.rules_store
    certificates = None if settings.server.tls is None else Certificates(settings.server.tls)
    repository = await asyncio.to_thread(open_repository, rules_store)
    catalog = await asyncio.to_thread(Catalog, [settings.rule_files(), repository], settings.refresh_seconds)
    worker_snapshots = WorkerSnapshots(node.snapshots, worker)
    notifier = WorkerNotifier(node.folder, worker)
    recording = settings.traffic
    token_key = await asyncio.to_thread(signing_key, repository)
    traffic = TrafficRecorder(recording.max_requests, _now_us(), token_key) if recording.record else None
    notifier.listen(catalog.wake, _traffic_writer(traffic, TrafficFiles(node.snapshots, worker)))
    metrics = _continue_metrics(worker_snapshots)
    webhook = Webhook(settings.webhook) if settings.webhook is not None else None
    watch = PressureWatch(metrics, settings.logs.keys, webhook)
    limiter = AsyncLimiter(
        settings.store,
        on_store_error=settings.on_store_error,
        fallback_instances=settings.fallback_instances * settings.server.workers,
        denial_cache=settings.denial_cache,
        on_pressure=watch,
        catalog=catalog,
    )
    try:
        await limiter.connect()
    except StoreError as error:
        # It was reachable when the service started: a worker that replaces another one uses the failure policy.
        _log.error("store unreachable, applying on_store_error until it is reachable: %s", error)
    descriptors = await asyncio.to_thread(_descriptors, settings)
    xds = _start_xds(settings, descriptors, worker)
    dependencies = Dependencies(
        settings=settings,
        limiter=limiter,
        repository=repository,
        locks=await asyncio.to_thread(open_locks, rules_store),
        history=await asyncio.to_thread(open_history, rules_store),
        metrics=metrics,
        worker_snapshots=worker_snapshots,
        notifier=notifier,
        store_titles=(limiter.title, repository.title),
        started_us=_now_us(),
        token_key=token_key,
        descriptors=descriptors,
        traffic=traffic,
    )
    callers = Limiter(node.counters)
    api_keys = ApiKeys(lambda: catalog.keys, environ.get(ADMIN_KEY, "").strip() or None)
    guard = Guard(api_keys, settings.server, callers)
    ceiling = CheckCeiling(settings.server.limits.checks, callers)
    checks = CheckService(dependencies, ceiling, create_tracer(settings.tracing.enabled))
    required = required_probes(settings.on_store_error, settings.server.ready_without_store)
    awaits_limits = None if descriptors is None or settings.envoy.xds is None else lambda: descriptors.waiting
    health = Health(limiter, repository, required, awaits_limits)

    def totals() -> dict[str, int]:
        return {
            **watch.totals(),
            "envoy_reload_failures": (0 if descriptors is None else descriptors.failures)
            + (0 if xds is None else xds.refused),
            "certificate_reload_failures": 0 if certificates is None else certificates.failures,
        }

    def gauges() -> dict[str, dict[Labels, int]]:
        if certificates is None or certificates.expires_at is None:
            return {}
        return {"certificate_expiry_timestamp_seconds": {(certificates.title,): certificates.expires_at}}

    publisher = Publisher(
        metrics,
        worker_snapshots,
        limiter,
        prefix=settings.metrics.prefix,
        keys=settings.logs.keys,
        last_uses=dependencies.last_uses,
        totals=totals,
        started_us=dependencies.started_us,
        gauges=gauges,
    )
    probes = Probes(health, publisher)
    check_scope = required_check_scope(settings.server, settings.server.http)
    pages: dict[str, tuple[Handler, Scope | None]] = {
        "/healthz": (probes.health, None),
        "/readyz": (probes.readiness, None),
        "/healthcheck": (probes.healthcheck, None),
        "/metrics": (probes.metrics, None if check_scope is None else "read"),
    }
    log = RequestLog(settings.logs)
    envoy = EnvoyService(checks, descriptors)  # one for HTTP and gRPC: its caches and labels are bounded together
    log_outs = LogOuts(dependencies.repository, lambda: catalog.keys, dependencies.announce_write)
    sessions = Sessions(dependencies.token_key, api_keys, callers, log_outs)
    app = Router(
        dependencies,
        guard,
        checks,
        envoy,
        create_admin_app(dependencies),
        pages,
        check_scope,
        log,
        ADMIN_PATHS,
        create_dashboard(dependencies, guard, sessions, checks, health),
        DASHBOARD_PATHS,
    )
    rpc = build_methods(dependencies, guard, checks, envoy, health, log)
    resp = None
    if settings.server.resp is not None:
        resp = RespService(checks, guard, required_check_scope(settings.server, settings.server.resp), log)
    if webhook is not None:
        webhook.start()
    return Service(dependencies, app, rpc, publisher, health, callers, webhook, certificates, resp, xds)


def _continue_metrics(snapshots: WorkerSnapshots) -> WorkerMetrics:
    """The metrics of a worker go on where its predecessor ended."""
    metrics = WorkerMetrics(snapshots.previous())
    seen = snapshots.own_seen()
    metrics.keys.restore(seen.keys)
    metrics.clients.restore(seen.clients)
    return metrics


def _descriptors(settings: Settings) -> Descriptors | None:
    """The current descriptors: the settings have those of the start, and a worker that replaces another starts later.
    Files that have become invalid change nothing."""
    descriptors = settings.descriptors()
    if descriptors is not None:
        descriptors.refresh()
    return descriptors


def _start_xds(settings: Settings, descriptors: Descriptors | None, worker: int) -> XdsClient | None:
    """The stream from a control plane: one for all workers, in the first of them."""
    if settings.envoy.xds is None or descriptors is None or worker:
        return None
    client = XdsClient(settings.envoy.xds, settings.xds_cache(), descriptors.background.weak_wake())
    client.start()
    return client


def _traffic_writer(traffic: TrafficRecorder | None, files: TrafficFiles) -> Callable[[], None]:
    """Writes what this worker has recorded, in a thread, when another worker needs it."""
    files.remove_own()

    def write() -> None:
        assert traffic is not None
        records = traffic.records(_now_us() - MAX_MINUTES * 60_000_000)
        header = TrafficFile(_now_us(), records.bits, records.since_us, records.skipped)
        try:
            files.write(header, records.rows)
        except OSError as error:
            _log.warning("cannot write recorded traffic: %s", error)

    def start() -> None:
        if traffic is not None:
            asyncio.get_running_loop().run_in_executor(None, write)

    return start


def _now_us() -> int:
    return time.time_ns() // 1000
