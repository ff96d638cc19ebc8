"""Faults: what begins, and what ends it. Each says for which stores it makes sense, or why not.

Faults of the network and of processes are here; those of one kind of store are in store_faults.py.
"""

from __future__ import annotations

import os
import random
import signal
import threading
import time
from abc import ABC, abstractmethod
from contextlib import ExitStack, suppress
from dataclasses import dataclass, field
from typing import Any, ClassVar

from chaos.clients import Client, Clients, has_pending_batch
from chaos.environments import Environment, ServiceEnvironment
from chaos.fake_time import CACHED_SECONDS, FakeTime, library
from chaos.network import Network, can_isolate
from servers.machine import until

__all__ = ["GENERIC", "LOCAL", "Context", "Fault"]

LOCAL = ("memory", "shared", "sqlite")
NO_SERVER = "no server: its clients are all there is"
NO_CONNECTION = "no connection that could fail"
STEP_SECONDS = 60


@dataclass
class Context:
    """What a fault may break."""

    environment: Environment
    clients: Clients
    network: Network
    rng: random.Random
    fake_time: FakeTime | None = None
    notes: list[str] = field(default_factory=list)
    events: list[tuple[int, int]] = field(default_factory=list)
    """Intervals in which counters may have been lost or refilled."""

    @property
    def env(self) -> Any:
        return self.environment


class Fault(ABC):
    """One kind of fault. `begin` and `end` are called in turn; the load goes on meanwhile."""

    name: ClassVar[str]
    seconds: ClassVar[tuple[float, float]] = (0.4, 1.2)
    """How long it lasts."""
    epoch_seconds: ClassVar[float] = 4.0
    """How long the same counters are used."""
    once = False
    """Whether it can happen only once in a run."""
    whole_run = False
    """Whether it lasts from the first call to the last."""
    fakes_server_clock = False
    """Whether the servers are started with a clock that can be set."""

    def unsupported(self, store: str) -> str | None:
        """Why it makes no sense for this store, or cannot be had here."""
        return None

    def settings(self, store: str) -> dict[str, str]:
        """What its servers must be started with."""
        return {}

    def prepare(self, environment: Environment, stack: ExitStack) -> None:  # noqa: B027 - most need nothing
        """Before the servers are started."""

    @abstractmethod
    def begin(self, context: Context) -> None:
        """Break something."""

    @abstractmethod
    def end(self, context: Context) -> None:
        """Mend it; returns when it is mended."""


class NoFault(Fault):
    name = "none"

    def begin(self, context: Context) -> None:
        pass

    def end(self, context: Context) -> None:
        pass


class ServerFault(Fault):
    def unsupported(self, store: str) -> str | None:
        return NO_SERVER if store in LOCAL else None


class ServerKill(ServerFault):
    name = "server-kill"

    def begin(self, context: Context) -> None:
        if isinstance(context.environment, ServiceEnvironment):
            context.environment.kill()
        else:
            context.environment.victim(context.rng.randrange(10)).kill()

    def end(self, context: Context) -> None:
        context.environment.revive()


class ServerStop(ServerFault):
    name = "server-stop"
    seconds = (0.3, 0.9)  # shorter than the time after which sentinels and clusters fail over

    def begin(self, context: Context) -> None:
        self.pids = []
        if isinstance(context.environment, ServiceEnvironment):
            service = context.environment.service
            assert service is not None
            self.pids = [service.pid, *service.worker_pids]
            for pid in self.pids:
                os.kill(pid, signal.SIGSTOP)
        else:
            self.victim = context.environment.victim(context.rng.randrange(10))
            self.victim.pause()

    def end(self, context: Context) -> None:
        for pid in self.pids:
            with suppress(ProcessLookupError):
                os.kill(pid, signal.SIGCONT)
        if not self.pids:
            self.victim.resume()


class ClientKill(Fault):
    name = "client-kill"
    seconds = (0.05, 0.2)

    def begin(self, context: Context) -> None:
        context.clients.replace(context.rng.choice(context.clients.running))

    def end(self, context: Context) -> None:
        pass


class ClientStop(Fault):
    name = "client-stop"
    seconds = (0.5, 1.5)

    def begin(self, context: Context) -> None:
        self.victim: Client = context.rng.choice(context.clients.running)
        context.clients.signal(self.victim, signal.SIGSTOP)

    def end(self, context: Context) -> None:
        context.clients.signal(self.victim, signal.SIGCONT)


class NetworkFault(Fault):
    def unsupported(self, store: str) -> str | None:
        if store == "sentinel" and not can_isolate():
            return "without network namespaces, the sentinels have the fault, too, and change the master"
        return NO_CONNECTION if store in LOCAL else None

    def end(self, context: Context) -> None:
        for proxy in context.environment.proxies:
            proxy.pass_all()


class Refused(NetworkFault):
    name = "refused"
    seconds = (0.3, 1.0)

    def begin(self, context: Context) -> None:
        for proxy in context.environment.proxies:
            proxy.refuse()


class Repeated(NetworkFault):
    """Something that happens again and again, from a thread."""

    interval = (0.05, 0.2)

    def begin(self, context: Context) -> None:
        self.stopping = threading.Event()
        seed = context.rng.random()

        def repeat() -> None:
            rng = random.Random(seed)
            while not self.stopping.wait(rng.uniform(*self.interval)):
                self.act(context, rng)

        self.thread = threading.Thread(target=repeat, daemon=True)
        self.thread.start()

    def act(self, context: Context, rng: random.Random) -> None:
        raise NotImplementedError

    def end(self, context: Context) -> None:
        self.stopping.set()
        self.thread.join(30)
        super().end(context)


class Cut(Repeated):
    name = "cut"

    def act(self, context: Context, rng: random.Random) -> None:
        for proxy in context.environment.proxies:
            if rng.random() < 0.5:
                proxy.cut()
            else:
                proxy.cut_after(rng.randrange(1, 40))


class DroppedReply(NetworkFault):
    name = "dropped-reply"
    share = 0.5

    def begin(self, context: Context) -> None:
        for proxy in context.environment.proxies:
            proxy.drop_replies(self.share, context.rng.randrange(10**6))


class DroppedTenth(DroppedReply):
    name = "dropped-10-percent"
    share = 0.1
    whole_run = True


class SlowBytes(NetworkFault):
    name = "slow-bytes"

    def begin(self, context: Context) -> None:
        for proxy in context.environment.proxies:
            proxy.dribble(context.rng.randrange(3, 12), 0.003)


class Jitter(NetworkFault):
    name = "jitter"

    def begin(self, context: Context) -> None:
        for proxy in context.environment.proxies:
            proxy.delay(0.02, 0.15)


class HalfOpen(NetworkFault):
    name = "half-open"
    seconds = (0.5, 1.0)

    def begin(self, context: Context) -> None:
        for proxy in context.environment.proxies:
            proxy.forget_connections()


class Partition(NetworkFault):
    """The link between clients and servers is down; without namespaces, the proxies hold everything back."""

    name = "partition"

    def begin(self, context: Context) -> None:
        if context.network.isolated:
            context.network.partition()
            return
        for proxy in context.environment.proxies:
            proxy.hang()

    def end(self, context: Context) -> None:
        if context.network.isolated:
            context.network.heal()
        super().end(context)


class Fork(Fault):
    name = "fork"
    seconds = (0.2, 0.6)

    def begin(self, context: Context) -> None:
        for _ in range(3):
            for client in context.clients.running:
                client.say("fork")
            for client in context.clients.running:
                assert client.receive(60) == "forked"
            time.sleep(context.rng.random() * 0.05)

    def end(self, context: Context) -> None:
        pass


class WorkerKill(Fault):
    """A process dies in the middle of a batch: a worker of the service, elsewhere a client that has sent one."""

    name = "worker-kill"
    seconds = (0.05, 0.2)

    def begin(self, context: Context) -> None:
        environment = context.environment
        if isinstance(environment, ServiceEnvironment):
            assert environment.service is not None
            self.before = environment.service.worker_pids
            with suppress(ProcessLookupError):
                os.kill(context.rng.choice(self.before), signal.SIGKILL)
            return
        victim = context.rng.choice(context.clients.running)
        deadline = time.monotonic() + 0.5
        while time.monotonic() < deadline and not has_pending_batch(victim.journal):
            pass
        context.clients.replace(victim)

    def end(self, context: Context) -> None:
        service = getattr(context.environment, "service", None)
        if service is not None:
            until("the supervisor has replaced the worker", lambda: len(service.worker_pids) >= len(self.before))
            service.await_ready()


class ClockFault(Fault):
    """A clock is set forth or back, and right again."""

    def begin(self, context: Context) -> None:
        self.step(context, context.rng.choice((-1, 1)) * STEP_SECONDS)

    def end(self, context: Context) -> None:
        self.step(context, 0)

    def step(self, context: Context, seconds: int) -> None:
        began = time.monotonic_ns()
        self.set_clock(context, seconds)
        context.events.append((began, time.monotonic_ns()))

    @abstractmethod
    def set_clock(self, context: Context, seconds: int) -> None:
        """Returns when the clock is that far ahead."""


class ServerClock(ClockFault):
    name = "server-clock"
    fakes_server_clock = True

    def unsupported(self, store: str) -> str | None:
        if store in LOCAL:
            return "no server: the machine's clock is the clients'"
        if store in ("redis", "sentinel", "cluster", "valkey", "sharded"):
            # Its allocator reads the clock before libfaketime is ready: the server then hangs at its start.
            return "libfaketime does not work with the allocator of Redis: see tests/conformance/test_clock_steps.py"
        return None if library() else "libfaketime is not installed (Debian: faketime)"

    def set_clock(self, context: Context, seconds: int) -> None:
        assert context.fake_time is not None
        context.fake_time.step(seconds)
        time.sleep(CACHED_SECONDS + 0.1)


class ClientClock(ClockFault):
    name = "client-clock"

    def set_clock(self, context: Context, seconds: int) -> None:
        for client in context.clients.running:
            client.say(f"clock {seconds}")
        time.sleep(0.1)  # they read it beside their work


GENERIC: list[Fault] = [
    NoFault(),
    ServerKill(),
    ServerStop(),
    ClientKill(),
    ClientStop(),
    Refused(),
    Cut(),
    DroppedReply(),
    DroppedTenth(),
    SlowBytes(),
    Jitter(),
    HalfOpen(),
    Partition(),
    Fork(),
    WorkerKill(),
    ServerClock(),
    ClientClock(),
]
