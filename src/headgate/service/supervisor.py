"""Several workers on the same sockets, and somebody who replaces those that die.

The supervisor answers no requests, so nothing that comes in can kill it. Workers are new processes (not forks: they
share no lock, thread or connection with anybody), and each gets the settings as they were read at the start. One that
dies is replaced at once; one that keeps dying as soon as it begins is replaced ever more slowly, so that a broken
machine is not kept busy with that. SIGTERM and Ctrl-C let every worker answer what is under way, and a second Ctrl-C
does not wait for that; SIGHUP has them all read their rules again.
"""

from __future__ import annotations

import logging
import os
import shutil
import signal
import sys
import time
from dataclasses import dataclass, field
from multiprocessing import connection, get_context, parent_process, resource_tracker
from multiprocessing.context import SpawnProcess
from types import FrameType

from headgate.config.settings import Settings
from headgate.errors import HeadgateError
from headgate.service.listening import Listening
from headgate.service.node import Node

__all__ = ["Supervisor"]

LOOK_EVERY = 0.5
SOON = 5.0
"""Seconds: a worker that lived for less than this did not get far."""
LONGEST_WAIT = 10.0
GRACE = 5.0
"""Seconds that a worker gets beyond those for the requests that are under way, before it is killed."""
FORCED_GRACE = 1.0
"""Seconds that it gets when nobody wants to wait."""
_log = logging.getLogger("headgate.supervisor")


@dataclass(slots=True)
class _Place:
    """One worker's place, and who is in it."""

    number: int
    process: SpawnProcess | None = None
    started: float = 0.0
    early_deaths: int = 0
    not_before: float = field(default=0.0)


class Supervisor:
    """Keeps so many workers alive until it is told to end."""

    def __init__(self, settings: Settings, node: Node, listening: Listening) -> None:
        self._settings = settings
        self._node = node
        self._listening = listening
        self._context = get_context("spawn")
        self._places = [_Place(number) for number in range(settings.server.workers)]
        self._ending = False
        self._forced = False
        self._hung_up = False

    def run(self) -> None:
        """Until SIGTERM or SIGINT."""
        before = {number: signal.signal(number, self._signalled) for number in (signal.SIGTERM, signal.SIGINT)}
        before[signal.SIGHUP] = signal.signal(signal.SIGHUP, self._hang_up)
        try:
            while not self._ending:
                self._look(time.monotonic())
                sentinels = [p.process.sentinel for p in self._places if p.process is not None]
                connection.wait(sentinels, LOOK_EVERY)
        finally:
            self._end()
            for number, handler in before.items():
                signal.signal(number, handler)

    def _look(self, now: float) -> None:
        """Replace who has died, and pass on what was asked meanwhile."""
        for place in self._places:
            if place.process is not None and not place.process.is_alive():
                self._died(place, place.process, now)
            if place.process is None and now >= place.not_before:
                self._start(place, now)
        if self._hung_up:
            self._hung_up = False
            self._tell(signal.SIGHUP)

    def _start(self, place: _Place, now: float) -> None:
        from headgate.service.server import HELD

        process = self._context.Process(
            target=_work,
            args=(self._settings, self._node, place.number, self._listening),
            name=f"headgate-worker-{place.number}",
        )
        resource_tracker.ensure_running()  # it changes the mask when it starts
        signal.pthread_sigmask(signal.SIG_BLOCK, HELD)  # which a new process inherits
        try:
            process.start()
        except OSError as error:  # no memory, no descriptors, no processes: those that run go on
            place.not_before = now + LONGEST_WAIT
            _log.error("worker %d cannot be started, and will be tried again: %s", place.number, error.strerror)
            return
        finally:
            signal.pthread_sigmask(signal.SIG_UNBLOCK, HELD)
        place.process, place.started = process, now

    def _died(self, place: _Place, process: SpawnProcess, now: float) -> None:
        code = process.exitcode or 0
        how = f"was killed by {_signal_name(-code)}" if code < 0 else f"ended with exit code {code}"
        place.early_deaths = place.early_deaths + 1 if now - place.started < SOON else 0
        wait = min(0.1 * 2**place.early_deaths, LONGEST_WAIT) if place.early_deaths else 0.0
        place.process, place.not_before = None, now + wait
        process.close()
        _log.error("worker %d %s; another takes its place%s", place.number, how, f" in {wait:.1f} s" if wait else "")

    def _signalled(self, number: int, frame: FrameType | None) -> None:
        if self._ending and number == signal.SIGINT:
            self._forced = True
        self._ending = True

    def _hang_up(self, number: int, frame: FrameType | None) -> None:
        self._hung_up = True

    def _tell(self, number: signal.Signals) -> None:
        for place in self._places:
            if place.process is not None and place.process.is_alive() and place.process.pid is not None:
                os.kill(place.process.pid, number)

    def _end(self) -> None:
        """Let the workers answer what is under way; who takes too long is killed."""
        self._listening.close()  # or whoever comes now would wait for workers that no longer take anybody
        self._tell(signal.SIGTERM)
        deadline = time.monotonic() + self._settings.server.shutdown_seconds + GRACE
        hurried = False
        while (left := self._left()) and time.monotonic() < deadline:
            if self._forced and not hurried:
                hurried = True
                deadline = time.monotonic() + FORCED_GRACE
                self._tell(signal.SIGINT)
            connection.wait([process.sentinel for _, process in left], LOOK_EVERY)
        for number, process in self._left():
            _log.error("worker %d did not end in time, and is killed", number)
            process.kill()
            process.join()

    def _left(self) -> list[tuple[int, SpawnProcess]]:
        """The workers that have not ended."""
        return [(p.number, p.process) for p in self._places if p.process is not None and p.process.is_alive()]


def _work(settings: Settings, node: Node, number: int, listening: Listening) -> None:
    """What a worker's process does. What keeps it from starting is a line of the log, and no traceback."""
    from headgate.service.server import run_worker

    try:
        run_worker(settings, node, number, listening)
    except HeadgateError as error:
        _log.error("worker %d cannot go on: %s", number, error)
        sys.exit(1)
    except KeyboardInterrupt:  # a second one, while it was ending already
        sys.exit(1)
    finally:
        supervisor = parent_process()
        if supervisor is not None and not supervisor.is_alive():  # then nobody else takes the node's folder away
            shutil.rmtree(node.folder, ignore_errors=True)


def _signal_name(number: int) -> str:
    try:
        return signal.Signals(number).name
    except ValueError:  # one of the real-time signals, which have no names
        return f"signal {number}"
