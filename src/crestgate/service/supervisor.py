"""Runs several worker processes on the same sockets, and replaces those that die.

The supervisor serves no requests, so no input can crash it. On Linux it imports what workers need and forks them, so
that they share that memory. It has one thread and no connection then, so a fork leaves nothing half-way. Elsewhere, and
with libraries that do not survive a fork, workers are spawned. Each gets the settings as read at startup. A worker that
dies is replaced at once; one that dies repeatedly during startup is replaced with exponential backoff. SIGTERM and
SIGINT shut all workers down gracefully, a second SIGINT at once; SIGHUP makes them reload their rules.
"""

from __future__ import annotations

import gc
import logging
import os
import shutil
import signal
import sys
import threading
import time
from dataclasses import dataclass
from multiprocessing import connection, get_context, parent_process, resource_tracker
from multiprocessing.process import BaseProcess
from types import FrameType

from crestgate.config.settings import Settings
from crestgate.errors import CrestgateError
from crestgate.service.node import ListenSockets, NodeDirectory

__all__ = ["Supervisor", "can_fork"]

POLL_SECONDS = 0.5
EARLY_SECONDS = 5.0
"""A worker that lived shorter died during startup."""
STARTUP_FAILED = 1
"""Exit code of a worker that cannot start, however long it took to find out."""
STOPPED_ON_REQUEST = (0, -signal.SIGTERM)
"""Exit codes of a worker that somebody has sent SIGTERM: it was drained, or had not started to serve."""
MAX_BACKOFF_SECONDS = 10.0
GRACE_SECONDS = 5.0
"""Beyond the time for open requests, before a worker is killed."""
FORCED_GRACE_SECONDS = 1.0
"""After a second SIGINT."""
_log = logging.getLogger("crestgate.supervisor")


@dataclass(slots=True)
class _WorkerSlot:
    """One worker, by its number, and the process that runs as it."""

    number: int
    process: BaseProcess | None = None
    started_at: float = 0.0
    early_deaths: int = 0
    start_after: float = 0.0


class Supervisor:
    """Keeps all workers running until a signal."""

    def __init__(self, settings: Settings, node: NodeDirectory, listening: ListenSockets) -> None:
        self._settings = settings
        self._node = node
        self._listening = listening
        self._forks = can_fork(settings)
        self._context = get_context("fork") if self._forks else get_context("spawn")
        self._slots = [_WorkerSlot(number) for number in range(settings.server.workers)]
        self._stopping = False
        self._forced = False
        self._reload_requested = False

    def run(self) -> None:
        """Until SIGTERM or SIGINT."""
        before = {number: signal.signal(number, self._handle_stop) for number in (signal.SIGTERM, signal.SIGINT)}
        if self._forks:
            from crestgate.service import worker  # noqa: F401 - what workers need is loaded once, for all of them

            gc.collect()
            gc.freeze()  # a collection in a worker would write to these objects, and so copy their memory
        # Not on Windows, where preflight.py refuses several workers.
        before[signal.SIGHUP] = signal.signal(signal.SIGHUP, self._handle_reload)
        try:
            while not self._stopping:
                self._check(time.monotonic())
                sentinels = [slot.process.sentinel for slot in self._slots if slot.process is not None]
                connection.wait(sentinels, POLL_SECONDS)
        finally:
            self._shut_down()
            for number, handler in before.items():
                signal.signal(number, handler)

    def _check(self, now: float) -> None:
        """Replace dead workers, and forward a reload."""
        for slot in self._slots:
            if slot.process is not None and not slot.process.is_alive():
                self._handle_death(slot, slot.process, now)
            if slot.process is None and now >= slot.start_after:
                self._start(slot, now)
        if self._reload_requested:
            self._reload_requested = False
            self._signal_workers(signal.SIGHUP)

    def _start(self, slot: _WorkerSlot, now: float) -> None:
        from crestgate.service.worker import BLOCKED_SIGNALS

        process = self._context.Process(
            target=_run,
            args=(self._settings, self._node, slot.number, self._listening),
            name=f"crestgate-worker-{slot.number}",
        )
        if not self._forks:
            resource_tracker.ensure_running()  # its start changes the signal mask
        blocked = BLOCKED_SIGNALS | {signal.SIGTERM}
        signal.pthread_sigmask(signal.SIG_BLOCK, blocked)  # inherited by the new process
        try:
            process.start()
        except OSError as error:  # out of memory, descriptors or processes
            slot.start_after = now + MAX_BACKOFF_SECONDS
            _log.error("cannot start worker %d, will retry: %s", slot.number, error.strerror)
            return
        finally:
            signal.pthread_sigmask(signal.SIG_UNBLOCK, blocked)
        slot.process, slot.started_at = process, now

    def _handle_death(self, slot: _WorkerSlot, process: BaseProcess, now: float) -> None:
        code = process.exitcode or 0
        how = f"was killed by {_signal_name(-code)}" if code < 0 else f"ended with exit code {code}"
        early = code == STARTUP_FAILED or now - slot.started_at < EARLY_SECONDS
        slot.early_deaths = slot.early_deaths + 1 if early else 0
        delay = min(0.1 * 2**slot.early_deaths, MAX_BACKOFF_SECONDS) if slot.early_deaths else 0.0
        slot.process, slot.start_after = None, now + delay
        process.close()
        when = f" in {delay:.1f} s" if delay else ""
        if code in STOPPED_ON_REQUEST:
            _log.info("worker %d was stopped on request; starting another%s", slot.number, when)
        else:
            _log.error("worker %d %s; restarting it%s", slot.number, how, when)

    def _handle_stop(self, number: int, frame: FrameType | None) -> None:
        if self._stopping and number == signal.SIGINT:
            self._forced = True
        self._stopping = True

    def _handle_reload(self, number: int, frame: FrameType | None) -> None:
        self._reload_requested = True

    def _signal_workers(self, number: signal.Signals) -> None:
        for slot in self._slots:
            if slot.process is not None and slot.process.is_alive() and slot.process.pid is not None:
                os.kill(slot.process.pid, number)

    def _shut_down(self) -> None:
        """Shut all workers down gracefully; kill those that take too long."""
        self._listening.close()  # or new connections would wait for workers that accept no more
        self._signal_workers(signal.SIGTERM)
        deadline = time.monotonic() + self._settings.server.shutdown_seconds + GRACE_SECONDS
        force_signal_sent = False
        while (running := self._running()) and time.monotonic() < deadline:
            if self._forced and not force_signal_sent:
                force_signal_sent = True
                deadline = time.monotonic() + FORCED_GRACE_SECONDS
                self._signal_workers(signal.SIGINT)
            connection.wait([process.sentinel for _, process in running], POLL_SECONDS)
        for number, process in self._running():
            _log.error("worker %d did not stop in time, killing it", number)
            process.kill()
            process.join()

    def _running(self) -> list[tuple[int, BaseProcess]]:
        """The workers that have not ended."""
        return [(s.number, s.process) for s in self._slots if s.process is not None and s.process.is_alive()]


def can_fork(settings: Settings) -> bool:
    """Whether workers are forked: not where another thread may be in the middle of something, nor with gRPC's library,
    which reads limits of a control plane."""
    return sys.platform == "linux" and settings.envoy.xds is None and threading.active_count() == 1


def _run(settings: Settings, node: NodeDirectory, number: int, listening: ListenSockets) -> None:
    """The main function of a worker process. Startup errors are logged without a traceback."""
    signal.signal(signal.SIGTERM, signal.SIG_DFL)  # not the supervisor's handlers
    signal.signal(signal.SIGINT, signal.default_int_handler)
    signal.signal(signal.SIGHUP, signal.SIG_IGN)
    signal.pthread_sigmask(signal.SIG_UNBLOCK, [signal.SIGTERM])
    from crestgate.service.worker import run_worker

    try:
        run_worker(settings, node, number, listening)
    except CrestgateError as error:
        _log.error("worker %d failed: %s", number, error)
        sys.exit(STARTUP_FAILED)
    except KeyboardInterrupt:  # a second SIGINT during shutdown
        sys.exit(1)
    finally:
        supervisor = parent_process()
        if supervisor is not None and os.getppid() != supervisor.pid:  # killed: nothing else removes the directory
            shutil.rmtree(node.folder, ignore_errors=True)


def _signal_name(number: int) -> str:
    try:
        return signal.Signals(number).name
    except ValueError:  # real-time signals have no names
        return f"signal {number}"
